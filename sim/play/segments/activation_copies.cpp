#include "sim/play/segments/activation_copies.h"

#include <bit>
#include <utility>

namespace foreshard {
namespace {

Bytes block_of(Bytes bytes) { return static_cast<Bytes>(std::bit_ceil(static_cast<std::uint64_t>(bytes))); }

}  // namespace

void ActivationCopies::pin(Bytes bytes) {
  Blocks& blocks = pinned_[block_of(bytes)];
  ++blocks.used;
  if (blocks.spare > 0)
    --blocks.spare;
  else
    context_.device.pin_host_memory(bytes);
}

void ActivationCopies::unpin(Bytes bytes) {
  Blocks& blocks = pinned_[block_of(bytes)];
  --blocks.used;
  ++blocks.spare;
}

void ActivationCopies::drop_all() {
  for (auto& [bytes, blocks] : pinned_) blocks.spare += std::exchange(blocks.used, 0);
}

void ActivationCopies::copy(const Kernel& kernel, SimDuration time, ActivitySpan& what) {
  Device& device = context_.device;
  const SimDuration call = device.cost.call_ns();
  what.kind = SpanKind::Copy;
  what.name = kernel.op;
  what.op = -1;
  what.bytes = kernel.read + kernel.written;
  if (kernel.offload == OffloadStep::ToHost) pin(what.bytes);
  device.launch(Stream::O, device.cost.launch_ns(), time, what);
  if (kernel.offload == OffloadStep::ToHost) {
    device.clock.host_cost(call);
    copied_.push_back(device.clock.record(index_of(Stream::O)));
  } else if (kernel.offload == OffloadStep::ToDevice) {
    unpin(what.bytes);
  }
}

void ActivationCopies::play(const Kernel& kernel, const TimedKernel& timed, ActivitySpan what) {
  DeviceClock& clock = context_.device.clock;
  const SimDuration call = context_.device.cost.call_ns();
  const int compute = index_of(Stream::D), copies = index_of(Stream::O);
  const auto back = static_cast<std::size_t>(kernel.offload_back);
  switch (kernel.offload) {
    case OffloadStep::AwaitCompute: clock.host_cost(2 * call); return clock.stream_wait(copies, clock.record(compute));
    case OffloadStep::AwaitCopies: clock.host_cost(2 * call); return clock.stream_wait(compute, clock.record(copies));
    case OffloadStep::AwaitCopy:
      clock.host_cost(call);
      if (back < copied_.size()) clock.stream_wait(compute, copied_[copied_.size() - 1 - back]);
      return;
    case OffloadStep::NoteUse: clock.host_cost(call); return used_.push_back(clock.record(compute));
    case OffloadStep::AwaitUse:
      clock.host_cost(call);
      if (back < used_.size()) clock.stream_wait(copies, used_[used_.size() - 1 - back]);
      return;
    default: return copy(kernel, timed.device, what);
  }
}

}  // namespace foreshard
