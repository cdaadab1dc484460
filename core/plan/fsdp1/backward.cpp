// Backward passes: the loss, the nodes in autograd's order, and the hooks that fire in them (R11, R13..R16, R26).
#include <algorithm>

#include "core/plan/fsdp1/runtime.h"

namespace foreshard::fsdp1 {

using autograd::Edge;
using autograd::kNoNode;
using autograd::NodeIndex;

// The first output's sum, or the model's own loss; several pending outputs are summed up.
Tensor Runtime::loss_of(const std::vector<Tensor>& outputs) {
  if (model_.has_loss && outputs.size() == 1) return outputs.front();
  Tensor total;
  for (const Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    Edge edge = output.edge();
    if (output.dtype != DType::Float32) edge = {autograd_.add_node(kKernel, -1, Stream::D, 1, {&edge, 1}), 0};
    edge = {autograd_.add_node(kSilent, -1, Stream::D, 1, {&edge, 1}), 0};
    if (outputs.size() > 1) {
      const Edge both[] = {total.edge(), edge};
      edge = {autograd_.add_node(kSilent, -1, Stream::D, 1, both), 0};
    }
    total = {edge.node, 0, DType::Float32};
  }
  return total;
}

void Runtime::backward(const std::vector<Tensor>& outputs) {
  phase_ = Phase::Backward;
  const Tensor loss = loss_of(outputs);
  if (!loss.requires_grad()) {
    fail("RuntimeError", "the loss does not require grad");
    return;
  }
  autograd_.launch(Stream::D);  // the gradient of the loss itself
  autograd_.set_thread(autograd::Thread::Device);
  grad_enabled_ = false;
  const autograd::PassId pass = run_pass({loss.edge()});
  if (failed()) return;
  finish_pass(pass);
  grad_enabled_ = true;
  autograd_.set_thread(autograd::Thread::Main);
  phase_ = Phase::None;
}

autograd::PassId Runtime::run_pass(const std::vector<Edge>& roots) {
  const autograd::PassId pass = autograd_.begin_pass(roots, Stream::D);
  final_queued_.push_back(false);
  pass_serials_.push_back(++pass_serial_);
  for (NodeIndex node = autograd_.next(pass, actions_); node != kNoNode; node = autograd_.next(pass, actions_)) {
    emit_actions();
    run_backward_node(pass, node);
    if (failed()) break;
  }
  return pass;
}

// R26: the caller waits for the streams of accumulation nodes; then the callbacks that hooks have queued.
void Runtime::finish_pass(autograd::PassId pass) {
  autograd_.end_pass(pass, Stream::D, actions_);
  emit_actions();
  const bool queued = final_queued_.back();
  final_queued_.pop_back();
  pass_serials_.pop_back();
  if (queued) final_callback();
}

void Runtime::run_backward_node(autograd::PassId pass, NodeIndex node) {
  if (autograd_.has_hooks(node)) {
    autograd_.for_each_hook(node, [&](autograd::Hook hook) {
      if (failed()) return;
      if (hook.kind == kPreBackward) {
        pre_backward(units_[static_cast<std::size_t>(hook.data)]);
      } else {
        reshard_only_hook(pass, reshard_groups_[static_cast<std::size_t>(hook.data)]);
      }
    });
    phase_ = Phase::Backward;
    if (failed()) return;
  }
  switch (autograd_.kind(node)) {
    case kKernel: autograd_.launch(Stream::D); break;
    case kCompute: run_compute(node); break;
    case kSplit: concatenate(pass, node); break;
    case kAccumulate: accumulate(pass, node); return;
    case kCheckpoint: backward_region(pass, node); return;
    default: break;
  }
  if (failed()) return;
  bool defined = false;
  for (std::int32_t slot = 0; slot < autograd_.slot_count(node); ++slot) {
    defined = defined || autograd_.received(pass, node, slot);
  }
  const std::size_t edges = autograd_.edges(node).size();
  for (std::size_t i = 0; i < edges; ++i) {
    autograd_.send(pass, node, i, defined, actions_);
    if (!actions_.empty()) emit_actions();
  }
}

void Runtime::run_compute(NodeIndex node) {
  const Compute compute = computes_[static_cast<std::size_t>(autograd_.data(node))];
  if (compute.frame >= 0 && regions_[static_cast<std::size_t>(compute.frame)].pass_serial != pass_serials_.back()) {
    Instruction& unpack = emit(InstructionKind::Mark, Stream::Host);
    unpack.name = NameId(static_cast<std::int32_t>(MarkName::Unpack));
    unpack.segment = compute.segment;
    need_region(compute.frame);
    if (failed()) return;
  }
  if (compute.leads) {
    Instruction& i = emit(InstructionKind::Backward, Stream::D);
    i.unit = plan_.segments[compute.segment.index()].unit;
    i.segment = compute.segment;
  } else {
    autograd_.launch(Stream::D);
  }
  if (!compute.reads_params || compute.unit < 0) return;
  // T2: the parameters that this node saved must still be gathered.
  const UnitState& u = units_[static_cast<std::size_t>(compute.unit)];
  const bool there = u.sharded ? u.full || u.full_precision : !u.casts_params || u.cast_shard;
  if (!there) {
    fail("RuntimeError", "backward of " + plan_.segments[compute.segment.index()].label +
                             " reads parameters whose storage was freed: unit \"" + u.unit->name +
                             "\" is not gathered again in a second backward");
  }
}

// R26: zeros for what got no gradient, then one concatenation (a copy if there is one piece) on the views' stream.
void Runtime::concatenate(autograd::PassId pass, NodeIndex node) {
  UnitState& u = units_[static_cast<std::size_t>(autograd_.data(node))];
  const PlanUnit& unit = *u.unit;
  const Stream stream = autograd_.stream(node);
  Bytes pads = 0;
  for (std::size_t e = 0; e < unit.flat.size(); ++e) {
    if (autograd_.received(pass, node, static_cast<std::int32_t>(e))) continue;
    const FlatEntry& entry = unit.flat[e];
    if (entry.param.valid()) {
      Instruction& i = emit(InstructionKind::Alloc, stream, u);
      i.buffer = {BufferWhat::GradPiece, u.id, entry.param};
      i.numel = entry.numel;
      i.dtype = u.view_dtype;
      i.bytes = entry.numel * itemsize(u.view_dtype);
    } else {
      if (pads == 0) alloc(stream, u, BufferWhat::GradPadded, 0, u.view_dtype);
      pads += round_up(entry.numel * itemsize(u.view_dtype), 512);
    }
    Instruction& fill = emit(InstructionKind::Fill, stream, u);
    fill.origin = Origin::Autograd;
    fill.buffer = {entry.param.valid() ? BufferWhat::GradPiece : BufferWhat::GradPadded, u.id, entry.param};
    fill.numel = entry.numel;
    fill.dtype = u.view_dtype;
    fill.bytes = entry.numel * itemsize(u.view_dtype);
  }
  if (pads > 0) {  // each pad is a tensor of its own; together they take this much
    for (auto it = out_->rbegin(); it != out_->rend(); ++it) {
      if (it->kind == InstructionKind::Alloc && it->buffer.what == BufferWhat::GradPadded) {
        it->bytes = pads;
        break;
      }
    }
  }
  // A gradient that is there already (another use, an earlier micro-batch) is added to afterwards.
  const BufferWhat what = u.flat_pending                  ? BufferWhat::AccumulatedGrad
                          : u.grad == GradKind::Unsharded ? BufferWhat::GradPiece
                                                          : BufferWhat::Grad;
  if (what == BufferWhat::Grad) u.grad_pool = stream;
  u.flat_pending = true;
  alloc(stream, u, what, unit.flat_numel, u.view_dtype);
  Instruction& i = emit(InstructionKind::Concat, stream, u);
  i.origin = Origin::Autograd;
  i.buffer = {what, u.id, {}};
  i.numel = unit.flat_numel;
  i.dtype = u.view_dtype;
  i.bytes = unit.flat_numel * itemsize(u.view_dtype);
  i.arg = static_cast<std::int32_t>(unit.flat.size());
  for (std::size_t e = 0; e < unit.flat.size(); ++e) {
    if (!unit.flat[e].param.valid()) continue;
    const bool made_here = !autograd_.received(pass, node, static_cast<std::int32_t>(e));
    free_piece(u, unit.flat[e].param, made_here ? stream : Stream::D, stream);
  }
  if (pads > 0) free(stream, u, BufferWhat::GradPadded);
}

// Pieces lie in D's pool and were handed to the views' stream (R26).
void Runtime::free_piece(const UnitState& u, ParamId param, Stream pool, Stream user) {
  if (pool != user) {
    Instruction& note = emit(InstructionKind::NoteUse, pool, u);
    note.origin = Origin::Autograd;
    note.other = user;
    note.buffer = {BufferWhat::GradPiece, u.id, param};
  }
  Instruction& i = emit(InstructionKind::Free, pool, u);
  i.origin = Origin::Autograd;
  i.buffer = {BufferWhat::GradPiece, u.id, param};
}

void Runtime::accumulate(autograd::PassId pass, NodeIndex node) {
  UnitState& u = units_[static_cast<std::size_t>(autograd_.data(node))];
  const Stream stream = autograd_.stream(node);
  bool added = false;
  if (autograd_.received(pass, node, 0)) {
    if (stream != Stream::U) {  // R26's exception: the engine hands the concatenation over
      Instruction& note = emit(InstructionKind::NoteUse, Stream::U, u);
      note.origin = Origin::Autograd;
      note.other = stream;
      note.buffer = {u.grad == GradKind::Unsharded ? BufferWhat::GradPiece : BufferWhat::Grad, u.id, {}};
    }
    if (u.grad != GradKind::Unsharded) {
      u.grad = GradKind::Unsharded;
      u.grad_dtype = u.view_dtype;
      u.grad_buffer = BufferWhat::Grad;
    } else {
      Instruction& i = emit(InstructionKind::Add, stream, u);
      i.origin = Origin::Autograd;
      i.buffer = {u.grad_buffer, u.id, {}};
      i.numel = u.unit->flat_numel;
      i.dtype = u.grad_dtype;
      i.bytes = i.numel * itemsize(i.dtype);
      autograd_.launch(stream);
      added = true;
    }
    u.flat_pending = false;
  }
  if (u.hooked && u.hook_node == node) post_backward(u, stream);
  if (added) free(Stream::U, u, BufferWhat::GradPiece);  // the node's input: its hooks still have it
}

// R11
void Runtime::pre_backward(UnitState& u) {
  if (u.has_handle && u.ran_pre_backward) return;
  enter(Phase::PreBackward, u);
  if (u.is_root && !callback_queued_) {
    callback_queued_ = true;
    final_queued_.back() = true;
    reset_gradient_flags();
  } else if (u.has_handle && u.busy) {
    fail("ValueError", "pre-backward of unit \"" + u.unit->name + "\" while it is in forward or backward (T1)");
    return;
  }
  u.busy = true;
  if (!u.has_handle) return;
  u.state = HandleState::BackwardPre;
  if (u.needs_pre_backward) {
    if (!u.prefetched) unshard(u, Stream::Q, Stream::U);
    if (failed()) return;
    wait_stream(Stream::D, Stream::U);
  }
  u.needs_pre_backward = false;
  prefetch_backward(u, BackwardPrefetch::Pre);
  if (failed()) return;
  prepare_gradient(u);
  u.ran_pre_backward = true;
}

// R14: fires when all inputs that this pass reaches have their gradients.
void Runtime::reshard_only_hook(autograd::PassId pass, ReshardGroup& group) {
  if (!group.active) return;
  if (group.pass_serial != pass_serials_.back()) {
    group.pass_serial = pass_serials_.back();
    group.seen = 0;
  }
  const auto expected = std::count_if(group.nodes.begin(), group.nodes.end(),
                                      [&](NodeIndex node) { return autograd_.contains(pass, node); });
  if (++group.seen != expected) return;
  UnitState& u = units_[static_cast<std::size_t>(group.unit)];
  enter(Phase::FrozenPostBackward, u);
  u.busy = true;
  u.state = HandleState::BackwardPost;
  reshard(u, frees_in_backward(u), Stream::D);
  prefetch_backward(u, BackwardPrefetch::Post);
}

// R13, R15
void Runtime::final_callback() {
  enter(Phase::Final, root());
  post_order_at_final_ = post_order_;
  final_ran_ = true;
  if (sync_) {
    wait_stream(Stream::D, Stream::G);
    // PyTorch compares stream objects by identity: without hybrid this wait is void.
    wait_stream(Stream::D, plan_.streams.size() > 3 ? Stream::H : Stream::D);
    if (job_.fsdp.cpu_offload) {
      Instruction& i = emit(InstructionKind::HostWait, Stream::Host);
      i.other = Stream::D;
    }
  }
  ++order_iteration_;
  post_order_.clear();
  for (UnitState& u : units_) {
    const bool moved = u.offload && !u.pinned;  // C1: the pinned copy is another tensor, whether or not the unit ran
    if (u.has_handle && (!u.on_shard || u.skipped_views || moved)) {
      if (u.sharded && frees_in_backward(u) && u.full && u.prefetched &&
          u.backward_prefetch == BackwardPrefetch::Post) {
        note_trap(11, &u);  // gathered for nothing
      }
      reshard(u, frees_in_backward(u), Stream::D);
    }
    if (u.has_handle && u.hooked && u.grad == GradKind::Unsharded && sync_ && !u.post_backward_called) note_trap(2, &u);
    if (u.has_handle) finalise(u);
    u.busy = false;
    u.ran_pre_backward = u.needs_pre_backward = u.prefetched = false;
    u.post_index = -1;
    u.state = HandleState::Idle;
    if (u.has_handle && u.sharded && u.full && sync_ && !u.use_orig_params) note_trap(4, &u);
  }
  callback_queued_ = false;
  phase_ = Phase::None;
}

}  // namespace foreshard::fsdp1
