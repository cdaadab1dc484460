#include "core/plan/fsdp1/forward.h"

#include <algorithm>

#include "core/plan/graph/inner_gradients.h"
#include "core/plan/graph/training_begins.h"

namespace foreshard::fsdp1 {

using autograd::kNoNode;

Forward::Forward(Run& run, Gathering& gathering, Gradients& gradients)
    : run_(run), out_(run.out), gathering_(gathering), gradients_(gradients) {
  layers_.reserve(run.graph.nodes.size());
  for (const GraphNode& node : run.graph.nodes) layers_.push_back(layer_of(node));
  engine_reads_ = params_of_inner_gradients(run.model, run.graph);
  env_.resize(run.graph.tensors.size());
  unmanaged_.assign(run.model.params.size(), kNoNode);
}

void Forward::forget_graph() { unmanaged_.assign(unmanaged_.size(), kNoNode); }

void Forward::run(bool rest) {
  if (run_.graph.calls.empty()) return;
  first_step_ = first_step(run_.graph, run_.job.fsdp, rest);
  if (run_.summoned) return run_.fail("AssertionError", "a forward inside summon (T1)");
  out_.set_phase(Phase::Forward);
  frame_ = -1;
  env_.assign(env_.size(), Tensor{});  // nodes of the pass before are other nodes now
  hooked_outputs_.assign(env_.size(), false);
  bind_inputs();
  if (!run_call(0)) return;
  if (run_.graph.loss >= 0 && !run_node(run_.graph.loss)) return;
  const std::vector<std::int32_t>& made = run_.graph.loss >= 0
                                              ? run_.graph.nodes[static_cast<std::size_t>(run_.graph.loss)].outputs
                                              : run_.graph.calls.front().outputs;
  if (!run_.grad_enabled) {
    // Trap 7: what this forward leaves gathered, the next one does not gather again.
    for (const UnitState& u : run_.units) {
      if (u.full) run_.note_trap(7, &u);
    }
    return;
  }
  std::vector<Tensor> outputs;
  for (const std::int32_t output : made) outputs.push_back(env_[static_cast<std::size_t>(output)]);
  run_.pending_outputs.push_back(std::move(outputs));
}

// R5, M8: floating inputs arrive in the root's parameter type.
void Forward::bind_inputs() {
  std::optional<DType> cast;
  if (run_.root_is_unit && !run_.request.table.precision.empty()) cast = run_.request.table.precision.front().param;
  const std::vector<std::int32_t>& inputs = run_.graph.calls.front().inputs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::int32_t input = inputs[i];
    const GraphTensor& variable = run_.graph.tensors[static_cast<std::size_t>(input)];
    const ValueId value =
        variable.value.valid() || i >= run_.model.inputs.size() ? variable.value : run_.model.inputs[i];
    Tensor& tensor = env_[static_cast<std::size_t>(input)];
    tensor = {};
    tensor.dtype = value.valid() ? run_.model.values[value.index()].dtype : DType::Float32;
    if (variable.requires_grad && run_.grad_enabled)
      tensor.node = run_.autograd.add_accumulation(kInput, input, Stream::D);
    const bool forced = !run_.training && run_.job.fsdp.full_precision_in_eval;
    if (cast && !forced && is_floating(tensor.dtype) && tensor.dtype != *cast) {
      tensor.dtype = *cast;
      if (tensor.requires_grad()) {
        const autograd::Edge edge = tensor.edge();
        tensor = {run_.autograd.add_node(kKernel, -1, Stream::D, 1, {&edge, 1}), 0, *cast};
      }
    }
  }
}

void Forward::root_pre_forward(UnitState& root) {
  out_.enter(Phase::RootPreForward, root);
  gathering_.lazy_init(root);
  if (run_.job.fsdp.forward_prefetch) {
    for (UnitState& u : run_.units) {
      if (!run_.is_of_root(u, root)) continue;
      u.needs_pre_forward = u.has_handle;
      u.prefetched = false;
    }
  }
  out_.wait_stream(Stream::U, Stream::D, root);
  out_.wait_stream(Stream::Q, Stream::D, root);
  gradients_.reset_flags(root);
}

void Forward::pre_forward(UnitState& u, const GraphCall& call) {
  if (u.is_root) root_pre_forward(u);
  out_.enter(Phase::PreForward, u);
  if (u.has_handle && u.state == HandleState::BackwardPre) {  // R8: recomputation inside the unit's own backward
    out_.mark(MarkName::Skip, u);
    return;
  }
  u.busy = true;
  if (u.has_handle) {
    RootOrder& order = run_.order_of(u);
    if (order.iteration == 0 && u.pre_index < 0) {  // O1, O3
      u.pre_index = static_cast<std::int32_t>(order.pre_order.size());
      order.pre_order.push_back(u.id);
    }
    u.state = HandleState::Forward;
    if (!u.prefetched) gathering_.unshard(u, Stream::Q, Stream::U);
    u.needs_pre_forward = false;
    if (u.unshard_event.valid()) {  // R18
      out_.wait_event(Stream::D, Stream::U, u.unshard_event, u);
      u.unshard_event = {};
    } else {
      out_.wait_stream(Stream::D, Stream::U, u);
    }
    gathering_.prefetch_forward(u);
    register_post_backward(u);
    register_reshard_only(u, call);
  }
}

// R9: once, until finalisation; the node that this use's views hang on.
void Forward::register_post_backward(UnitState& u) {
  if (!run_.grad_enabled || u.hooked || !u.unit->requires_grad) return;
  run_.autograd.skip_number();  // the expand that finds the node
  u.hook_node = gathering_.accumulation(u, Stream::D);
  u.hooked = true;
}

// R11: torch.autograd.grad in the midst of the root's forward goes back through units whose outputs have a hook each:
// they are gathered, and stay so until their post-backward, because the final callback is the root's to queue.
void Forward::gather_for_engine(std::int32_t node) {
  if (engine_reads_.empty() || recompute_depth_ > 0 || !run_.grad_enabled) return;
  for (const ParamId param : engine_reads_[static_cast<std::size_t>(node)]) {
    const std::int32_t place = run_.place_of_param[param.index()].unit;
    if (place < 0) continue;
    UnitState& u = run_.units[static_cast<std::size_t>(place)];
    if (!u.has_handle || u.is_root || u.busy || u.ran_pre_backward) continue;
    u.busy = true;
    gathering_.gather_for_backward(u);
    if (run_.failed()) return;
    gradients_.prepare(u);
    u.ran_pre_backward = true;
  }
}

// R14: a frozen unit is resharded when the gradients of its inputs are done.
void Forward::register_reshard_only(UnitState& u, const GraphCall& call) {
  if (!run_.grad_enabled || u.hooked || u.unit->requires_grad) return;
  ReshardGroup group;
  group.unit = u.id.value;
  const auto index = static_cast<std::int32_t>(run_.reshard_groups.size());
  for (const std::int32_t input : call.inputs) {
    const Tensor& tensor = env_[static_cast<std::size_t>(input)];
    if (!tensor.requires_grad()) continue;
    group.nodes.push_back(tensor.node);
    run_.autograd.add_hook(tensor.node, {kReshardOnly, index});
  }
  run_.reshard_groups.push_back(std::move(group));
  u.reshard_group = index;
  u.hooked = true;
}

void Forward::post_forward(UnitState& u, const std::vector<std::int32_t>& outputs) {
  out_.enter(Phase::PostForward, u);
  if (u.has_handle && u.state == HandleState::BackwardPre) {
    out_.mark(MarkName::Skip, u);
    out_.set_phase(Phase::Forward);
    return;
  }
  if (u.has_handle) {
    // O3: a unit whose index is 0 counts as not indexed and gets the last index again.
    std::vector<UnitId>& post_order = run_.order_of(u).post_order;
    if (u.post_index <= 0) u.post_index = static_cast<std::int32_t>(post_order.size());
    post_order.push_back(u.id);
    gathering_.reshard(u, u.frees_after_forward, Stream::D);
  }
  if (run_.grad_enabled) {
    if (u.is_root) run_.order_of(u).callback_queued = false;
    if (u.has_handle) u.needs_pre_backward = u.ran_pre_backward = false;
    for (const std::int32_t output : outputs) {
      const Tensor& tensor = env_[static_cast<std::size_t>(output)];
      if (!tensor.requires_grad()) continue;
      if (u.is_root && hooked_outputs_[static_cast<std::size_t>(output)]) continue;  // by an earlier call
      if (u.is_root) hooked_outputs_[static_cast<std::size_t>(output)] = true;
      run_.autograd.add_hook(tensor.node, {kPreBackward, u.id.value});
      u.needs_pre_backward = u.has_handle;
    }
  }
  u.busy = false;
  u.state = HandleState::Idle;
  out_.set_phase(Phase::Forward);
}

// Where the checkpoint wrapper stands decides whether the unit's hooks run again in recomputation (P9).
bool Forward::run_call(std::int32_t call_index) {
  const GraphCall& call = run_.graph.calls[static_cast<std::size_t>(call_index)];
  if (call.checkpoint != CheckpointKind::None && !call.checkpoint_inside) return run_checkpointed(call_index, true);
  return run_hooked(call_index);
}

bool Forward::run_hooked(std::int32_t call_index) {
  const GraphCall& call = run_.graph.calls[static_cast<std::size_t>(call_index)];
  const bool enabled = run_.grad_enabled;
  // Of the root's calls the first that runs.
  const auto skipped = call_index == 0 && first_step_ > 0
                           ? std::upper_bound(call.again.begin(), call.again.end(), first_step_) - call.again.begin()
                           : 0;
  run_.grad_enabled =
      enabled && !(call.calls_without_grad.empty() ? call.without_grad
                                                   : call.calls_without_grad[static_cast<std::size_t>(skipped)]);
  if (call_index == 0) script_grad_ = enabled;
  const bool done = run_between_hooks(call_index);
  run_.grad_enabled = enabled;
  return done;
}

bool Forward::run_between_hooks(std::int32_t call_index) {
  const GraphCall& call = run_.graph.calls[static_cast<std::size_t>(call_index)];
  UnitState* u = run_.unit_of_module(call.hooked());
  if (u != nullptr) pre_forward(*u, call);
  out_.set_phase(Phase::Forward);
  const bool inside = call.checkpoint != CheckpointKind::None && call.checkpoint_inside;
  if (!(inside ? run_checkpointed(call_index, false) : run_body(call_index))) return false;
  if (u != nullptr && call.ends < 0) post_forward(*u, call.outputs);
  return true;
}

/// Where the script calls the root again, or parts of it by themselves behind its last call.
void Forward::root_calls_between(const GraphCall& call, std::size_t step) {
  UnitState* const root = run_.unit_of_module(call.hooked());
  const auto at = static_cast<std::int32_t>(step);
  const auto again = std::find(call.again.begin(), call.again.end(), at);
  if (again != call.again.end()) {
    if (root != nullptr) post_forward(*root, call.outputs);
    run_.grad_enabled =
        script_grad_ && !call.calls_without_grad[static_cast<std::size_t>(again - call.again.begin()) + 1];
    if (root != nullptr) pre_forward(*root, call);
  }
  if (call.ends == at) {
    if (root != nullptr) post_forward(*root, call.handed_on);
    run_.grad_enabled = script_grad_;
  }
  out_.set_phase(Phase::Forward);
}

bool Forward::run_body(std::int32_t call_index) {
  const GraphCall& call = run_.graph.calls[static_cast<std::size_t>(call_index)];
  const std::int32_t first = call_index == 0 ? first_step_ : 0;
  for (auto i = static_cast<std::size_t>(first); i < call.steps.size(); ++i) {
    const GraphStep& step = call.steps[i];
    const bool begins = first > 0 && static_cast<std::int32_t>(i) == first;
    if (call_index == 0 && !begins && (call.ends >= 0 || !call.again.empty())) root_calls_between(call, i);
    const std::vector<std::int32_t>& only = step.iterations;
    if (!only.empty() && std::find(only.begin(), only.end(), run_.script_iteration) == only.end()) continue;
    if (!run_step(step)) return false;
  }
  return true;
}

bool Forward::run_step(const GraphStep& step) {
  if (!step.is_call) return run_node(step.index);
  const GraphCall& call = run_.graph.calls[static_cast<std::size_t>(step.index)];
  for (std::size_t i = 0; i < call.inputs.size() && i < call.arguments.size(); ++i) {
    env_[static_cast<std::size_t>(call.inputs[i])] = env_[static_cast<std::size_t>(call.arguments[i])];
  }
  if (!run_call(step.index)) return false;
  for (std::size_t i = 0; i < call.outputs.size() && i < call.results.size(); ++i) {
    env_[static_cast<std::size_t>(call.results[i])] = env_[static_cast<std::size_t>(call.outputs[i])];
  }
  return true;
}

}  // namespace foreshard::fsdp1
