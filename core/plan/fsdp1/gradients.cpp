#include "core/plan/fsdp1/gradients.h"

#include <algorithm>

namespace foreshard::fsdp1 {

// H14: with original parameters, "all gradients are None" reaches the flat parameter here.
void Gradients::reset_flags(const UnitState& root) {
  for (UnitState& u : run_.units) {
    if (run_.is_of_root(u, root) && u.has_handle && u.use_orig_params && !u.param_grads) drop(u);
  }
}

/// `.grad = None`
void Gradients::drop(UnitState& u) {
  if (u.grad != GradKind::None && u.grad != GradKind::Host) out_.free(u.grad_pool, u, u.grad_buffer);
  u.grad = GradKind::None;
}

// H15: a shard from an earlier micro-batch is moved aside, an unsharded gradient stays to be added to.
void Gradients::prepare(UnitState& u) {
  if (u.grad == GradKind::None) return;
  if (u.grad == GradKind::Unsharded) {
    out_.mark(MarkName::HeldGradient, u);
    return;
  }
  if (u.grad == GradKind::Host) {
    out_.mark(MarkName::ClearedGradient, u);
    u.grad = GradKind::None;
    if (u.gradient_is_real) run_.note_trap(5, &u);
    return;
  }
  out_.mark(MarkName::SavedGradient, u);
  const PlanUnit& unit = *u.unit;
  u.saved = true;
  u.saved_buffer = u.grad_buffer;
  u.saved_pool = u.grad_pool;
  if (unit.keep_low_precision_grads && u.grad_dtype != unit.orig_dtype) {  // M4: accumulated in the original type
    cast(u, Stream::D, BufferWhat::SavedGrad, unit.shard_numel, unit.orig_dtype);
    out_.free(u.grad_pool, u, u.grad_buffer);
    u.saved_buffer = BufferWhat::SavedGrad;
    u.saved_pool = Stream::D;
  }
  u.grad = GradKind::None;
}

// R12
void Gradients::post_backward(UnitState& u, Stream stream) {
  out_.enter(Phase::PostBackward, u);
  u.post_backward_called = true;
  if (!u.busy || (u.state != HandleState::BackwardPre && u.state != HandleState::BackwardPost)) {
    run_.fail("AssertionError", "post-backward of unit \"" + u.unit->name + "\" outside its backward (T1)");
    return;
  }
  u.state = HandleState::BackwardPost;
  if (u.grad == GradKind::None) {
    out_.mark(MarkName::NoGradient, u);
    out_.set_phase(Phase::Backward);
    return;
  }
  gathering_.reshard(u, gathering_.frees_in_backward(u), stream);
  gathering_.prefetch_backward(u, BackwardPrefetch::Post);
  if (run_.failed()) return;
  if (!run_.sync) {  // G1
    if (u.use_orig_params && !u.param_grads) show_unsharded(u, stream);
    if (u.use_orig_params) u.param_grads = u.param_grads_unsharded = true;
    out_.mark(MarkName::Stop, u);
    out_.set_phase(Phase::Backward);
    return;
  }
  out_.wait_stream(Stream::G, stream, u);
  const PlanUnit& unit = *u.unit;
  const BufferWhat computed = u.grad_buffer;
  const Stream computed_pool = u.grad_pool;
  if (u.grad_dtype != unit.reduce_dtype && !gathering_.full_precision_forced(u)) {  // M3
    cast(u, Stream::G, BufferWhat::GradReduce, unit.flat_numel, unit.reduce_dtype);
    u.grad_buffer = BufferWhat::GradReduce;
    u.grad_pool = Stream::G;
    u.grad_dtype = unit.reduce_dtype;
  }
  if (u.sharded) {
    reduce(u);
  } else {
    reduce_unsharded(u, computed);
  }
  out_.note_use(computed_pool, Stream::G, u, computed);
  if (u.sharded || u.grad_buffer != computed) out_.free(computed_pool, u, computed);
  out_.set_phase(Phase::Backward);
}

/// The first gradient of a parameter that is already cut is made like its shard, and at once pointed to its part of the
/// whole one.
void Gradients::show_unsharded(const UnitState& u, Stream stream) {
  const PlanUnit& unit = *u.unit;
  if (u.offload || (!u.sharded && u.grad_dtype == unit.orig_dtype)) return;  // on the host, or alike
  const Numel begin = u.sharded ? unit.shard_numel * run_.position_in_shard_group() : 0;
  const Numel end = u.sharded ? begin + unit.shard_numel : unit.flat_numel;
  for (const FlatEntry& entry : unit.flat) {
    const Numel here = std::min(end, entry.offset + entry.numel) - std::max(begin, entry.offset);
    if (!entry.param.valid() || here <= 0) continue;
    out_.alloc(stream, u, BufferWhat::GradCast, here, unit.orig_dtype);
    out_.back().buffer.param = entry.param;
    out_.free(stream, u, BufferWhat::GradCast);
    out_.back().buffer.param = entry.param;
  }
}

void Gradients::divide(Stream stream, const UnitState& u, double factor, Numel numel, DType dtype) {
  if (factor <= 1.0) return;  // G4: a division by 1 is not launched
  Instruction& i = out_.emit(InstructionKind::Divide, stream, u);
  i.factor = factor;
  i.numel = numel;
  i.dtype = dtype;
  i.bytes = numel * itemsize(dtype);
}

void Gradients::reduce(UnitState& u) {
  const PlanUnit& unit = *u.unit;
  const BufferWhat input = u.grad_buffer;
  const bool compressed = compresses(u);
  DType dtype = u.grad_dtype;
  u.grad = GradKind::None;
  const bool pads = unit.padded_numel != unit.flat_numel;
  if (pads) {
    out_.alloc(Stream::G, u, BufferWhat::GradPadded, unit.padded_numel, dtype);
    out_.work(InstructionKind::Pad, Stream::G, u, BufferWhat::GradPadded, unit.padded_numel, dtype);
  }
  const bool casts_back = compressed || dtype != unit.orig_dtype;
  BufferWhat output = casts_back || u.saved ? BufferWhat::ReduceOut : final_buffer(u);
  out_.alloc(Stream::G, u, output, unit.shard_numel, dtype);
  if (compressed) {
    compress(u, unit.padded_numel);
    if (pads) out_.free(Stream::G, u, BufferWhat::GradPadded);
    output = compress_output(u, output);
    dtype = u.grad_dtype;
  }
  if (!own_hook_) divide(Stream::G, u, run_.plan.pre_divide, unit.padded_numel, dtype);
  Instruction& scatter = out_.work(InstructionKind::ReduceScatter, Stream::G, u, output, unit.padded_numel, dtype);
  scatter.communicator = run_.groups.shard(run_.plan, unit.shard_size);
  scatter.reduce_op = ReduceOp::Sum;
  if (own_hook_) scatter.name = NameId(static_cast<std::int32_t>(MarkName::CommHook));
  Stream stream = Stream::G;
  if (u.hybrid) {  // HS2
    stream = Stream::H;
    out_.wait_stream(Stream::H, Stream::G, u);
    out_.note_use(Stream::G, Stream::H, u, output);
    Instruction& reduce = out_.work(InstructionKind::AllReduce, Stream::H, u, output, unit.shard_numel, dtype);
    reduce.communicator = run_.groups.replicate(run_.plan);
    reduce.reduce_op = ReduceOp::Sum;
  }
  if (!own_hook_) divide(stream, u, run_.plan.post_divide, unit.shard_numel, dtype);
  keep_sharded(u, stream, output);
  if (compressed) out_.free(Stream::G, u, BufferWhat::CompressedGrad);
  if (pads && !compressed) out_.free(Stream::G, u, BufferWhat::GradPadded);
  if (input == BufferWhat::GradReduce) out_.free(Stream::G, u, input);
}

/// The name of the buffer that a sharded gradient ends up in: `.grad`, or what is cast down to it in the end (M4).
BufferWhat Gradients::final_buffer(const UnitState& u) const {
  const bool cast_later = u.unit->keep_low_precision_grads && u.unit->param_dtype != u.unit->orig_dtype;
  return cast_later ? BufferWhat::SavedGrad : BufferWhat::ShardGrad;
}

// Cast back, add to what earlier micro-batches left (G7), bring to the host (C2).
void Gradients::keep_sharded(UnitState& u, Stream stream, BufferWhat output) {
  const PlanUnit& unit = *u.unit;
  Stream pool = Stream::G;
  if (u.grad_dtype != unit.orig_dtype) {
    out_.note_use(pool, stream, u, output);
    const BufferWhat cast_to = u.saved ? BufferWhat::GradCast : final_buffer(u);
    cast(u, stream, cast_to, unit.shard_numel, unit.orig_dtype);
    out_.free(pool, u, output);
    output = cast_to;
    pool = stream;
  }
  if (u.saved) {
    out_.work(InstructionKind::Accumulate, stream, u, u.saved_buffer, unit.shard_numel, unit.orig_dtype);
    out_.free(pool, u, output);
  } else {
    u.saved = true;
    u.saved_buffer = output;
    u.saved_pool = pool;
  }
  if (u.offload) {
    out_.work(InstructionKind::D2h, stream, u, BufferWhat::HostGrad, unit.shard_numel, unit.orig_dtype).pinned = true;
    out_.note_use(u.saved_pool, Stream::G, u, u.saved_buffer);
  }
  if (u.use_orig_params) {
    u.param_grads = u.any_in_shard;
    u.param_grads_unsharded = false;
    u.param_grads_on_host = u.offload;
  }
}

void Gradients::reduce_unsharded(UnitState& u, BufferWhat computed) {
  const PlanUnit& unit = *u.unit;
  if (compresses(u)) {
    const BufferWhat given = u.grad_buffer;
    u.grad_buffer = compress(u, unit.flat_numel);
    if (given == BufferWhat::GradReduce) out_.free(Stream::G, u, given);  // the hook replaces grad.data
    u.grad_pool = Stream::G;
    u.grad_dtype = *hook_dtype_;
  }
  if (!own_hook_) divide(Stream::G, u, run_.plan.pre_divide, unit.flat_numel, u.grad_dtype);
  Instruction& reduce =
      out_.work(InstructionKind::AllReduce, Stream::G, u, u.grad_buffer, unit.flat_numel, u.grad_dtype);
  reduce.communicator = run_.groups.shard(run_.plan);
  reduce.reduce_op = ReduceOp::Sum;
  if (own_hook_) {
    reduce.name = NameId(static_cast<std::int32_t>(MarkName::CommHook));
  } else {
    divide(Stream::G, u, run_.plan.post_divide, unit.flat_numel, u.grad_dtype);
  }
  // A compressing hook casts back itself, whatever keep_low_precision_grads says.
  if ((hook_dtype_ || !unit.keep_low_precision_grads) && u.grad_dtype != unit.orig_dtype) {
    out_.note_use(u.grad_pool, Stream::G, u, u.grad_buffer);
    // What earlier micro-batches left was added to, and is still there under its name.
    const BufferWhat to = computed == BufferWhat::ShardGrad ? BufferWhat::SavedGrad : BufferWhat::ShardGrad;
    cast(u, Stream::G, to, unit.flat_numel, unit.orig_dtype);
    const BufferWhat made = u.grad_buffer;
    if (made == BufferWhat::GradReduce || made == BufferWhat::CompressedGrad) out_.free(Stream::G, u, made);
    u.grad_buffer = to;
    u.grad_pool = Stream::G;
    u.grad_dtype = unit.orig_dtype;
  }
  if (u.offload) {
    Instruction& copy =
        out_.work(InstructionKind::D2h, Stream::G, u, BufferWhat::HostGrad, unit.flat_numel, u.grad_dtype);
    copy.pinned = true;
    copy.blocking = true;  // C2
    out_.note_use(u.grad_pool, Stream::G, u, u.grad_buffer);
  }
  if (u.use_orig_params) {
    u.param_grads = true;
    u.param_grads_unsharded = false;
  }
}

// R13: what was reduced becomes `.grad`.
void Gradients::finalise(UnitState& u) {
  const PlanUnit& unit = *u.unit;
  if (u.hooked) {
    u.hooked = false;
    u.hook_node = autograd::kNoNode;
    if (u.reshard_group >= 0) run_.reshard_groups[static_cast<std::size_t>(u.reshard_group)].active = false;
    u.reshard_group = -1;
  }
  if (!unit.requires_grad || !run_.sync) return;
  const bool called = u.post_backward_called;
  u.post_backward_called = false;
  if (u.host_grad) {
    // The host gradient becomes `.grad`; what it was copied from goes.
    if (u.grad != GradKind::None && u.grad != GradKind::Host) out_.free(u.grad_pool, u, u.grad_buffer);
    if (u.saved) out_.free(u.saved_pool, u, u.saved_buffer);
    u.grad = GradKind::Host;
    u.grad_dtype = unit.orig_dtype;
    u.gradient_is_real = u.gradient_is_real || called;
    if (u.low_host_grad) {
      run_.fail("RuntimeError",
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
      cast(u, Stream::D, BufferWhat::ShardGrad, unit.shard_numel, unit.param_dtype);
      out_.free(u.grad_pool, u, u.grad_buffer);
      u.grad_dtype = unit.param_dtype;
      u.grad_buffer = BufferWhat::ShardGrad;
      u.grad_pool = Stream::D;
    }
  } else if (u.saved) {
    out_.free(u.saved_pool, u, u.saved_buffer);
  }
  u.saved = false;
}

}  // namespace foreshard::fsdp1
