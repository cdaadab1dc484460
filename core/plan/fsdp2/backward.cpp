#include "core/plan/fsdp2/backward.h"

#include <algorithm>

#include "core/model/mesh_dimension.h"
#include "core/model/module_kind.h"

namespace foreshard::fsdp2 {

Backward::Backward(Run& run, Gathering& gathering, Reduction& reduction, Forward& forward)
    : run_(run), out_(run.out), gathering_(gathering), reduction_(reduction), forward_(forward) {
  for (std::size_t m = 0; m < run.model.modules.size(); ++m) {
    if (run.model.modules[m].alias_of.valid()) continue;
    const UnitId id = run.request.table.unit_of_module[m];
    if (id.valid()) states_in_order_.push_back(id);
  }
  pieces_.assign(run.slots.size(), ParamId());
}

Result<void> Backward::run(const std::vector<autograd::Edge>& roots) {
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
  run_.in_backward = true;
  for (Region& region : run_.regions) region.recomputed = false;
  Result<void> done = run_pass(roots);
  run_.in_backward = false;
  if (!done) return done;
  if (!callbacks_.empty()) done = final_callbacks();
  out_.set_phase(Phase::None);
  return done;
}

Result<void> Backward::run_pass(const std::vector<autograd::Edge>& roots) {
  const autograd::PassId pass = run_.autograd.begin_pass(roots, Stream::D);
  Result<void> done;
  autograd::NodeIndex node = autograd::kNoNode;
  for (;;) {
    actions_.clear();
    node = run_.autograd.next(pass, actions_);
    if (node == autograd::kNoNode) break;
    const std::int32_t data = run_.autograd.data(node);
    const std::int32_t region =
        run_.autograd.kind(node) == Compute ? run_.executions[static_cast<std::size_t>(data)].region : -1;
    call_hooks(node, region, false);
    if (done = run_reentrant(region); !done) break;
    call_hooks(node, region, true);
    switch (run_.autograd.kind(node)) {
      case Compute: done = run_backward_node(run_.executions[static_cast<std::size_t>(data)]); break;
      case PostBackward: done = post_backward(run_.units[static_cast<std::size_t>(data)]); break;
      case Accumulate: accumulate_grad(data); break;
      default: break;
    }
    if (!done) break;
    for (std::size_t i = 0; i < run_.autograd.edges(node).size(); ++i) {
      actions_.clear();
      run_.autograd.send(pass, node, i, true, actions_);
      const autograd::NodeIndex target = run_.autograd.edges(node)[i].node;
      if (target != autograd::kNoNode && run_.autograd.kind(target) == Accumulate) {
        contribute(run_.autograd.data(target), run_.executions[static_cast<std::size_t>(data)], i);
      }
    }
  }
  actions_.clear();
  run_.autograd.end_pass(pass, Stream::D, actions_);
  return done;
}

/// Hooks on what a node hands back: of units that a reentrant region calls (`within`), whose second run hangs them
/// there, or of the others.
void Backward::call_hooks(autograd::NodeIndex node, std::int32_t region, bool within) {
  if (!run_.autograd.has_hooks(node)) return;
  run_.autograd.for_each_hook(node, [&](autograd::Hook hook) {
    bool called = false;
    if (region >= 0 && run_.regions[static_cast<std::size_t>(region)].reentrant) {
      const std::vector<UnitId>& units = run_.regions[static_cast<std::size_t>(region)].within;
      called = std::find(units.begin(), units.end(), UnitId(static_cast<std::int32_t>(hook.data))) != units.end();
    }
    if (called == within) pre_backward(run_.units[static_cast<std::size_t>(hook.data)]);
  });
}

/// The autograd function that a reentrant region is runs it again before anything in it goes back.
Result<void> Backward::run_reentrant(std::int32_t region) {
  if (region < 0) return {};
  const Region& made = run_.regions[static_cast<std::size_t>(region)];
  if (made.recomputed || !made.reentrant) return {};
  const UnitId unit = made.unit;
  if (Result<void> again = forward_.recompute(region); !again) return again;
  if (unit.valid()) pre_backward(run_.unit(unit));  // its second run's outputs are the roots of a pass
  return {};
}

Result<void> Backward::run_backward_node(const Execution& execution) {
  const GraphNode& node = run_.graph.nodes[static_cast<std::size_t>(execution.node)];
  if (execution.region >= 0 && !run_.regions[static_cast<std::size_t>(execution.region)].recomputed &&
      run_.node_autograd.saves(execution.node)) {
    if (Result<void> again = forward_.recompute(execution.region); !again) return again;
  }
  for (ParamId param : node.params) {
    const ParamSlot& place = run_.slots[static_cast<std::size_t>(run_.slot_of_param[param.index()])];
    if (!place.unit.valid()) continue;
    const UnitState& owner = run_.unit(place.unit);
    if (owner.unshard_in_backward || owner.sharded == ShardedState::Unsharded || !reads_param(execution.node, param))
      continue;
    return fail({ErrorCode::Inconsistent,
                 "backward needs parameters that set_unshard_in_backward(False) leaves sharded",
                 {},
                 "unit \"" + run_.plan.units[place.unit.index()].name + "\"",
                 "a unit whose backward reads no parameter, such as an embedding",
                 "module \"" + node.label + "\"",
                 "leave set_unshard_in_backward at True for this unit (F2-24)"});
  }
  Instruction& run =
      out_.add(InstructionKind::Backward, Stream::D, run_.unit_of_node[static_cast<std::size_t>(execution.node)]);
  run.segment = SegmentId(execution.node);
  run.arg = execution.input_grad ? 1 : 0;
  return {};
}

/// Backward needs the value of this parameter.
bool Backward::reads_param(std::int32_t index, ParamId param) {
  const GraphNode& node = run_.graph.nodes[static_cast<std::size_t>(index)];
  if (node.kind == GraphNode::Kind::Leaf) {
    return kind_of(run_.model.modules[node.module.index()]) != ModuleKind::Embedding;
  }
  return node.kind != GraphNode::Kind::Ops || run_.node_autograd.reads(index, param);
}

/// A segment made a piece of a parameter's gradient, under the name it uses it by. Of two pieces one goes: the one of a
/// tied parameter's later name, if there is one.
void Backward::contribute(std::int32_t slot, const Execution& execution, std::size_t edge) {
  const GraphNode& node = run_.graph.nodes[static_cast<std::size_t>(execution.node)];
  std::size_t k = node.inputs.size();  // edges: inputs first, then the trainable parameters
  ParamId name;
  for (const ParamId param : node.params) {
    if (!run_.slots[static_cast<std::size_t>(run_.slot_of_param[param.index()])].trainable) continue;
    if (k++ == edge) name = param;
  }
  ParamId& piece = pieces_[static_cast<std::size_t>(slot)];
  const ParamId kept = run_.slots[static_cast<std::size_t>(slot)].param;
  if (!piece.valid()) {
    piece = name;
    return;
  }
  const ParamId dropped = piece != kept ? piece : name;
  if (name == kept) piece = kept;
  // Where there are operators, lowering makes the sum of all uses and lets go of its terms.
  if (!run_.model.ops.empty()) return;
  add_piece(slot, dropped);
}

/// Two pieces become one; backward segments made both.
void Backward::add_piece(std::int32_t slot, ParamId dropped) {
  const ParamSlot& place = run_.slots[static_cast<std::size_t>(slot)];
  const ParamInfo& info = run_.model.params[place.param.index()];
  const DType dtype =
      place.unit.valid() ? run_.unit(place.unit).params[static_cast<std::size_t>(place.index)].dtype : info.dtype;
  Instruction& add =
      out_.kernel(InstructionKind::Accumulate, Stream::D, Word::AddInPlace, place.unit, place.grad_numel, dtype);
  add.buffer = {BufferWhat::Grad, place.unit, place.param};
  add.origin = Origin::Autograd;
  out_.free({BufferWhat::Grad, place.unit, dropped}, Stream::D, add.bytes);
}

void Backward::accumulate_grad(std::int32_t slot) {
  ParamSlot& place = run_.slots[static_cast<std::size_t>(slot)];
  bool& held = place.unit.valid() ? run_.unit(place.unit).params[static_cast<std::size_t>(place.index)].has_grad
                                  : place.has_grad;
  if (held) add_piece(slot, place.param);
  pieces_[static_cast<std::size_t>(slot)] = {};
  const ParamInfo& info = run_.model.params[place.param.index()];
  const DType dtype =
      place.unit.valid() ? run_.unit(place.unit).params[static_cast<std::size_t>(place.index)].dtype : info.dtype;
  Instruction& grad = out_.kernel(InstructionKind::Mark, Stream::D, Word::Grad, place.unit, place.grad_numel, dtype);
  grad.origin = Origin::Autograd;
  grad.buffer = {BufferWhat::Grad, place.unit, place.param};
  grad.arg = held ? 1 : 0;
  held = true;
  if (!place.unit.valid() && info.part.dimension < 0 && info.part.gradient == MeshPart::Gradient::Term)
    sum_by_hook(place);
}

/// A hook of the script sums the gradient of a whole parameter over the tensor ranks, in place.
void Backward::sum_by_hook(const ParamSlot& place) {
  const ParamInfo& info = run_.model.params[place.param.index()];
  const MeshDimension& dimension = summing_dimension(run_.model, place.param);
  out_.wait_stream(Stream::M, Stream::D, {});
  Instruction& sum = out_.add(InstructionKind::AllReduce, Stream::M);
  sum.buffer = {BufferWhat::Grad, {}, place.param};
  sum.numel = place.grad_numel;
  sum.dtype = info.dtype;
  sum.bytes = place.grad_numel * itemsize(info.dtype);
  sum.reduce_op = ReduceOp::Sum;
  sum.communicator = enter_dimension(run_.plan, dimension.name, dimension.ranks);
  out_.wait_stream(Stream::D, Stream::M, {});
}

// F2-14. Fires for every output tensor; does nothing while the unit is in PRE_BACKWARD.
void Backward::pre_backward(UnitState& u) {
  const Phase before = out_.phase();
  out_.set_phase(Phase::PreBackward);
  u.module_state = TrainingState::PreBackward;
  if (!is_queued(u)) callbacks_.push_back({run_.root_of[u.id.index()], u.id});
  if (u.has_group) {
    out_.mark(Word::BeginPreBackward, u.id);
    if (u.group_state != TrainingState::PreBackward) {
      u.group_state = TrainingState::PreBackward;
      gathering_.unshard(u, u.async_unshard);
      gathering_.wait_for_unshard(u);
      if (u.backward_prefetch.empty()) backward_prefetch(u);
    }
    out_.mark(Word::EndPreBackward, u.id);
  }
  for (UnitId target : u.backward_prefetch)
    gathering_.prefetch(run_.unit(target), TrainingState::PreBackward);  // F2-16
  out_.set_phase(before);
}

bool Backward::is_queued(const UnitState& u) const {
  return std::any_of(callbacks_.begin(), callbacks_.end(),
                     [&](const FinalCallback& callback) { return callback.root == run_.root_of[u.id.index()]; });
}

// F2-15: the unit before this one in its root's post-forward order, used or not.
void Backward::backward_prefetch(UnitState& u) {
  if (u.post_forward_indices.empty()) return;
  std::int32_t target = u.post_forward_indices.back() - 1;
  u.post_forward_indices.pop_back();
  const auto root_at = [&](std::int32_t at) {
    return run_.root_of[run_.post_forward_order[static_cast<std::size_t>(at)].index()];
  };
  while (target >= 0 && root_at(target) != run_.root_of[u.id.index()]) --target;
  if (target < 0) return;
  gathering_.prefetch(run_.unit(run_.post_forward_order[static_cast<std::size_t>(target)]), TrainingState::PreBackward);
}

// F2-17.
Result<void> Backward::post_backward(UnitState& u) {
  if (!u.has_group) return {};
  const Phase before = out_.phase();
  out_.set_phase(Phase::PostBackward);
  out_.mark(Word::BeginPostBackward, u.id);
  u.group_state = TrainingState::PostBackward;
  reduction_.accumulate_unsharded(u);
  Result<void> done;
  if (!u.reduce_grads) {
    if (u.reshard_after_backward) gathering_.reshard(u);
    if (!reduction_.to_accumulated(u)) {
      done = fail({ErrorCode::Inconsistent,
                   "a unit that never ran is asked to hold its gradients in the reduce dtype",
                   {},
                   "unit \"" + run_.plan.units[u.id.index()].name + "\"",
                   "a unit that has run forward once",
                   "set_requires_gradient_sync(False) in the first micro-batch",
                   "run every unit once, or drop reduce_dtype (F2-22)"});
    }
  } else {
    with_grad_.clear();
    for (std::size_t i = 0; i < u.params.size(); ++i) {
      if (u.params[i].has_grad || u.params[i].has_accumulated) with_grad_.push_back(static_cast<std::int32_t>(i));
    }
    reduction_.place_on_mesh(u, with_grad_);
    if (u.reshard_after_backward) gathering_.reshard(u);
    if (!with_grad_.empty()) done = reduction_.reduce(u, with_grad_);
  }
  out_.mark(Word::EndPostBackward, u.id);
  out_.set_phase(before);
  return done;
}

/// One of each root, in the order in which backward reached them. A root that it never reached has none: it stays
/// gathered, as inference leaves it.
Result<void> Backward::final_callbacks() {
  out_.set_phase(Phase::Final);
  for (const FinalCallback& callback : callbacks_) {
    if (Result<void> done = final_callback(callback); !done) return done;
  }
  callbacks_.clear();
  if (!run_.is_last_backward) return {};
  for (UnitState& u : run_.units) u.post_forward_indices.clear();
  run_.last_post_order = run_.post_forward_order;
  run_.post_forward_order.clear();
  return {};
}

// F2-19: root first, then registration order; a list once per module.
Result<void> Backward::final_callback(const FinalCallback& callback) {
  out_.mark(Word::BeginFinalCallback, callback.unit);
  for (UnitId id : states_in_order_) {
    if (run_.root_of[id.index()] != callback.root) continue;
    UnitState& u = run_.unit(id);
    if (u.has_group && u.group_state != TrainingState::PostBackward) {
      Result<void> done = post_backward(u);
      if (!done) return done;
    }
    u.module_state = u.group_state = TrainingState::Idle;
    if (run_.is_last_backward) finalize(u);
  }
  if (run_.is_last_backward) reduction_.wait_for_last(callback.unit);
  out_.mark(Word::EndFinalCallback, callback.unit);
  return {};
}

void Backward::finalize(UnitState& u) {
  u.waiting.clear();  // a list of which not all ran (PyTorch warns)
  if (!u.has_group) return;
  out_.mark(Word::BeginFinalize, u.id);
  reduction_.wait_for_post_backward(u);
  for (EventId& event : u.offload_events) {
    if (event.valid()) out_.host_wait(event, u.id);
    event = {};
  }
  if (u.pending.active) {  // a gather that nobody used
    if (u.pending.event.valid()) out_.wait_event(Stream::D, u.pending.event, u.id);
    if (u.pending.async) out_.add(InstructionKind::Mark, Stream::D, u.id).name = out_.name(Word::WaitWork);
    gathering_.drop(u, u.pending);
    u.pending = {};
  }
  u.post_forward_indices.clear();
  out_.mark(Word::EndFinalize, u.id);
}

}  // namespace foreshard::fsdp2
