#include "sim/play/segments/run_follower.h"

#include <utility>

#include "core/result.h"

namespace foreshard {
/// What the allocator has passed over; nullptr: the tape says something else.
const SegmentRun* RunFollower::next_run(const Instruction& i, const KernelList& list, std::int32_t instance,
                                        std::size_t additions, std::uint8_t workspaces, Bytes workspace) {
  const SegmentRun* const run = next_ < tape_->runs.size() ? &tape_->runs[next_] : nullptr;
  CachingAllocator& allocator = context_.device.allocator;
  const bool same = run != nullptr && run->kernels == &list && run->instance == instance &&
                    run->additions == additions && run->had_workspaces == workspaces && i.stream == Stream::D &&
                    (run->made_workspaces == 0 || run->workspace == workspace) && context_.device.clock.is_plain() &&
                    !allocator.pending().any() && allocator.tapes().skip(kCompute, *run);
  return same ? run : nullptr;
}

bool RunFollower::skip(const Instruction& i, const KernelList& list, const std::vector<TimedKernel>& times,
                       std::size_t number, std::int32_t instance, std::size_t additions, std::uint8_t& workspaces,
                       Bytes workspace) {
  Device& device = context_.device;
  const Bytes allocated = device.allocator.stats().allocated.current;
  const SegmentRun* const run = next_run(i, list, instance, additions, workspaces, workspace);
  if (run == nullptr) {
    make_skipped_blocks();
    return false;
  }
  device.book.skip(*run, allocated);
  ++next_;
  workspaces |= run->made_workspaces;
  device.activity.events += run->events;
  keep(*run, instance);
  device.clock.host_cost(device.cost.segment_host());
  place(*run, i.phase, times, number);
  return true;
}

void RunFollower::place(const SegmentRun& run, Phase phase, const std::vector<TimedKernel>& times, std::size_t number) {
  Device& device = context_.device;
  if (run.calls.empty() && number != kOwnLaunches) {
    device.launch_all(lists_.of(number, times), phase);
    return;
  }
  auto call = run.calls.begin();
  device.launch_all(times, phase, [&](std::size_t kernel) {
    SimDuration host = 0;
    for (; call != run.calls.end() && call->kernel == kernel; ++call) host += device.profile.driver_alloc_ns;
    return host;
  });
}

bool RunFollower::pass(const SegmentRun& run) {
  Device& device = context_.device;
  const Bytes allocated = device.allocator.stats().allocated.current;
  if (!device.clock.is_plain() || device.allocator.pending().any() || !device.allocator.tapes().skip(kCompute, run))
    return false;
  device.book.skip(run, allocated);
  ++next_;
  device.activity.events += run.events;
  return true;
}

/// What must be there of a run: blocks that others than segments look at.
void RunFollower::keep(const SegmentRun& run, std::int32_t instance) {
  Device& device = context_.device;
  for (const SegmentRun::Kept& kept : run.kept) {
    if (kept.holding.number < 0 && kept.gradient >= 0) {
      const std::int32_t param =
          storages_.template_of(instance).gradients[static_cast<std::size_t>(kept.gradient)].param;
      const Slot made{0, SlotCategory::ParamGrad, ParamId(param), {}};
      const BlockHandle block = buffers_.take_newest(storages_.gradient_buffer(made, instance));
      if (block == kPassedBlock)
        --passed_;
      else
        device.allocator.tapes().disown(block);
      continue;
    }
    if (kept.gradient >= 0 && pass_gradient(kept.holding)) continue;
    if (kept.holding.number < 0) {
      device.allocator.tapes().disown(std::exchange(storages_[kept.holding.slot], kNoBlock));
      continue;
    }
    const BlockHandle block = device.allocator.tapes().adopt(kCompute, kept.holding);
    device.book.adopt(block, static_cast<MemoryCategory>(kept.holding.category));
    if (kept.gradient < 0) {
      storages_[kept.holding.slot] = block;
      continue;
    }
    const SegmentTemplate& segment = storages_.template_of(instance);
    const Slot& made = segment.slots[static_cast<std::size_t>(kept.gradient)];
    buffers_.own(storages_.gradient_buffer(made, instance), 0, block);
  }
}

/// A gradient that lies alone in its buffer is made when somebody asks for it.
bool RunFollower::pass_gradient(const SegmentRun::Holding& holding) {
  const auto slots = static_cast<std::int32_t>(storages_.count());
  if (holding.slot < slots) return false;
  BlockHandle& block = buffers_.block(static_cast<std::size_t>(holding.slot - slots));
  if (block != kNoBlock) return false;
  block = kPassedBlock;
  ++passed_;
  return true;
}

void RunFollower::make_skipped_blocks() {
  const PoolTape& tape = *std::exchange(tape_, nullptr);
  Device& device = context_.device;
  const std::size_t slots = storages_.count();  // then the plan's buffers
  std::vector<const SegmentRun::Holding*> held(slots + buffers_.count(), nullptr);
  const std::size_t end = next_ > 0 ? tape.runs[next_ - 1].end_holding : 0;
  for (std::size_t k = 0; k < end; ++k) {
    const SegmentRun::Holding& holding = tape.holdings[k];
    held[static_cast<std::size_t>(holding.slot)] = holding.number >= 0 ? &holding : nullptr;
  }
  for (const ImportBinding& kept : context_.lowered.held)  // these are there, or have been dropped
    held[static_cast<std::size_t>(storages_.place(kept.instance, kept.slot))] = nullptr;
  for (std::size_t slot = 0; slot < held.size(); ++slot) {
    BlockHandle* const passed = slot < slots ? nullptr : &buffers_.block(slot - slots);
    if (held[slot] == nullptr || (passed != nullptr && *passed != kPassedBlock)) continue;
    const BlockHandle block = device.allocator.tapes().adopt(kCompute, *held[slot]);
    (passed != nullptr ? *passed : storages_[static_cast<std::int32_t>(slot)]) = block;
    passed_ -= passed != nullptr ? 1 : 0;
    device.book.adopt(block, static_cast<MemoryCategory>(held[slot]->category));
  }
  FORESHARD_CHECK(passed_ == 0, "a tape says which block a buffer has");
}

}  // namespace foreshard
