#include "core/plan/fsdp2/forward.h"

#include <algorithm>
#include <span>

#include "core/plan/graph/gradient_leaf.h"
#include "core/plan/graph/inner_gradients.h"
#include "core/plan/graph/training_begins.h"

namespace foreshard::fsdp2 {
namespace {

bool runs_in(const GraphStep& step, std::int32_t iteration) {
  return step.iterations.empty() ||
         std::find(step.iterations.begin(), step.iterations.end(), iteration) != step.iterations.end();
}

}  // namespace

Forward::Forward(Run& run, Gathering& gathering) : run_(run), out_(run.out), gathering_(gathering), products_(run) {
  engine_reads_ = params_of_inner_gradients(run.model, run.graph);
  tensors_.resize(run.graph.tensors.size());
  iter_forward_roots_.resize(run.units.size());
}

/// The last node under `call` that keeps something for backward; -1: none.
std::int32_t Forward::last_saving_node(std::int32_t call) {
  const std::vector<GraphStep>& steps = run_.graph.calls[static_cast<std::size_t>(call)].steps;
  for (std::size_t i = steps.size(); i-- > 0;) {
    if (!runs_in(steps[i], run_.iteration)) continue;
    if (steps[i].is_call) {
      const std::int32_t found = last_saving_node(steps[i].index);
      if (found >= 0) return found;
    } else if (run_.node_autograd.saves(steps[i].index)) {
      return steps[i].index;
    }
  }
  return -1;
}

Result<void> Forward::run(Pass pass, bool rest) {
  first_step_ = first_step(run_.graph, run_.request.job.fsdp, rest);
  if (run_.inner_initialised && !run_.initialised) {
    return fail({ErrorCode::Inconsistent,
                 "a unit inside the root ran forward before the root did",
                 {},
                 "train.script",
                 "the root's forward first",
                 "a unit that is already initialised",
                 "run the whole model before any part of it (F2-3)"});
  }
  if (run_.outputs.empty()) {
    run_.autograd.clear();
    run_.executions.clear();
    run_.regions.clear();
    run_.accumulations.assign(run_.slots.size(), autograd::kNoNode);
  }
  tensors_.assign(run_.graph.tensors.size(), Tensor{});
  for (std::int32_t input : run_.graph.calls[0].inputs) {
    const GraphTensor& variable = run_.graph.tensors[static_cast<std::size_t>(input)];
    Tensor& tensor = tensors_[static_cast<std::size_t>(input)];
    tensor.requires_grad = variable.requires_grad && pass == Pass::Forward;
    if (variable.value.valid()) {
      const DType dtype = run_.model.values[variable.value.index()].dtype;
      if (is_floating(dtype)) tensor.dtype = static_cast<std::int8_t>(dtype);
    }
  }
  run_.autograd.set_thread(autograd::Thread::Main);
  Result<void> done = walk(0, pass);
  if (done && run_.graph.loss >= 0) done = run_node(run_.graph.loss, pass);
  if (!done) return done;
  if (pass != Pass::Forward) return {};
  Output output;
  const std::vector<std::int32_t>& made = run_.graph.loss >= 0
                                              ? run_.graph.nodes[static_cast<std::size_t>(run_.graph.loss)].outputs
                                              : run_.graph.calls[0].outputs;
  if (!made.empty()) {  // the loss, or the sum of the first output
    const Tensor& tensor = tensors_[static_cast<std::size_t>(made.front())];
    if (tensor.requires_grad && tensor.node != autograd::kNoNode) output.roots.push_back({tensor.node, tensor.slot});
  }
  run_.outputs.push_back(std::move(output));
  return {};
}

// A checkpoint around a unit holds the unit's hooks in its region; one inside does not.
Result<void> Forward::walk(std::int32_t index, Pass pass) {
  const GraphCall& call = run_.graph.calls[static_cast<std::size_t>(index)];
  if (index != 0) {
    for (std::size_t i = 0; i < call.inputs.size() && i < call.arguments.size(); ++i) {
      tensors_[static_cast<std::size_t>(call.inputs[i])] = tensors_[static_cast<std::size_t>(call.arguments[i])];
    }
  }
  const ModuleId target = run_.model.modules[call.module.index()].alias_of;
  const ModuleId hooked = target.valid() && call.region < 0 ? target : call.hooked();
  const bool bare = !hooked.valid() || (hooked.value == 0 && !run_.root_is_unit);
  const UnitId id = bare ? UnitId() : run_.request.table.unit_of_module[hooked.index()];
  const bool region = call.checkpoint != CheckpointKind::None && pass == Pass::Forward && region_ < 0;
  // Hooks rebind inputs for this call alone.
  std::vector<Tensor> before;
  if (id.valid() && pass == Pass::Forward) {
    for (std::int32_t input : call.inputs) before.push_back(tensors_[static_cast<std::size_t>(input)]);
  }
  const auto open_region = [&] {
    region_ = static_cast<std::int32_t>(run_.regions.size());
    Region made{index, false, call.checkpoint_inside, call.checkpoint == CheckpointKind::Reentrant, {}, {}};
    if (made.reentrant && !made.inside) made.unit = id;
    run_.regions.push_back(std::move(made));
  };
  if (region && !call.checkpoint_inside) open_region();
  if (id.valid()) pre_forward_hooks(run_.unit(id), index, pass);
  if (region && call.checkpoint_inside) open_region();
  // The reentrant form is an autograd function: without an input that requires grad nothing inside is differentiated.
  const bool cut = region && call.checkpoint == CheckpointKind::Reentrant &&
                   std::none_of(call.inputs.begin(), call.inputs.end(), [&](std::int32_t input) {
                     return tensors_[static_cast<std::size_t>(input)].requires_grad;
                   });
  Result<void> done = walk_body(index, cut ? Pass::NoGrad : pass);
  if (!done) return done;
  if (region && call.checkpoint_inside) region_ = -1;
  if (id.valid() && !stop_recompute_ && call.ends < 0) post_forward_hooks(run_.unit(id), index, pass);
  if (region && !call.checkpoint_inside) region_ = -1;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::int32_t input = call.inputs[i];
    const bool returned = std::find(call.outputs.begin(), call.outputs.end(), input) != call.outputs.end();
    if (!returned) tensors_[static_cast<std::size_t>(input)] = before[i];
  }
  for (std::size_t i = 0; i < call.results.size() && i < call.outputs.size(); ++i) {
    tensors_[static_cast<std::size_t>(call.results[i])] = tensors_[static_cast<std::size_t>(call.outputs[i])];
  }
  return {};
}

Result<void> Forward::walk_body(std::int32_t index, Pass pass) {
  const GraphCall& call = run_.graph.calls[static_cast<std::size_t>(index)];
  const std::int32_t first = index == 0 ? first_step_ : 0;
  auto again = std::upper_bound(call.again.begin(), call.again.end(), first > 0 ? first : -1);
  for (auto i = static_cast<std::size_t>(first); i < call.steps.size(); ++i) {
    const GraphStep& step = call.steps[i];
    if (stop_recompute_) return {};
    if (again != call.again.end() && *again == static_cast<std::int32_t>(i)) ++again, call_root_again();
    if (call.ends == static_cast<std::int32_t>(i) && run_.root_is_unit) {  // parts that follow are roots by themselves
      const UnitId root = run_.request.table.unit_of_module[0];
      if (root.valid()) post_forward_hooks(run_.unit(root), index, pass);
    }
    if (!runs_in(step, run_.iteration)) continue;
    Result<void> done = step.is_call ? walk(step.index, pass) : run_node(step.index, pass);
    if (!done) return done;
  }
  return {};
}

Result<void> Forward::run_node(std::int32_t index, Pass pass) {
  const GraphNode& node = run_.graph.nodes[static_cast<std::size_t>(index)];
  if (node.kind == GraphNode::Kind::Identity) {
    for (std::size_t i = 0; i < node.outputs.size() && i < node.inputs.size(); ++i) {
      tensors_[static_cast<std::size_t>(node.outputs[i])] = tensors_[static_cast<std::size_t>(node.inputs[i])];
    }
    return {};
  }
  if (Result<void> there = check_gathered(node); !there) return there;
  if (Result<void> inner = check_inner_gradients(index); !inner) return inner;
  const Phase before = out_.phase();
  out_.set_phase(pass == Pass::Recompute ? Phase::Backward : Phase::Forward);
  const bool again = pass == Pass::Recompute;
  Instruction& run = out_.add(again ? InstructionKind::Recompute : InstructionKind::Forward, Stream::D,
                              run_.unit_of_node[static_cast<std::size_t>(index)]);
  run.segment = SegmentId(index);
  out_.set_phase(before);
  if (again) {
    stop_recompute_ = index == last_saving_;
    return {};
  }
  edges_.clear();
  Tensor made = of_inputs(node);
  const bool input_grad = made.requires_grad;
  if (Result<void> fits = take_params(node, pass, made); !fits) return fits;
  const bool leaf = !made.requires_grad && begins_gradients(run_.model, node);
  made.requires_grad = made.requires_grad && pass == Pass::Forward && node.kind != GraphNode::Kind::Detach;
  if (made.requires_grad) {
    made.node =
        run_.autograd.add_node(Compute, static_cast<std::int32_t>(run_.executions.size()), Stream::D,
                               std::max<std::int32_t>(1, static_cast<std::int32_t>(node.outputs.size())), edges_);
    run_.executions.push_back({index, region_, input_grad});
  }
  made.requires_grad = made.requires_grad || (leaf && pass == Pass::Forward);
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    const auto variable = static_cast<std::size_t>(node.outputs[i]);
    Tensor& tensor = tensors_[variable];
    tensor = made;
    tensor.slot = static_cast<std::int32_t>(i);
    if (!run_.graph.tensors[variable].differentiable) tensor.requires_grad = false;
  }
  return {};
}

Forward::Tensor Forward::of_inputs(const GraphNode& node) {
  Tensor made;
  for (std::int32_t input : node.inputs) {
    const Tensor& tensor = tensors_[static_cast<std::size_t>(input)];
    const bool wants = tensor.requires_grad && tensor.node != autograd::kNoNode;
    made.requires_grad = made.requires_grad || tensor.requires_grad;
    edges_.push_back(wants ? autograd::Edge{tensor.node, tensor.slot} : autograd::Edge{});
    if (made.dtype < 0) made.dtype = tensor.dtype;
  }
  return made;
}

Result<void> Forward::take_params(const GraphNode& node, Pass pass, Tensor& made) {
  bool mixed = false;
  std::int8_t param_dtype = -1;
  for (ParamId param : node.params) {
    const std::int32_t slot = run_.slot_of_param[param.index()];
    const ParamSlot& place = run_.slots[static_cast<std::size_t>(slot)];
    const auto dtype = static_cast<std::int8_t>(
        place.unit.valid() ? run_.unit(place.unit).params[static_cast<std::size_t>(place.index)].dtype
                           : run_.model.params[param.index()].dtype);
    mixed = mixed || (param_dtype >= 0 && param_dtype != dtype);
    param_dtype = dtype;
    if (!place.trainable || pass != Pass::Forward) continue;
    made.requires_grad = true;
    if (std::find(node.idle.begin(), node.idle.end(), param) != node.idle.end()) continue;
    autograd::NodeIndex& leaf = run_.accumulations[static_cast<std::size_t>(slot)];
    if (leaf == autograd::kNoNode) leaf = run_.autograd.add_accumulation(Accumulate, slot, Stream::D);
    edges_.push_back({leaf, 0});
  }
  if (param_dtype >= 0) {
    made.dtype = param_dtype;
    Result<void> fits = mixed ? products_.check_params(node) : check_inputs(node, static_cast<DType>(param_dtype));
    if (!fits) return fits;
  }
  if (mixed) made.dtype = -1;
  return {};
}

Result<void> Forward::check_inputs(const GraphNode& node, DType params) {
  dtypes_.clear();
  for (const std::int32_t input : node.inputs) dtypes_.push_back(tensors_[static_cast<std::size_t>(input)].dtype);
  return products_.check_inputs(node, dtypes_, params);
}

/// A list of modules that are not all called again has no hooks for the calls in between: they find its shards.
Result<void> Forward::check_gathered(const GraphNode& node) const {
  for (const ParamId param : node.params) {
    const ParamSlot& place = run_.slots[static_cast<std::size_t>(run_.slot_of_param[param.index()])];
    if (!place.unit.valid() || run_.unit(place.unit).module_count == 1) continue;
    if (run_.unit(place.unit).sharded == ShardedState::Unsharded) continue;
    return fail({ErrorCode::Refused,
                 "RuntimeError: got mixed torch.Tensor and DTensor: a unit of several modules is used while it is "
                 "sharded, because not all of its modules were called again",
                 {},
                 "unit \"" + run_.plan.units[place.unit.index()].name + "\"",
                 "modules that are called equally often, one after the other",
                 "another call of module \"" + node.label + "\"",
                 "make the module that is called more often a unit of its own, or leave it to the root"});
  }
  return {};
}

/// torch.autograd.grad in the midst of a forward that goes back through other units: their hooks shard them, and the
/// root too, which is in the midst of its forward; what is left of the forward finds shards, and the second backward
/// parameters without memory.
Result<void> Forward::check_inner_gradients(std::int32_t node) const {
  if (engine_reads_.empty()) return {};
  const UnitId own = run_.unit_of_node[static_cast<std::size_t>(node)];
  for (const ParamId param : engine_reads_[static_cast<std::size_t>(node)]) {
    const UnitId unit = run_.slots[static_cast<std::size_t>(run_.slot_of_param[param.index()])].unit;
    if (!unit.valid() || unit == own) continue;
    return fail({ErrorCode::Refused,
                 "torch.autograd.grad in the midst of forward goes back through a unit of fsdp2, whose hooks free its "
                 "parameters and the root's: PyTorch ends with \"setStorage ... out of bounds for storage of size 0\" "
                 "or \"got mixed torch.Tensor and DTensor\"",
                 {},
                 "unit \"" + run_.plan.units[unit.index()].name + "\"",
                 "one unit around all that is differentiated",
                 "parameter \"" + run_.model.params[param.index()].fqn + "\" in another unit",
                 "leave the model in one unit (fsdp.wrap.policy = \"none\"), or use fsdp.runtime = \"fsdp1\""});
  }
  return {};
}

// ---------------------------------------------------------------- hooks

void Forward::pre_forward_hooks(UnitState& u, std::int32_t call, Pass pass) {
  if (u.module_count > 1) {  // a list: before the first of its modules (F2-3)
    if (!u.waiting.empty()) return;
    u.waiting = run_.plan.units[u.id.index()].modules;
  }
  const Phase before = out_.phase();
  out_.set_phase(Phase::PreForward);
  state_pre_forward(u, call, pass);
  out_.set_phase(before);
}

void Forward::post_forward_hooks(UnitState& u, std::int32_t call, Pass pass) {
  if (u.module_count > 1) {  // a list: after the last
    const ModuleId module = run_.graph.calls[static_cast<std::size_t>(call)].module;
    const ModuleId target = run_.model.modules[module.index()].alias_of;
    std::erase(u.waiting, target.valid() ? target : module);
    if (!u.waiting.empty()) return;
  }
  const Phase before = out_.phase();
  out_.set_phase(Phase::PostForward);
  state_post_forward(u, call, pass);
  out_.set_phase(before);
}

void Forward::state_pre_forward(UnitState& u, std::int32_t call, Pass pass) {
  if (u.module_state == TrainingState::PreBackward) {  // recomputation: pre-backward has gathered already (F2-15)
    if (u.has_group && u.sharded != ShardedState::Unsharded) {
      gathering_.unshard(u, false);
      gathering_.wait_for_unshard(u);
    }
    return;
  }
  u.module_state = TrainingState::Forward;
  root_pre_forward(u);
  const MixedPrecision& precision = run_.request.table.precision[u.id.index()];
  if (precision.param && precision.cast_forward_inputs.value_or(true))
    cast_tensors(run_.graph.calls[static_cast<std::size_t>(call)].inputs, *precision.param);
  if (u.has_group) {
    out_.mark(Word::BeginPreForward, u.id);
    u.group_state = TrainingState::Forward;
    gathering_.unshard(u, u.async_unshard);
    gathering_.wait_for_unshard(u);
    const bool grad = pass == Pass::Forward && !run_.graph.calls[static_cast<std::size_t>(call)].without_grad;
    if (grad) register_post_backward(u, call);
    out_.mark(Word::EndPreForward, u.id);
  }
  for (UnitId target : u.forward_prefetch) gathering_.prefetch(run_.unit(target), TrainingState::Forward);  // F2-16
}

/// One call of the root ends and the next begins: it stands in the order of post-forwards between them (F2-11).
void Forward::call_root_again() {
  const UnitId id = run_.request.table.unit_of_module[0];
  if (!id.valid() || !run_.root_is_unit || run_.unit(id).module_count > 1) return;
  UnitState& root = run_.unit(id);
  const Phase before = out_.phase();
  out_.set_phase(Phase::PostForward);
  if (root.has_group) {
    out_.mark(Word::BeginPostForward, id);
    note_post_forward(root);
    out_.mark(Word::EndPostForward, id);
  }
  gathering_.drop_kept(id);
  iter_forward_root(root) = {};
  out_.set_phase(Phase::PreForward);
  root_pre_forward(root);
  if (root.has_group) {
    out_.mark(Word::BeginPreForward, id);
    gathering_.unshard(root, root.async_unshard);
    gathering_.wait_for_unshard(root);
    out_.mark(Word::EndPreForward, id);
  }
  out_.set_phase(before);
}

void Forward::note_post_forward(UnitState& u) {
  gathering_.reshard(u);
  u.post_forward_indices.push_back(static_cast<std::int32_t>(run_.post_forward_order.size()));
  run_.post_forward_order.push_back(u.id);
}

void Forward::cast_tensors(const std::vector<std::int32_t>& variables, DType dtype) {
  for (std::int32_t variable : variables) {
    Tensor& tensor = tensors_[static_cast<std::size_t>(variable)];
    if (tensor.dtype >= 0) tensor.dtype = static_cast<std::int8_t>(dtype);
  }
}

// F2-6.
void Forward::root_pre_forward(UnitState& u) {
  const bool first = !run_.initialised;
  if (!first && iter_forward_root(u).valid()) return;
  const Phase before = out_.phase();
  out_.set_phase(Phase::RootPreForward);
  out_.mark(Word::BeginRootPreForward, u.id);
  run_.lazy_init();
  iter_forward_root(u) = u.id;
  if (run_.post_optim_event.valid()) {
    out_.wait_event(Stream::C, run_.post_optim_event, u.id);
    out_.wait_event(Stream::A, run_.post_optim_event, u.id);
    run_.post_optim_event = {};
  } else {
    out_.wait_stream(Stream::C, Stream::D, u.id);
    out_.wait_stream(Stream::A, Stream::D, u.id);
  }
  out_.mark(Word::EndRootPreForward, u.id);
  out_.set_phase(before);
}

// F2-17: an autograd function over the call's inputs that require grad.
void Forward::register_post_backward(UnitState& u, std::int32_t call) {
  edges_.clear();
  const std::vector<std::int32_t>& inputs = run_.graph.calls[static_cast<std::size_t>(call)].inputs;
  for (std::int32_t input : inputs) {
    const Tensor& tensor = tensors_[static_cast<std::size_t>(input)];
    if (!tensor.requires_grad) continue;
    edges_.push_back(tensor.node == autograd::kNoNode ? autograd::Edge{} : autograd::Edge{tensor.node, tensor.slot});
  }
  if (edges_.empty()) return;
  const autograd::NodeIndex node =
      run_.autograd.add_node(PostBackward, u.id.value, Stream::D, static_cast<std::int32_t>(edges_.size()), edges_);
  std::int32_t slot = 0;
  for (std::int32_t input : inputs) {
    Tensor& tensor = tensors_[static_cast<std::size_t>(input)];
    if (!tensor.requires_grad) continue;
    tensor.node = node;
    tensor.slot = slot++;
  }
}

void Forward::state_post_forward(UnitState& u, std::int32_t call, Pass pass) {
  if (u.module_state == TrainingState::PreBackward) return;
  if (u.has_group) {
    out_.mark(Word::BeginPostForward, u.id);
    if (!run_.in_backward) note_post_forward(u);  // F2-11
    u.group_state = TrainingState::Idle;
    out_.mark(Word::EndPostForward, u.id);
  }
  const GraphCall& ran = run_.graph.calls[static_cast<std::size_t>(call)];
  const std::vector<std::int32_t>& outputs = ran.ends < 0 ? ran.outputs : ran.handed_on;
  const bool without_grad = region_ >= 0 && run_.regions[static_cast<std::size_t>(region_)].unit == u.id;
  if (region_ >= 0 && pass == Pass::Forward) run_.regions[static_cast<std::size_t>(region_)].within.push_back(u.id);
  if (pass == Pass::Forward && !without_grad) {
    for (std::int32_t output : outputs) {
      const Tensor& tensor = tensors_[static_cast<std::size_t>(output)];
      if (tensor.requires_grad && tensor.node != autograd::kNoNode)
        run_.autograd.add_hook(tensor.node, {0, u.id.value});
    }
  }
  u.module_state = TrainingState::Idle;
  if (iter_forward_root(u) == u.id) {
    gathering_.drop_kept(u.id);  // F2-8: the last buffer of this forward
    iter_forward_root(u) = {};
  }
  const std::optional<DType>& dtype = run_.request.table.precision[u.id.index()].output;
  if (!dtype) return;
  if (pass == Pass::Forward && !without_grad) add_casts(outputs, *dtype);
  cast_tensors(outputs, *dtype);
}

/// A cast is a node of its own: hooks of a unit around this one, whose output this is too, fire before this one's.
void Forward::add_casts(const std::vector<std::int32_t>& outputs, DType dtype) {
  for (const std::int32_t output : outputs) {
    Tensor& tensor = tensors_[static_cast<std::size_t>(output)];
    if (!tensor.requires_grad || tensor.node == autograd::kNoNode) continue;
    if (tensor.dtype < 0 || tensor.dtype == static_cast<std::int8_t>(dtype)) continue;
    const autograd::Edge made{tensor.node, tensor.slot};
    tensor.node = run_.autograd.add_node(Cast, -1, Stream::D, 1, std::span(&made, 1));
    tensor.slot = 0;
  }
}

// ---------------------------------------------------------------- recomputation

Result<void> Forward::recompute(std::int32_t region) {
  Region& made = run_.regions[static_cast<std::size_t>(region)];
  made.recomputed = true;
  const std::int32_t own = run_.graph.calls[static_cast<std::size_t>(made.call)].region;
  const bool to_its_end = made.reentrant || (own >= 0 && !run_.model.regions[static_cast<std::size_t>(own)].early_stop);
  last_saving_ = to_its_end ? -1 : last_saving_node(made.call);
  const std::int32_t outer = region_;
  region_ = region;
  Result<void> done = made.inside ? walk_body(made.call, Pass::Recompute) : walk(made.call, Pass::Recompute);
  region_ = outer;
  stop_recompute_ = false;
  return done;
}

}  // namespace foreshard::fsdp2
