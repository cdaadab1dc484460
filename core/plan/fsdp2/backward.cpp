// Backward: which hook fires when (F2-14, F2-15, F2-17), and the final callback (F2-19). The order is autograd's
// (core/plan/autograd.h); everything runs on D.
#include <algorithm>

#include "core/model/module_kind.h"
#include "core/plan/fsdp2/fsdp2_runtime.h"

namespace foreshard::fsdp2 {

Result<void> Fsdp2Runtime::backward(const std::vector<autograd::Edge>& roots) {
  if (roots.empty()) {
    return fail({ErrorCode::Inconsistent,
                 "backward of an output that requires no gradient",
                 {},
                 "train.script",
                 "an output that a trainable parameter reaches",
                 "every parameter on its way is frozen",
                 "see fsdp.frozen"});
  }
  out_.set_phase(Phase::Backward);
  in_backward_ = true;
  for (Region& region : regions_) region.recomputed = false;
  Result<void> done = run_pass(roots);
  in_backward_ = false;
  if (!done) return done;
  if (final_callback_queued_) done = final_callback();
  out_.set_phase(Phase::None);
  return done;
}

Result<void> Fsdp2Runtime::run_pass(const std::vector<autograd::Edge>& roots) {
  const autograd::PassId pass = autograd_.begin_pass(roots, Stream::D);
  Result<void> done;
  autograd::NodeIndex node = autograd::kNoNode;
  for (;;) {
    actions_.clear();
    node = autograd_.next(pass, actions_);
    if (node == autograd::kNoNode) break;
    if (autograd_.has_hooks(node)) {
      autograd_.for_each_hook(node,
                              [&](autograd::Hook hook) { pre_backward(units_[static_cast<std::size_t>(hook.data)]); });
    }
    const std::int32_t data = autograd_.data(node);
    switch (autograd_.kind(node)) {
      case kCompute: done = run_backward_node(executions_[static_cast<std::size_t>(data)]); break;
      case kPostBackward: done = post_backward(units_[static_cast<std::size_t>(data)]); break;
      case kAccumulate: accumulate_grad(data); break;
      default: break;
    }
    if (!done) break;
    for (std::size_t i = 0; i < autograd_.edges(node).size(); ++i) {
      actions_.clear();
      autograd_.send(pass, node, i, true, actions_);
      const autograd::NodeIndex target = autograd_.edges(node)[i].node;
      if (target != autograd::kNoNode && autograd_.kind(target) == kAccumulate) {
        contribute(autograd_.data(target), executions_[static_cast<std::size_t>(data)], i);
      }
    }
  }
  actions_.clear();
  autograd_.end_pass(pass, Stream::D, actions_);
  return done;
}

Result<void> Fsdp2Runtime::run_backward_node(const Execution& execution) {
  const GraphNode& node = graph_.nodes[static_cast<std::size_t>(execution.node)];
  if (execution.region >= 0 && !regions_[static_cast<std::size_t>(execution.region)].recomputed &&
      node_autograd_.saves(execution.node)) {
    recompute(execution.region);
  }
  for (ParamId param : node.params) {
    const ParamSlot& place = slots_[static_cast<std::size_t>(slot_of_param_[param.index()])];
    if (!place.unit.valid()) continue;
    const UnitState& owner = unit(place.unit);
    if (owner.unshard_in_backward || owner.sharded == ShardedState::Unsharded || !reads_param(execution.node, param))
      continue;
    return fail({ErrorCode::Inconsistent,
                 "backward needs parameters that set_unshard_in_backward(False) leaves sharded",
                 {},
                 "unit \"" + plan_.units[place.unit.index()].name + "\"",
                 "a unit whose backward reads no parameter, such as an embedding",
                 "module \"" + node.label + "\"",
                 "leave set_unshard_in_backward at True for this unit (F2-24)"});
  }
  Instruction& run =
      out_.add(InstructionKind::Backward, Stream::D, unit_of_node_[static_cast<std::size_t>(execution.node)]);
  run.segment = SegmentId(execution.node);
  run.arg = execution.input_grad ? 1 : 0;
  return {};
}

/// Backward needs the value of this parameter.
bool Fsdp2Runtime::reads_param(std::int32_t index, ParamId param) {
  const GraphNode& node = graph_.nodes[static_cast<std::size_t>(index)];
  if (node.kind == GraphNode::Kind::Leaf) return kind_of(model_.modules[node.module.index()]) != ModuleKind::Embedding;
  return node.kind != GraphNode::Kind::Ops || node_autograd_.reads(index, param);
}

/// A segment made a piece of a parameter's gradient, under the name it uses it by. Of two pieces one goes: the one of a
/// tied parameter's later name, if there is one.
void Fsdp2Runtime::contribute(std::int32_t slot, const Execution& execution, std::size_t edge) {
  const GraphNode& node = graph_.nodes[static_cast<std::size_t>(execution.node)];
  std::size_t k = node.inputs.size();  // edges: inputs first, then the trainable parameters
  ParamId name;
  for (const ParamId param : node.params) {
    if (!slots_[static_cast<std::size_t>(slot_of_param_[param.index()])].trainable) continue;
    if (k++ == edge) name = param;
  }
  ParamId& piece = pieces_[static_cast<std::size_t>(slot)];
  const ParamId kept = slots_[static_cast<std::size_t>(slot)].param;
  if (!piece.valid()) {
    piece = name;
    return;
  }
  const ParamId dropped = piece != kept ? piece : name;
  if (name == kept) piece = kept;
  add_piece(slot, dropped);
}

/// Two pieces become one; backward segments made both.
void Fsdp2Runtime::add_piece(std::int32_t slot, ParamId dropped) {
  const ParamSlot& place = slots_[static_cast<std::size_t>(slot)];
  const ParamInfo& info = model_.params[place.param.index()];
  const DType dtype =
      place.unit.valid() ? unit(place.unit).params[static_cast<std::size_t>(place.index)].dtype : info.dtype;
  Instruction& add =
      out_.kernel(InstructionKind::Accumulate, Stream::D, Word::AddInPlace, place.unit, numel_of(info.shape), dtype);
  add.buffer = {BufferWhat::Grad, place.unit, place.param};
  add.origin = Origin::Autograd;
  out_.free({BufferWhat::Grad, place.unit, dropped}, Stream::D, add.bytes);
}

void Fsdp2Runtime::accumulate_grad(std::int32_t slot) {
  ParamSlot& place = slots_[static_cast<std::size_t>(slot)];
  bool& held =
      place.unit.valid() ? unit(place.unit).params[static_cast<std::size_t>(place.index)].has_grad : place.has_grad;
  if (held) add_piece(slot, place.param);
  pieces_[static_cast<std::size_t>(slot)] = {};
  const ParamInfo& info = model_.params[place.param.index()];
  const DType dtype =
      place.unit.valid() ? unit(place.unit).params[static_cast<std::size_t>(place.index)].dtype : info.dtype;
  Instruction& grad =
      out_.kernel(InstructionKind::Mark, Stream::D, Word::Grad, place.unit, numel_of(info.shape), dtype);
  grad.origin = Origin::Autograd;
  grad.buffer = {BufferWhat::Grad, place.unit, place.param};
  grad.arg = held ? 1 : 0;
  held = true;
}

// F2-14. Fires for every output tensor; does nothing while the unit is in PRE_BACKWARD.
void Fsdp2Runtime::pre_backward(UnitState& u) {
  const Phase before = out_.phase();
  out_.set_phase(Phase::PreBackward);
  u.module_state = TrainingState::PreBackward;
  if (!final_callback_queued_) callback_unit_ = u.id;
  final_callback_queued_ = true;
  if (u.has_group) {
    out_.mark(Word::BeginPreBackward, u.id);
    if (u.group_state != TrainingState::PreBackward) {
      u.group_state = TrainingState::PreBackward;
      unshard(u, u.async_unshard);
      wait_for_unshard(u);
      if (u.backward_prefetch.empty()) backward_prefetch(u);
    }
    out_.mark(Word::EndPreBackward, u.id);
  }
  for (UnitId target : u.backward_prefetch) prefetch(unit(target), TrainingState::PreBackward);  // F2-16
  out_.set_phase(before);
}

// F2-15: the unit before this one in post-forward order, used or not.
void Fsdp2Runtime::backward_prefetch(UnitState& u) {
  if (u.post_forward_indices.empty()) return;
  const std::int32_t target = u.post_forward_indices.back() - 1;
  u.post_forward_indices.pop_back();
  if (target < 0) return;
  prefetch(unit(post_forward_order_[static_cast<std::size_t>(target)]), TrainingState::PreBackward);
}

// F2-17.
Result<void> Fsdp2Runtime::post_backward(UnitState& u) {
  if (!u.has_group) return {};
  const Phase before = out_.phase();
  out_.set_phase(Phase::PostBackward);
  out_.mark(Word::BeginPostBackward, u.id);
  u.group_state = TrainingState::PostBackward;
  accumulate_unsharded(u);
  Result<void> done;
  if (!u.reduce_grads) {
    if (u.reshard_after_backward) reshard(u);
    if (!to_accumulated(u)) {
      done = fail({ErrorCode::Inconsistent,
                   "a unit that never ran is asked to hold its gradients in the reduce dtype",
                   {},
                   "unit \"" + plan_.units[u.id.index()].name + "\"",
                   "a unit that has run forward once",
                   "set_requires_gradient_sync(False) in the first micro-batch",
                   "run every unit once, or drop reduce_dtype (F2-22)"});
    }
  } else {
    with_grad_.clear();
    for (std::size_t i = 0; i < u.params.size(); ++i) {
      if (u.params[i].has_grad || u.params[i].has_accumulated) with_grad_.push_back(static_cast<std::int32_t>(i));
    }
    if (u.reshard_after_backward) reshard(u);
    if (!with_grad_.empty()) done = reduce(u, with_grad_);
  }
  out_.mark(Word::EndPostBackward, u.id);
  out_.set_phase(before);
  return done;
}

// F2-19: root first, then registration order; a list once per module.
Result<void> Fsdp2Runtime::final_callback() {
  out_.set_phase(Phase::Final);
  const UnitId root = callback_unit_;
  out_.mark(Word::BeginFinalCallback, root);
  for (UnitId id : states_in_order_) {
    UnitState& u = unit(id);
    if (u.has_group && u.group_state != TrainingState::PostBackward) {
      Result<void> done = post_backward(u);
      if (!done) return done;
    }
    u.module_state = u.group_state = TrainingState::Idle;
    if (is_last_backward_) finalize(u);
  }
  if (is_last_backward_) {
    last_post_order_ = post_forward_order_;
    post_forward_order_.clear();
    if (rs_event_.valid()) {
      out_.wait_event(Stream::D, rs_event_, root);
      rs_event_ = {};
      drop(rs_input_);
    }
  }
  final_callback_queued_ = false;
  out_.mark(Word::EndFinalCallback, root);
  return {};
}

void Fsdp2Runtime::finalize(UnitState& u) {
  u.waiting.clear();  // a list of which not all ran (PyTorch warns)
  if (!u.has_group) return;
  out_.mark(Word::BeginFinalize, u.id);
  wait_for_post_backward(u);
  for (EventId& event : u.offload_events) {
    if (event.valid()) out_.host_wait(event, u.id);
    event = {};
  }
  if (u.pending.active) {  // a gather that nobody used
    if (u.pending.event.valid()) out_.wait_event(Stream::D, u.pending.event, u.id);
    if (u.pending.async) out_.add(InstructionKind::Mark, Stream::D, u.id).name = out_.name(Word::WaitWork);
    drop_gather(u, u.pending);
    u.pending = {};
  }
  u.post_forward_indices.clear();
  out_.mark(Word::EndFinalize, u.id);
}

}  // namespace foreshard::fsdp2
