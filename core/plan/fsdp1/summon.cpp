#include "core/plan/fsdp1/summon.h"

#include <algorithm>

namespace foreshard::fsdp1 {

/// U1, U2: what PyTorch refuses.
bool Summon::may_enter(const SummonOptions& options) {
  if (options.writeback && options.rank0_only) {
    run_.fail("NotImplementedError", "writeback with rank0_only (U2)");
  } else if (options.with_grads && (options.offload_to_cpu || !run_.job.fsdp.use_orig_params)) {
    run_.fail("NotImplementedError", "with_grads needs original parameters on the device (U2)");
  }
  return !run_.failed();
}

// U3: every unit is gathered on the current stream, in the original type, after a device synchronise of its own.
void Summon::enter(const SummonOptions& options) {
  const bool one = options.state >= 0 && options.state < static_cast<std::int32_t>(run_.units.size());
  if (std::any_of(open_.begin(), open_.end(), [&](const Open& open) {
        return !one || open.options.state < 0 || open.options.state == options.state;
      })) {
    return run_.fail("AssertionError", "summon inside summon (U1)");
  }
  const std::size_t begin = one ? static_cast<std::size_t>(options.state) : 0;
  gathering_.lazy_init();
  out_.enter(Phase::Summon, run_.units[begin], MarkName::SummonEnter);
  if (!may_enter(options)) return;
  if (options.offload_to_cpu && !options.rank0_only) {
    run_.warn("summon with offload_to_cpu but without rank0_only copies all parameters to the host once per rank (U2)");
  }
  Open open;
  open.options = options;
  if (!one) open.options.state = -1;
  const std::size_t end = !one && options.recurse ? run_.units.size() : begin + 1;
  for (std::size_t n = begin; n < end; ++n) {
    UnitState& u = run_.units[n];
    if (options.offload_to_cpu && u.has_handle && !u.sharded) {
      return run_.fail("NotImplementedError", "offload_to_cpu with NO_SHARD (U2)");
    }
    out_.emit(InstructionKind::HostWait, Stream::Host, u);
    if (u.has_handle) enter_unit(u, open);
  }
  open_.push_back(std::move(open));
  run_.summoned = true;
  out_.set_phase(Phase::Summon);
  out_.mark(MarkName::SummonEntered, run_.units[begin]);
}

// G8
void Summon::gather_gradient(UnitState& u, Open& open) {
  const CommunicatorId group = run_.groups.shard(run_.plan, u.unit->shard_size);
  Instruction& count = out_.emit(InstructionKind::AllReduce, Stream::D, u);
  count.numel = 1;
  count.dtype = DType::Int32;
  count.bytes = 4;
  count.communicator = group;
  count.reduce_op = ReduceOp::Sum;
  if (u.grad != GradKind::Shard) return;
  out_.alloc(Stream::D, u, BufferWhat::Grad, u.unit->padded_numel, u.grad_dtype);
  open.gathered_grads.push_back(u.id.value);
  out_.work(InstructionKind::AllGather, Stream::D, u, BufferWhat::Grad, u.unit->padded_numel, u.grad_dtype)
      .communicator = group;
}

void Summon::enter_unit(UnitState& u, Open& open) {
  u.state = HandleState::Summon;
  if (u.use_orig_params && !u.param_grads) gradients_.drop(u);
  const bool free_later = gathering_.needs_unshard(u);
  gathering_.unshard(u, Stream::D, Stream::D);
  if (open.options.with_grads && u.sharded) gather_gradient(u, open);
  if (open.options.rank0_only && run_.plan.rank != 0) {
    gathering_.reshard(u, free_later, Stream::D);
    u.state = HandleState::Idle;
    return;
  }
  if (open.options.offload_to_cpu) {
    const BufferWhat what = u.full_precision ? BufferWhat::FullPrecision : BufferWhat::Full;
    out_.work(InstructionKind::D2h, Stream::D, u, what, u.unit->flat_numel, u.unit->orig_dtype).blocking = true;
    gathering_.free_full(u, Stream::D);
  }
  if (u.unit->requires_grad) run_.autograd.skip_number((u.views.size() + 1) * (u.use_orig_params ? 1 : 2));  // views
  // Parameters take the place of the views that kept the accumulation node alive (R26).
  if (!u.use_orig_params && !u.hooked && run_.pending_outputs.empty()) u.accumulation = autograd::kNoNode;
  open.units.push_back(u.id.value);
  open.free.push_back(free_later);
}

// U4: in reverse order, each rank copies its own range back.
void Summon::exit() {
  Open closed;
  if (!open_.empty()) closed = std::move(open_.back());
  const std::int32_t first = std::max(0, closed.options.state);
  out_.enter(Phase::Summon, run_.units[static_cast<std::size_t>(first)], MarkName::SummonExit);
  if (open_.empty()) return;
  open_.pop_back();
  run_.summoned = !open_.empty();
  for (std::size_t n = closed.units.size(); n-- > 0;) {
    exit_unit(run_.units[static_cast<std::size_t>(closed.units[n])], closed, closed.free[n]);
  }
  for (const std::int32_t unit : closed.gathered_grads) {
    out_.free(Stream::D, run_.units[static_cast<std::size_t>(unit)], BufferWhat::Grad);
  }
  out_.set_phase(Phase::None);
}

void Summon::exit_unit(UnitState& u, const Open& closed, bool free_full) {
  const bool precise = u.casts_params && gathering_.full_precision_forced(u);
  if (closed.options.offload_to_cpu) {
    const BufferWhat what = precise ? BufferWhat::FullPrecision : BufferWhat::Full;
    out_.alloc(Stream::D, u, what, u.unit->padded_numel, u.unit->orig_dtype);
    out_.work(InstructionKind::H2d, Stream::D, u, what, u.unit->flat_numel, u.unit->orig_dtype).blocking = true;
    (precise ? u.full_precision : u.full) = true;
    u.full_pool = Stream::D;
  }
  // Views made here, on D, give the flat parameter its next accumulation node (R26).
  if (!u.use_orig_params && u.unit->requires_grad) gathering_.accumulation(u, Stream::D);
  if (closed.options.writeback && u.sharded) {
    out_.work(InstructionKind::CopyOut, Stream::D, u, BufferWhat::Shard, u.unit->shard_numel, u.unit->orig_dtype);
  }
  gathering_.reshard(u, free_full, Stream::D);
  u.state = HandleState::Idle;
}

}  // namespace foreshard::fsdp1
