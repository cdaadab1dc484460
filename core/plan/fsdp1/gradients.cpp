// Gradients: what pre-backward does with the old ones (H14, H15), reduction on G and H (R12, HS2), and what the
// optimizer finds (R13, M4, C2).
#include <algorithm>

#include "core/plan/fsdp1/runtime.h"

namespace foreshard::fsdp1 {

// H14: with original parameters, "all gradients are None" reaches the flat parameter here.
void Runtime::reset_gradient_flags() {
  for (UnitState& u : units_) {
    if (u.has_handle && u.use_orig_params && !u.param_grads) drop_gradient(u);
  }
}

/// `.grad = None`
void Runtime::drop_gradient(UnitState& u) {
  if (u.grad != GradKind::None && u.grad != GradKind::Host) free(u.grad_pool, u, u.grad_buffer);
  u.grad = GradKind::None;
}

// H15: a shard from an earlier micro-batch is moved aside, an unsharded gradient stays to be added to.
void Runtime::prepare_gradient(UnitState& u) {
  if (u.grad == GradKind::None) return;
  if (u.grad == GradKind::Unsharded) {
    mark(MarkName::HeldGradient, u);
    return;
  }
  if (u.grad == GradKind::Host) {
    mark(MarkName::ClearedGradient, u);
    u.grad = GradKind::None;
    if (u.gradient_is_real) note_trap(5, &u);
    return;
  }
  mark(MarkName::SavedGradient, u);
  const PlanUnit& unit = *u.unit;
  u.saved = true;
  u.saved_buffer = u.grad_buffer;
  u.saved_pool = u.grad_pool;
  if (unit.keep_low_precision_grads && u.grad_dtype != unit.orig_dtype) {  // M4: accumulated in the original type
    alloc(Stream::D, u, BufferWhat::SavedGrad, unit.shard_numel, unit.orig_dtype);
    Instruction& i = emit(InstructionKind::Cast, Stream::D, u);
    i.buffer = {BufferWhat::SavedGrad, u.id, {}};
    i.numel = unit.shard_numel;
    i.dtype = unit.orig_dtype;
    i.bytes = i.numel * itemsize(i.dtype);
    free(u.grad_pool, u, u.grad_buffer);
    u.saved_buffer = BufferWhat::SavedGrad;
    u.saved_pool = Stream::D;
  }
  u.grad = GradKind::None;
}

// R12
void Runtime::post_backward(UnitState& u, Stream stream) {
  enter(Phase::PostBackward, u);
  u.post_backward_called = true;
  if (!u.busy || (u.state != HandleState::BackwardPre && u.state != HandleState::BackwardPost)) {
    fail("AssertionError", "post-backward of unit \"" + u.unit->name + "\" outside its backward (T1)");
    return;
  }
  u.state = HandleState::BackwardPost;
  if (u.grad == GradKind::None) {
    mark(MarkName::NoGradient, u);
    phase_ = Phase::Backward;
    return;
  }
  reshard(u, frees_in_backward(u), stream);
  prefetch_backward(u, BackwardPrefetch::Post);
  if (failed()) return;
  if (!sync_) {  // G1
    if (u.use_orig_params && !u.param_grads) show_unsharded_gradient(u, stream);
    if (u.use_orig_params) u.param_grads = u.param_grads_unsharded = true;
    mark(MarkName::Stop, u);
    phase_ = Phase::Backward;
    return;
  }
  wait_stream(Stream::G, stream);
  const PlanUnit& unit = *u.unit;
  const BufferWhat computed = u.grad_buffer;
  const Stream computed_pool = u.grad_pool;
  if (u.grad_dtype != unit.reduce_dtype && !full_precision_forced(u)) {  // M3
    alloc(Stream::G, u, BufferWhat::GradReduce, unit.flat_numel, unit.reduce_dtype);
    Instruction& cast = emit(InstructionKind::Cast, Stream::G, u);
    cast.buffer = {BufferWhat::GradReduce, u.id, {}};
    cast.numel = unit.flat_numel;
    cast.dtype = unit.reduce_dtype;
    cast.bytes = cast.numel * itemsize(cast.dtype);
    u.grad_buffer = BufferWhat::GradReduce;
    u.grad_pool = Stream::G;
    u.grad_dtype = unit.reduce_dtype;
  }
  if (u.sharded) {
    reduce_gradient(u);
  } else {
    reduce_gradient_unsharded(u, computed);
  }
  note_use(computed_pool, Stream::G, u, computed);
  if (u.sharded || u.grad_buffer != computed) free(computed_pool, u, computed);
  phase_ = Phase::Backward;
}

/// The first gradient of a parameter that is already cut is made like its shard, and at once pointed to its part of the
/// whole one.
void Runtime::show_unsharded_gradient(const UnitState& u, Stream stream) {
  const PlanUnit& unit = *u.unit;
  if (u.offload || (!u.sharded && u.grad_dtype == unit.orig_dtype)) return;  // on the host, or alike
  const Numel begin = u.sharded ? unit.shard_numel * position_in_shard_group() : 0;
  const Numel end = u.sharded ? begin + unit.shard_numel : unit.flat_numel;
  for (const FlatEntry& entry : unit.flat) {
    const Numel here = std::min(end, entry.offset + entry.numel) - std::max(begin, entry.offset);
    if (!entry.param.valid() || here <= 0) continue;
    alloc(stream, u, BufferWhat::GradCast, here, unit.orig_dtype);
    out_->back().buffer.param = entry.param;
    free(stream, u, BufferWhat::GradCast);
    out_->back().buffer.param = entry.param;
  }
}

void Runtime::divide(Stream stream, const UnitState& u, double factor, Numel numel, DType dtype) {
  if (factor <= 1.0) return;  // G4: a division by 1 is not launched
  Instruction& i = emit(InstructionKind::Divide, stream, u);
  i.factor = factor;
  i.numel = numel;
  i.dtype = dtype;
  i.bytes = numel * itemsize(dtype);
}

void Runtime::reduce_gradient(UnitState& u) {
  const PlanUnit& unit = *u.unit;
  const BufferWhat input = u.grad_buffer;
  const bool compressed = compresses(u);
  DType dtype = u.grad_dtype;
  u.grad = GradKind::None;
  const bool pads = unit.padded_numel != unit.flat_numel;
  if (pads) {
    alloc(Stream::G, u, BufferWhat::GradPadded, unit.padded_numel, dtype);
    Instruction& pad = emit(InstructionKind::Pad, Stream::G, u);
    pad.buffer = {BufferWhat::GradPadded, u.id, {}};
    pad.numel = unit.padded_numel;
    pad.dtype = dtype;
    pad.bytes = pad.numel * itemsize(dtype);
  }
  const bool casts_back = compressed || dtype != unit.orig_dtype;
  BufferWhat output = casts_back || u.saved ? BufferWhat::ReduceOut : final_buffer(u);
  alloc(Stream::G, u, output, unit.shard_numel, dtype);
  if (compressed) {
    compress(u, unit.padded_numel);
    if (pads) free(Stream::G, u, BufferWhat::GradPadded);
    output = compress_output(u, output);
    dtype = u.grad_dtype;
  }
  if (!own_hook_) divide(Stream::G, u, plan_.pre_divide, unit.padded_numel, dtype);
  Instruction& scatter = emit(InstructionKind::ReduceScatter, Stream::G, u);
  scatter.buffer = {output, u.id, {}};
  scatter.communicator = groups_.shard(plan_, unit.shard_size);
  scatter.reduce_op = ReduceOp::Sum;
  scatter.numel = unit.padded_numel;
  scatter.dtype = dtype;
  scatter.bytes = unit.padded_numel * itemsize(dtype);
  if (own_hook_) scatter.name = NameId(static_cast<std::int32_t>(MarkName::CommHook));
  Stream stream = Stream::G;
  if (u.hybrid) {  // HS2
    stream = Stream::H;
    wait_stream(Stream::H, Stream::G);
    note_use(Stream::G, Stream::H, u, output);
    Instruction& reduce = emit(InstructionKind::AllReduce, Stream::H, u);
    reduce.buffer = {output, u.id, {}};
    reduce.communicator = groups_.replicate(plan_);
    reduce.reduce_op = ReduceOp::Sum;
    reduce.numel = unit.shard_numel;
    reduce.dtype = dtype;
    reduce.bytes = unit.shard_numel * itemsize(dtype);
  }
  if (!own_hook_) divide(stream, u, plan_.post_divide, unit.shard_numel, dtype);
  keep_sharded_gradient(u, stream, output);
  if (compressed) free(Stream::G, u, BufferWhat::CompressedGrad);
  if (pads && !compressed) free(Stream::G, u, BufferWhat::GradPadded);
  if (input == BufferWhat::GradReduce) free(Stream::G, u, input);
}

/// The name of the buffer that a sharded gradient ends up in: `.grad`, or what is cast down to it in the end (M4).
BufferWhat Runtime::final_buffer(const UnitState& u) const {
  const bool cast_later = u.unit->keep_low_precision_grads && u.unit->param_dtype != u.unit->orig_dtype;
  return cast_later ? BufferWhat::SavedGrad : BufferWhat::ShardGrad;
}

// Cast back, add to what earlier micro-batches left (G7), bring to the host (C2).
void Runtime::keep_sharded_gradient(UnitState& u, Stream stream, BufferWhat output) {
  const PlanUnit& unit = *u.unit;
  Stream pool = Stream::G;
  if (u.grad_dtype != unit.orig_dtype) {
    note_use(pool, stream, u, output);
    const BufferWhat cast_to = u.saved ? BufferWhat::GradCast : final_buffer(u);
    alloc(stream, u, cast_to, unit.shard_numel, unit.orig_dtype);
    Instruction& cast = emit(InstructionKind::Cast, stream, u);
    cast.buffer = {cast_to, u.id, {}};
    cast.numel = unit.shard_numel;
    cast.dtype = unit.orig_dtype;
    cast.bytes = cast.numel * itemsize(cast.dtype);
    free(pool, u, output);
    output = cast_to;
    pool = stream;
  }
  if (u.saved) {
    Instruction& add = emit(InstructionKind::Accumulate, stream, u);
    add.buffer = {u.saved_buffer, u.id, {}};
    add.numel = unit.shard_numel;
    add.dtype = unit.orig_dtype;
    add.bytes = add.numel * itemsize(add.dtype);
    free(pool, u, output);
  } else {
    u.saved = true;
    u.saved_buffer = output;
    u.saved_pool = pool;
  }
  if (u.offload) {
    Instruction& copy = emit(InstructionKind::D2h, stream, u);
    copy.buffer = {BufferWhat::HostGrad, u.id, {}};
    copy.numel = unit.shard_numel;
    copy.dtype = unit.orig_dtype;
    copy.bytes = copy.numel * itemsize(copy.dtype);
    copy.pinned = true;
    note_use(u.saved_pool, Stream::G, u, u.saved_buffer);
  }
  if (u.use_orig_params) {
    u.param_grads = u.any_in_shard;
    u.param_grads_unsharded = false;
    u.param_grads_on_host = u.offload;
  }
}

void Runtime::reduce_gradient_unsharded(UnitState& u, BufferWhat computed) {
  const PlanUnit& unit = *u.unit;
  if (compresses(u)) {
    u.grad_buffer = compress(u, unit.flat_numel);
    u.grad_pool = Stream::G;
    u.grad_dtype = *hook_dtype_;
  }
  if (!own_hook_) divide(Stream::G, u, plan_.pre_divide, unit.flat_numel, u.grad_dtype);
  Instruction& reduce = emit(InstructionKind::AllReduce, Stream::G, u);
  reduce.buffer = {u.grad_buffer, u.id, {}};
  reduce.communicator = groups_.shard(plan_);
  reduce.reduce_op = ReduceOp::Sum;
  reduce.numel = unit.flat_numel;
  reduce.dtype = u.grad_dtype;
  reduce.bytes = reduce.numel * itemsize(reduce.dtype);
  if (own_hook_) {
    reduce.name = NameId(static_cast<std::int32_t>(MarkName::CommHook));
  } else {
    divide(Stream::G, u, plan_.post_divide, unit.flat_numel, u.grad_dtype);
  }
  // A compressing hook casts back itself, whatever keep_low_precision_grads says.
  if ((hook_dtype_ || !unit.keep_low_precision_grads) && u.grad_dtype != unit.orig_dtype) {
    note_use(u.grad_pool, Stream::G, u, u.grad_buffer);
    // What earlier micro-batches left was added to, and is still there under its name.
    const BufferWhat to = computed == BufferWhat::ShardGrad ? BufferWhat::SavedGrad : BufferWhat::ShardGrad;
    cast_gradient(u, to, unit.flat_numel, unit.orig_dtype);
    const BufferWhat made = u.grad_buffer;
    if (made == BufferWhat::GradReduce || made == BufferWhat::CompressedGrad) free(Stream::G, u, made);
    u.grad_buffer = to;
    u.grad_pool = Stream::G;
    u.grad_dtype = unit.orig_dtype;
  }
  if (u.offload) {
    Instruction& copy = emit(InstructionKind::D2h, Stream::G, u);
    copy.buffer = {BufferWhat::HostGrad, u.id, {}};
    copy.numel = unit.flat_numel;
    copy.dtype = u.grad_dtype;
    copy.bytes = copy.numel * itemsize(copy.dtype);
    copy.pinned = true;
    copy.blocking = true;  // C2
    note_use(u.grad_pool, Stream::G, u, u.grad_buffer);
  }
  if (u.use_orig_params) {
    u.param_grads = true;
    u.param_grads_unsharded = false;
  }
}

// R13: what was reduced becomes `.grad`.
void Runtime::finalise(UnitState& u) {
  const PlanUnit& unit = *u.unit;
  if (u.hooked) {
    u.hooked = false;
    u.hook_node = autograd::kNoNode;
    if (u.reshard_group >= 0) reshard_groups_[static_cast<std::size_t>(u.reshard_group)].active = false;
    u.reshard_group = -1;
  }
  if (!unit.requires_grad || !sync_) return;
  const bool called = u.post_backward_called;
  u.post_backward_called = false;
  if (u.host_grad) {
    // The host gradient becomes `.grad`; what it was copied from goes.
    if (u.grad != GradKind::None && u.grad != GradKind::Host) free(u.grad_pool, u, u.grad_buffer);
    if (u.saved) free(u.saved_pool, u, u.saved_buffer);
    u.grad = GradKind::Host;
    u.grad_dtype = unit.orig_dtype;
    u.gradient_is_real = u.gradient_is_real || called;
    if (u.low_host_grad) {
      fail("RuntimeError",
           "the host gradient of unit \"" + unit.name + "\" is in " + std::string(dtype_name(unit.param_dtype)) +
               " since the last backward, its parameter in " + std::string(dtype_name(unit.orig_dtype)) +
               " (C1, M4): keep_low_precision_grads and cpu_offload last one iteration together");
      return;
    }
    u.low_host_grad = !u.use_orig_params && unit.keep_low_precision_grads && unit.param_dtype != unit.orig_dtype;
    if (u.low_host_grad) u.grad_dtype = unit.param_dtype;
  } else if (u.saved && called) {
    u.grad = GradKind::Shard;
    u.grad_dtype = unit.orig_dtype;
    u.grad_buffer = u.saved_buffer;
    u.grad_pool = u.saved_pool;
    if (unit.keep_low_precision_grads && unit.param_dtype != unit.orig_dtype) {  // M4, on D
      alloc(Stream::D, u, BufferWhat::ShardGrad, unit.shard_numel, unit.param_dtype);
      Instruction& cast = emit(InstructionKind::Cast, Stream::D, u);
      cast.buffer = {BufferWhat::ShardGrad, u.id, {}};
      cast.numel = unit.shard_numel;
      cast.dtype = unit.param_dtype;
      cast.bytes = cast.numel * itemsize(cast.dtype);
      free(u.grad_pool, u, u.grad_buffer);
      u.grad_dtype = unit.param_dtype;
      u.grad_buffer = BufferWhat::ShardGrad;
      u.grad_pool = Stream::D;
    }
  } else if (u.saved) {
    free(u.saved_pool, u, u.saved_buffer);
  }
  u.saved = false;
}

}  // namespace foreshard::fsdp1
