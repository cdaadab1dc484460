#include "core/lowering/lowering_machine.h"

#include <algorithm>
#include <utility>

#include "core/lowering/lowering_opaque.h"
#include "core/lowering/mesh_rules.h"
#include "core/lowering/segment_autograd.h"
#include "core/model/call_order.h"

namespace foreshard {

namespace lowering {
namespace {

/// True where parameters of several floating types are used as they were created: the program computes in the first
/// one's type, so nothing cast them all.
bool keeps_own_dtypes(const Model& model) {
  if (model.params_cast) return false;
  const ParamInfo* first = nullptr;
  bool mixed = false;
  for (const ParamInfo& param : model.params) {
    if (!is_floating(param.dtype)) continue;
    if (first == nullptr) first = &param;
    mixed = mixed || param.dtype != first->dtype;
  }
  return mixed && first->dtype == model.compute_dtype;
}

/// A part of the model may compute in a dtype of its own, which its parameters are gathered in.
DType computed_dtype(const Model& model, const ParamInfo& info, bool own_dtypes) {
  if (!is_floating(info.dtype)) return info.dtype;
  if (info.gathered && is_floating(*info.gathered) && itemsize(*info.gathered) > 1) return *info.gathered;
  return own_dtypes ? info.dtype : model.compute_dtype;
}

Edge edge_of(const Tensor& tensor) { return tensor.requires_grad ? Edge{tensor.node, tensor.output_nr} : Edge{}; }

/// In place on a tensor with a history: it goes on.
void continue_history(Tape& tape, const Ref& of, std::vector<Ref>& results) {
  for (Ref& result : results) {
    const Tensor from = tape.at(of);
    Tensor& to = tape.at(result);
    to.requires_grad = from.requires_grad;
    to.node = from.node;
    to.output_nr = from.output_nr;
  }
}

/// Whether a TorchDispatchMode runs over the operator, in forward and in the recomputation of `frame`.
bool under_dispatch_mode(const Model& model, const Op& op, const CheckpointFrame* frame, const SavedOps& saved) {
  if (frame == nullptr || frame->reentrant) return false;
  if (op.region < 0 || frame->module.valid()) return !saved.none();
  return model.regions[static_cast<std::size_t>(op.region)].kind == Region::Kind::Operators;
}

/// How large cuDNN's reserve is, no rule can say.
void note_unknown(const OpRule& rule, const Op& op, std::vector<std::string>& unknown) {
  const bool guessed = rule.formula == OpFormula::Unknown || op.name.starts_with("aten._cudnn_rnn.");
  if (guessed && op.opaque < 0 && std::find(unknown.begin(), unknown.end(), op.name) == unknown.end())
    unknown.push_back(op.name);
}

/// A cache of a module's: written where the first step has made it. Every step makes it again here, which takes the
/// room for a moment.
void keep_for_run(Machine& machine, const Model& model, const Step& at, std::vector<Ref>& results) {
  Tape& tape = machine.tape;
  std::size_t next = 0;
  for (const ValueId id : model.ops[static_cast<std::size_t>(at.op)].out) {
    if (!id.valid() || next >= results.size()) continue;
    Ref& result = results[next++];
    if (model.values[id.index()].held.until != Hold::Until::Run) continue;
    const Storage& storage = tape.storage_of(result);
    if (storage.instance < 0) continue;
    machine.kept_for_run.push_back({at.instance, storage.bytes});
    const Tensor made = tape.at(result);
    Ref kept = tape.external(made.layout);
    Tensor& tensor = tape.at(kept);
    tensor.offset = made.offset;
    tensor.requires_grad = made.requires_grad;
    tensor.node = made.node;
    result = std::move(kept);
  }
}

}  // namespace

Machine::Machine(const Model& model, const Program& program, const std::vector<bool>& trainable,
                 const LoweringOptions& opts)
    : tape(program.instance_count),
      options(opts),
      model_(model),
      program_(program),
      trainable_(trainable),
      distributed_(model),
      packed_(*this, model, program, opts.offload),
      casts_(model, program, trainable, opts.keeps_casts),
      values_(model.values.size(), nodes_, [this](std::int32_t id) {
        Node& node = nodes_[static_cast<std::size_t>(id)];
        forget_saved(node);
        node.gone = true;
      }) {
  deaths_ = python_deaths(model, program);
  own_dtypes_ = keeps_own_dtypes(model);
  step_node_.assign(program.steps.size(), -1);
  nodes_.reserve(program.steps.size() + model.params.size() / 4 + 16);
  const CallOrder order(model);
  const auto op_of = [&](std::int32_t step) -> const Op& {
    return model.ops[static_cast<std::size_t>(program.steps[static_cast<std::size_t>(step)].op)];
  };
  const auto starts_over = [&](const CheckpointFrame& frame, std::int32_t step) {
    return frame.module.valid() && order.are_apart(frame.module, op_of(frame.first), op_of(step));
  };
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(program.steps.size()); ++i) {
    const std::int32_t region =
        program.checkpoint_region[static_cast<std::size_t>(program.steps[static_cast<std::size_t>(i)].instance)];
    if (region < 0) continue;
    if (frames_.empty() || frames_.back().region != region || frames_.back().last + 1 != i ||
        starts_over(frames_.back(), i)) {
      frames_.emplace_back();
      frames_.back().region = region;
      frames_.back().first = i;
      frames_.back().reentrant =
          program.reentrant[static_cast<std::size_t>(program.steps[static_cast<std::size_t>(i)].instance)];
      const Op& first = model.ops[static_cast<std::size_t>(program.steps[static_cast<std::size_t>(i)].op)];
      const bool early = first.region < 0 || model.regions[static_cast<std::size_t>(first.region)].early_stop;
      frames_.back().early_stop = early && !frames_.back().reentrant;
      frames_.back().module =
          program.region_module[static_cast<std::size_t>(program.steps[static_cast<std::size_t>(i)].instance)];
      for (const CheckpointFrame& frame : frames_) frames_.back().call += frame.module == frames_.back().module ? 1 : 0;
      --frames_.back().call;  // itself
    }
    frames_.back().last = i;
  }
}

std::int32_t Machine::name_id(std::string_view name) {
  const auto at = name_ids_.find(name);
  if (at != name_ids_.end()) return at->second;
  const auto id = static_cast<std::int32_t>(names.size());
  name_texts_.emplace_back(name);
  names.emplace_back(name);
  name_ids_.emplace(name_texts_.back(), id);
  return id;
}

CheckpointFrame* Machine::frame_of(std::int32_t step) {
  for (CheckpointFrame& frame : frames_)
    if (step >= frame.first && step <= frame.last) return &frame;
  return nullptr;
}

Ref& Machine::param(ParamId id, std::int32_t use) {
  const ParamId storage = model_.storage_of(id);
  const auto at = params_.find({storage.value, use});
  if (at != params_.end()) return at->second;
  const ParamInfo& info = model_.params[storage.index()];
  const DType dtype = computed_dtype(model_, info, own_dtypes_);
  set_param(storage, contiguous_layout(dims_of(info.shape), dtype), use);
  return params_.at({storage.value, use});
}

void Machine::set_param(ParamId storage, const Layout& layout, std::int32_t use) {
  Ref ref = tape.external(layout);
  if (storage.index() < trainable_.size() && trainable_[storage.index()]) {
    Node node;
    node.param = storage;
    node.out.push_back(tape.layout(ref));
    nodes_.push_back(std::move(node));
    Tensor& tensor = tape.at(ref);
    tensor.requires_grad = true;
    tensor.node = static_cast<std::int32_t>(nodes_.size() - 1);
  }
  packed_.note_param(ref);
  params_.emplace(std::pair(storage.value, use), std::move(ref));
}

std::vector<Ref> Machine::gather(const Op& op, std::unordered_map<std::int32_t, Ref>* local, CheckpointFrame* frame) {
  std::vector<Ref> args;
  const std::int32_t use = program_.use[tape.instance()];
  for_each_arg(op, [&](const Arg& arg) {
    if (const auto* value = std::get_if<ValueRef>(&arg.value)) {
      const std::int32_t id = program_.resolve(value->id);
      if (local != nullptr) {
        if (const auto at = local->find(id); at != local->end()) {
          args.push_back(at->second);
          return;
        }
        if (const auto at = frame->inputs.find(id); at != frame->inputs.end()) {
          args.push_back(at->second);
          return;
        }
      }
      const Ref* named = values_.find(id);
      if (named == nullptr)
        named = &values_.add(id, tape.external(layout_of(model_.values[static_cast<std::size_t>(id)])));
      args.push_back(*named);
    } else if (const auto* parameter = std::get_if<ParamRef>(&arg.value)) {
      args.push_back(param(parameter->id, use));
    } else if (const auto* buffer = std::get_if<BufferRef>(&arg.value)) {
      auto at = buffers_.find(buffer->index);
      if (at == buffers_.end()) {
        const BufferInfo& info = model_.buffers[static_cast<std::size_t>(buffer->index)];
        at = buffers_.emplace(buffer->index, tape.external(contiguous_layout(dims_of(info.shape), info.dtype))).first;
      }
      args.push_back(at->second);
    }
  });
  return args;
}

std::vector<Layout> Machine::result_layouts(const Op& op) const {
  std::vector<Layout> layouts;
  for (const ValueId id : op.out) {
    if (!id.valid()) continue;
    const ValueInfo& info = model_.values[id.index()];
    // A known operator lays its results out by its own rule.
    layouts.push_back(op.opaque >= 0 ? layout_of(info) : contiguous_layout(dims_of(info.shape), info.dtype));
  }
  return layouts;
}

std::vector<Ref> Machine::run_op(std::int32_t step, std::vector<Ref>& args) {
  const Step& at = program_.steps[static_cast<std::size_t>(step)];
  const Op& op = model_.ops[static_cast<std::size_t>(at.op)];
  Emitter emit(*this, &op, at.op);
  if (op.opaque >= 0)
    return opaque_forward(emit, model_.opaques[static_cast<std::size_t>(op.opaque)], args, result_layouts(op));
  Ref* const kept = casts_.find(op);
  if (kept != nullptr && *kept) return {*kept};
  std::vector<Ref> results = forward_op(emit, rule_of(step), op, args, result_layouts(op));
  if (kept != nullptr) *kept = results.front();
  return results;
}

/// _scaled_dot_product_attention_math adds the mask to its product in place (programs are written without writes), but
/// not where a mode may replace tensors (at::areAnyTensorSubclassLike).
const OpRule& Machine::rule_of(std::int32_t step) {
  static const OpRule* const in_place = find_op_rule("aten.add_.Tensor");
  const auto op_at = [this](std::size_t i) -> const Op& {
    return model_.ops[static_cast<std::size_t>(program_.steps[i].op)];
  };
  const auto i = static_cast<std::size_t>(step);
  const OpRule& own = *program_.steps[i].rule;
  if (options.cpu_threads > 0 || i < 2 || i + 1 >= program_.steps.size() || op_at(i).name != "aten.add.Tensor" ||
      op_at(i + 1).name != "aten._safe_softmax.default")
    return own;
  const std::string_view product = op_at(i - 1).name;  // _unsafe_view of a bmm
  return product == "aten._unsafe_view.default" && op_at(i - 2).name == "aten.bmm.default" &&
                 !under_dispatch_mode(model_, op_at(i), frame_of(step), options.saved)
             ? *in_place
             : own;
}

// ----------------------------------------------------------------------------------------------------------------
// forward

/// A result that a script makes a leaf of. The node that accumulates its gradient names it until the graph goes.
void Machine::begin_gradients(const Op& op, std::vector<Ref>& results) {
  std::size_t next = 0;
  for (const ValueId id : op.out) {
    if (!id.valid() || next >= results.size()) continue;
    const Ref& made = results[next++];
    Tensor& tensor = tape.at(made);
    if (!model_.values[id.index()].requires_grad || !is_floating(tensor.layout.dtype)) continue;
    Node node;
    node.out.push_back(tensor.layout);
    tensor.requires_grad = true;
    tensor.node = static_cast<std::int32_t>(nodes_.size());
    node.saved.push_back({made, false, true, 0, 0, {}});
    nodes_.push_back(std::move(node));
    values_.life().add(tensor.node);
  }
}

void Machine::record(std::int32_t step, const std::vector<Ref>& args, std::vector<Ref>& results) {
  const Step& at = program_.steps[static_cast<std::size_t>(step)];
  const OpRule& rule = rule_of(step);
  const Op& op = model_.ops[static_cast<std::size_t>(at.op)];
  if (is_constant(rule) && rule.form != OpForm::InPlace) return begin_gradients(op, results);
  if (casts_.find(op) != nullptr && tape.at(results.front()).requires_grad) return;  // kept, with its history
  bool wanted = false;
  for (const Ref& arg : args) wanted = wanted || tape.at(arg).requires_grad;
  CheckpointFrame* frame = frame_of(step);
  if (frame != nullptr && frame->without_grad) wanted = false;
  if (op.opaque >= 0 && (!wanted || frame != nullptr)) {
    Emitter emit(*this, &op, at.op);
    opaque_unsaved(emit, model_.opaques[static_cast<std::size_t>(op.opaque)]);
  }
  if (!wanted) return begin_gradients(op, results);
  if (is_constant(rule)) return continue_history(tape, args[0], results);
  Node node;
  node.rule = &rule;
  node.op = &op;
  node.position = step;
  for (const Ref& arg : args) {
    node.next.push_back(edge_of(tape.at(arg)));
    node.in.push_back(tape.layout(arg));
  }
  bool any = false;
  for (const Ref& result : results) {
    node.out.push_back(tape.layout(result));
    any = any || is_floating(tape.layout(result).dtype);
  }
  if (!any) return;
  if (frame != nullptr) node.frame = static_cast<std::int32_t>(frame - frames_.data());
  if (op.opaque >= 0) save_opaque(node, step, args, results);
  if (op.opaque < 0) save_by_rule(node, step, args, results);
  const auto id = static_cast<std::int32_t>(nodes_.size());
  step_node_[static_cast<std::size_t>(step)] = id;
  nodes_.push_back(std::move(node));
  values_.life().add(id);
  for (std::size_t i = 0; i < results.size(); ++i) {
    Tensor& tensor = tape.at(results[i]);
    if (!has_gradient(rule, i, tensor.layout.dtype)) continue;
    if (rule.form == OpForm::ExpandEach && i < args.size() && !tape.at(args[i]).requires_grad) continue;
    tensor.requires_grad = true;
    tensor.node = id;
    tensor.output_nr = static_cast<std::int32_t>(i);
  }
}

void Machine::save_by_rule(Node& node, std::int32_t step, const std::vector<Ref>& args,
                           const std::vector<Ref>& results) {
  CheckpointFrame* frame = frame_of(step);
  std::uint8_t wants = 0;
  for (std::size_t i = 0; i < args.size() && i < 8; ++i)
    if (tape.at(args[i]).requires_grad) wants = static_cast<std::uint8_t>(wants | 1U << i);
  for_each_save(*node.rule, *node.op, args.size(), results.size(), wants, [&](const SaveRule& save) {
    const auto& from = save.result ? results : args;
    Saved saved;
    saved.result = save.result;
    saved.index = save.index;
    // The copy precedes the packing, so checkpointed regions make it too, but for a reentrant one's forward: no graph.
    const Ref copy = frame != nullptr && frame->reentrant ? Ref() : written_over(step, saved, args);
    if (frame == nullptr && packed_.travels(*node.op))
      saved = !save.result && !copy ? packed_.take(save)
                                    : packed_.pack(*node.op, *node.rule, save, copy ? copy : from[save.index]);
    else if (frame == nullptr)
      saved.tensor = copy ? copy : from[save.index];
    else
      promise(*frame, saved, step, is_function(rule_of(step).formula));
    node.saved.push_back(std::move(saved));
  });
}

/// A view that is written has no history of its own: autograd gives it to the tensor that it is a view of, and later
/// views of that one see it (CopySlices).
void Machine::rebase(std::int32_t step, const std::unordered_map<std::int32_t, std::int32_t>& made_at) {
  const std::int32_t node_id = step_node_[static_cast<std::size_t>(step)];
  const auto first_value = [](const Op& op) {
    const auto* value = op.args.empty() ? nullptr : std::get_if<ValueRef>(&op.args.front().value);
    return value == nullptr ? ValueId() : value->id;
  };
  const auto op_at = [this](std::int32_t i) -> const Op& {
    return model_.ops[static_cast<std::size_t>(program_.steps[static_cast<std::size_t>(i)].op)];
  };
  ValueId written = first_value(op_at(step));
  if (node_id < 0 || !written.valid()) return;
  std::int32_t base = program_.resolve(written);
  const std::int32_t view = base;
  for (auto made = made_at.find(base); made != made_at.end(); made = made_at.find(base)) {
    const Step& maker = program_.steps[static_cast<std::size_t>(made->second)];
    const ValueId from = first_value(op_at(made->second));
    if (!is_view_form(maker.rule->form) || maker.rule->formula == OpFormula::None || !from.valid()) break;
    if (maker.rule->name.find("unsafe_") != std::string_view::npos) break;  // no view to autograd
    base = program_.resolve(from);
  }
  const Ref* const root = values_.find(base);
  if (base == view || root == nullptr) return;
  Node& node = nodes_[static_cast<std::size_t>(node_id)];
  node.base = tape.layout(*root);
  const Edge before = edge_of(tape.at(*root));
  values_.life().redirect(node_id, 0, before.node);
  node.next[0] = before;
  Tensor& tensor = tape.at(*root);
  tensor.requires_grad = true;
  tensor.node = node_id;
  tensor.output_nr = 0;
  values_.continue_through(base, node_id);
}

void Machine::promise(CheckpointFrame& frame, Saved& saved, std::int32_t step, bool function) {
  saved.promised = true;
  ++frame.promises;
  frame.stop_step = frame.early_stop ? step : frame.last;
  frame.stop_before_kernel = frame.early_stop && !saved.result && !function;
}

/// What an operator in place writes over and autograd wants is copied; nothing for other tensors.
Ref Machine::written_over(std::int32_t step, const Saved& saved, const std::vector<Ref>& args) {
  const Step& at = program_.steps[static_cast<std::size_t>(step)];
  const Op& op = model_.ops[static_cast<std::size_t>(at.op)];
  if (op.opaque >= 0 || saved.result || saved.index != 0 || rule_of(step).form != OpForm::InPlace) return {};
  Emitter emit(*this, &op, at.op);
  const Layout given = tape.layout(args[0]), *const one[] = {&given};  // of a view with gaps: without them
  return emit.fresh("aten.clone.default", KernelClass::Copy, elementwise_layout(one, given.sizes, given.dtype),
                    {&args[0]});
}

Ref Machine::saved_tensor(const Op& op, const Saved& saved, const std::vector<Ref>& args,
                          const std::vector<Ref>& results) {
  if (saved.index >= 0) {
    const auto& from = saved.result ? results : args;
    return static_cast<std::size_t>(saved.index) < from.size() ? from[static_cast<std::size_t>(saved.index)] : Ref();
  }
  std::int32_t own = 0;
  for (const OpaqueOp::Saved& kept : model_.opaques[static_cast<std::size_t>(op.opaque)].saved) {
    if (kept.value.valid() || --own != saved.index) continue;
    Emitter emit(*this, &op, static_cast<std::int32_t>(&op - model_.ops.data()));
    return opaque_saved(emit, kept);
  }
  return {};
}

/// The policy of selective checkpointing. A region of the model's own names its operators.
bool Machine::keeps(const Op& op, CheckpointFrame& frame) const {
  if (op.region >= 0 && !frame.reentrant && !frame.module.valid()) {
    const Region& region = model_.regions[static_cast<std::size_t>(op.region)];
    const auto number = static_cast<std::int32_t>(&op - model_.ops.data());
    return std::find(region.save.begin(), region.save.end(), number) != region.save.end() ||
           keeps_collective(region, op);
  }
  return keeps_listed(options.saved, frame, dispatched_name(op));
}

void Machine::forward() {
  std::unordered_map<std::int32_t, std::int32_t> made_at;
  for (const ValueId id : model_.inputs) values_.add(id.value, tape.external(layout_of(model_.values[id.index()])));
  for (std::int32_t step = 0; step < static_cast<std::int32_t>(program_.steps.size()); ++step) {
    const Step& at = program_.steps[static_cast<std::size_t>(step)];
    const Op& op = model_.ops[static_cast<std::size_t>(at.op)];
    forward_step_ = step;
    tape.begin(static_cast<std::size_t>(at.instance), PassKind::Forward);
    note_unknown(*at.rule, op, unknown_ops);
    CheckpointFrame* frame = frame_of(step);
    std::vector<Ref> args = gather(op, nullptr, frame);
    if (frame != nullptr && step == frame->first) hold_arguments(*frame, op, made_at);
    if (frame != nullptr) {  // the region holds what it was called with: values made before it
      for_each_arg(op, [&](const Arg& arg) {
        const auto* value = std::get_if<ValueRef>(&arg.value);
        if (value == nullptr) return;
        const std::int32_t id = program_.resolve(value->id);
        const auto made = made_at.find(id);
        if (frame->packed.count(id) > 0 || (made != made_at.end() && made->second >= frame->first)) return;
        frame->inputs.try_emplace(id, *values_.find(id));
        if (made != made_at.end() && frame_of(made->second) != nullptr) frame->handed_on.insert(id);
        packed_.pack_input(*frame, op, id);
      });
    }
    wait_for(args);
    if (frame == nullptr) packed_.pack_arguments(op, rule_of(step), args);
    inside.enter(frame, op, step, false);
    std::vector<Ref> results = run_op(step, args);
    inside.leave();
    keep_for_run(*this, model_, at, results);
    record(step, args, results);
    if (at.rule->form == OpForm::InPlace) rebase(step, made_at);
    if (frame != nullptr && keeps(op, *frame)) frame->kept.emplace(step, results);
    if (frame != nullptr && options.keep_only_needed && step == frame->last)
      frame->kept.erase(frame->stop_before_kernel ? frame->kept.lower_bound(frame->stop_step)
                                                  : frame->kept.upper_bound(frame->stop_step),
                        frame->kept.end());
    std::size_t next = 0;
    for (const ValueId id : op.out) {
      if (!id.valid() || next >= results.size()) continue;
      made_at[id.value] = step;
      Ref& result = results[next++];
      const std::int32_t node = edge_of(tape.at(result)).node;
      values_.bind(id.value, std::move(result), node);
    }
    args.clear();
    results.clear();
    values_.life().settle(step_node_[static_cast<std::size_t>(step)]);
    for (const std::int32_t made : released_by(model_, op, program_, made_at))
      if (const std::int32_t node = step_node_[static_cast<std::size_t>(made)]; node >= 0)
        forget_saved(nodes_[static_cast<std::size_t>(node)]);
    for (const std::int32_t dead : deaths_[static_cast<std::size_t>(step)]) values_.unbind(dead);
    const bool returns = !(frame != nullptr && frame->reentrant) || frame->without_grad;
    if (frame != nullptr && returns && step == frame->last && frame->promises == 0) release(*frame);
    if (casts_.ends(step)) casts_.clear();
  }
  forward_step_ = -1;
  hand_over(made_at);
  tape.end();
}

/// What the caller goes on naming when the forward has returned: the loss, what was returned beside it, and what the
/// script names. Everything else goes.
void Machine::hand_over(const std::unordered_map<std::int32_t, std::int32_t>& made_at) {
  const auto keep = [this](std::int32_t id) {
    if (const Ref* const ref = values_.find(id)) {
      values_.hand_on(id);
      outputs_.push_back(*ref);
    }
  };
  for (std::size_t i = 0; i < model_.outputs.size() && (i == 0 || options.hold_outputs); ++i)
    keep(program_.resolve(model_.outputs[i]));
  const std::vector<std::int32_t> rest = values_.sorted();
  for (const std::int32_t id : rest) {
    const Hold& hold = model_.values[static_cast<std::size_t>(id)].held;
    if (!outlives_backward(hold) || made_at.count(id) == 0) continue;
    keep(id);
    if (hold.until == Hold::Until::Next) until_next_.emplace_back(outputs_.back(), hold.op);
  }
  for (const std::int32_t id : rest) values_.unbind(id);
}

std::vector<Machine::Kept> Machine::kept() {
  std::vector<Kept> out;
  std::vector<bool> framed(frames_.size(), false);
  const auto add = [&](std::int32_t step, const Ref& ref, bool kwarg) {
    const std::int32_t storage = tape.at(ref).storage;
    out.push_back(
        {step, storage, tape.storage_of(ref).bytes, tape.storage_of(ref).instance >= 0, tape.layout(ref), kwarg});
  };
  for (const Node& node : nodes_) {
    if (node.rule == nullptr) continue;
    if (node.frame >= 0 && !framed[static_cast<std::size_t>(node.frame)]) {
      framed[static_cast<std::size_t>(node.frame)] = true;
      CheckpointFrame& frame = frames_[static_cast<std::size_t>(node.frame)];
      std::vector<std::int32_t> ids;
      for (const auto& [id, ref] : frame.inputs) ids.push_back(id);
      std::sort(ids.begin(), ids.end());
      for (const std::int32_t id : ids)
        add(frame.first, frame.inputs.at(id),
            !tape.at(frame.inputs.at(id)).requires_grad && frame.handed_on.count(id) == 0);
    }
    for (const Saved& saved : node.saved)
      if (saved.tensor) add(node.position, saved.tensor, false);
  }
  return out;
}

}  // namespace lowering
}  // namespace foreshard
