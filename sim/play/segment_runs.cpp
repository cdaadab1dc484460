// The part of PlanPlayer that sums up what runs of segments do in the pools, and passes over runs that a tape has.
//
// Memory first, then time: inside a run the one reaches the other only where the driver is asked for a segment.
#include <algorithm>
#include <utility>

#include "core/result.h"
#include "sim/play/plan_player.h"

namespace foreshard {
namespace {

constexpr int kCompute = static_cast<int>(Stream::D);

}  // namespace

bool PlanPlayer::is_held(std::int32_t slot) const {
  return std::any_of(lowered_.held.begin(), lowered_.held.end(), [&](const ImportBinding& held) {
    return slot_base_[static_cast<std::size_t>(held.instance)] + static_cast<std::size_t>(held.slot) ==
           static_cast<std::size_t>(slot);
  });
}

// ------------------------------------------------------------------------------------------------ summing up

void PlanPlayer::begin_run(const KernelList& list, std::int32_t instance, std::uint8_t had_workspaces) {
  if (!device_.allocator.records(kCompute) || device_.allocator.has_pending()) {
    record_runs_ = nullptr;  // what happens in it depends on when it runs
    return;
  }
  open_run_ = {};
  open_run_.open = true;
  open_run_.before = device_.allocator.stats();
  open_run_.categories = device_.book.now();
  open_run_.reserved = open_run_.before.reserved.current;
  open_run_.events = device_.activity.events;
  open_run_.run.kernels = &list;
  open_run_.run.instance = instance;
  open_run_.run.had_workspaces = had_workspaces;
  open_run_.run.workspace = workspace_bytes();
  open_run_.run.begin = device_.allocator.tape_place(kCompute);
}

void PlanPlayer::note_made(std::int32_t slot, BlockHandle block, std::int32_t gradient) {
  if (block < 0) return;
  const bool again = slot >= 0 && slots_[static_cast<std::size_t>(slot)] >= 0;  // two blocks of one slot
  if (again || !device_.allocator.records(kCompute)) {
    open_run_.open = false;
    record_runs_ = nullptr;
    return;
  }
  SegmentRun& run = open_run_.run;
  const bool small = device_.allocator.is_small(block);
  ++run.made[small ? 1 : 0];
  const SegmentRun::Holding holding{slot,
                                    device_.allocator.number_of(block),
                                    device_.allocator.block_bytes(block),
                                    device_.allocator.requested_bytes(block),
                                    small,
                                    static_cast<std::uint8_t>(device_.book.category(block))};
  if (slot >= 0) record_runs_->holdings.push_back(holding);
  if (gradient >= 0 || (slot >= 0 && is_held(slot))) run.kept.push_back({holding, gradient});
  const Bytes reserved = device_.allocator.stats().reserved.current;
  if (reserved > open_run_.reserved) run.calls.push_back({open_run_.kernel, small, reserved - open_run_.reserved});
  open_run_.reserved = reserved;
}

void PlanPlayer::note_dropped(std::int32_t slot) {
  if (slots_[static_cast<std::size_t>(slot)] < 0) return;
  SegmentRun::Holding nobody;
  nobody.slot = slot;
  record_runs_->holdings.push_back(nobody);
  if (is_held(slot)) open_run_.run.kept.push_back({nobody, -1});
}

void PlanPlayer::note_change() {
  SegmentRun& run = open_run_.run;
  const AllocatorStats &now = device_.allocator.stats(), &before = open_run_.before;
  if (now.allocated.current - before.allocated.current > run.allocated.highest) {
    for (std::size_t c = 0; c < kMemoryCategories; ++c)
      run.at_highest[c] = device_.book.now()[c] - open_run_.categories[c];
  }
  run.allocated.note(now.allocated.current - before.allocated.current);
  run.active.note(now.active.current - before.active.current);
  run.requested.note(now.requested.current - before.requested.current);
  run.inactive.note(now.inactive_split.current - before.inactive_split.current);
}

void PlanPlayer::end_run(bool ok) {
  open_run_.open = false;
  if (!ok || !device_.allocator.records(kCompute) || device_.allocator.has_pending()) {
    record_runs_ = nullptr;
    return;
  }
  SegmentRun& run = open_run_.run;
  run.end_holding = record_runs_->holdings.size();
  run.end = device_.allocator.tape_place(kCompute);
  run.events = device_.activity.events - open_run_.events;
  for (std::size_t c = 0; c < kMemoryCategories; ++c)
    run.categories[c] = device_.book.now()[c] - open_run_.categories[c];
  record_runs_->runs.push_back(std::move(run));
}

// ------------------------------------------------------------------------------------------------ passing over

/// False: the run has to be played, and from here on all others.
bool PlanPlayer::skip_run(const Instruction& i, const KernelList& list, const std::vector<TimedKernel>& times,
                          std::int32_t instance, std::uint8_t& workspaces) {
  const SegmentRun* const run = next_run_ < follow_runs_->runs.size() ? &follow_runs_->runs[next_run_] : nullptr;
  const Bytes allocated = device_.allocator.stats().allocated.current;
  const bool same = run != nullptr && run->kernels == &list && run->instance == instance &&
                    run->had_workspaces == workspaces && i.stream == Stream::D &&
                    (run->made_workspaces == 0 || run->workspace == workspace_bytes()) && device_.clock.is_plain() &&
                    !device_.allocator.has_pending() && device_.allocator.skip(kCompute, *run);
  if (!same) {
    make_skipped_blocks();
    return false;
  }
  device_.book.skip(*run, allocated);
  ++next_run_;
  workspaces |= run->made_workspaces;
  device_.activity.events += run->events;
  for (const SegmentRun::Kept& kept : run->kept) {
    if (kept.holding.number < 0) {
      device_.allocator.disown(std::exchange(slots_[static_cast<std::size_t>(kept.holding.slot)], kNoBlock));
      continue;
    }
    const BlockHandle block = device_.allocator.adopt(kCompute, kept.holding);
    device_.book.adopt(block, static_cast<MemoryCategory>(kept.holding.category));
    if (kept.gradient < 0) {
      slots_[static_cast<std::size_t>(kept.holding.slot)] = block;
      continue;
    }
    const SegmentInstance& lowered = lowered_.instances[static_cast<std::size_t>(instance)];
    const SegmentTemplate& segment = lowered_.templates[static_cast<std::size_t>(lowered.lowered)];
    own_buffer(gradient_buffer(segment.slots[static_cast<std::size_t>(kept.gradient)], instance), 0, block);
  }
  device_.clock.host_cost(device_.cost.segment_host());
  auto call = run->calls.begin();
  device_.launch_all(times, i.phase, [&](std::size_t kernel) {
    SimDuration host = 0;
    for (; call != run->calls.end() && call->kernel == kernel; ++call) host += device_.profile.driver_alloc_ns;
    return host;
  });
  return true;
}

/// What the runs so far hold, block by block.
void PlanPlayer::make_skipped_blocks() {
  const PoolTape& tape = *std::exchange(follow_runs_, nullptr);
  std::vector<const SegmentRun::Holding*> held(slots_.size(), nullptr);
  const std::size_t end = next_run_ > 0 ? tape.runs[next_run_ - 1].end_holding : 0;
  for (std::size_t k = 0; k < end; ++k) {
    const SegmentRun::Holding& holding = tape.holdings[k];
    held[static_cast<std::size_t>(holding.slot)] = holding.number >= 0 ? &holding : nullptr;
  }
  for (const ImportBinding& kept : lowered_.held)  // these are there, or have been dropped
    held[slot_base_[static_cast<std::size_t>(kept.instance)] + static_cast<std::size_t>(kept.slot)] = nullptr;
  for (std::size_t slot = 0; slot < held.size(); ++slot) {
    if (held[slot] == nullptr) continue;
    slots_[slot] = device_.allocator.adopt(kCompute, *held[slot]);
    device_.book.adopt(slots_[slot], static_cast<MemoryCategory>(held[slot]->category));
  }
}

}  // namespace foreshard
