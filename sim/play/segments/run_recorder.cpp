#include "sim/play/segments/run_recorder.h"

#include <algorithm>
#include <utility>

namespace foreshard {
/// False: what happens depends on when it runs, and nothing is recorded from here on.
bool RunRecorder::start() {
  const CachingAllocator& allocator = device_.allocator;
  if (!allocator.tapes().records(kCompute) || allocator.pending().any()) {
    tape_ = nullptr;
    return false;
  }
  open_ = true;
  before_ = allocator.stats();
  categories_ = device_.book.now();
  events_ = device_.activity.events;
  run_ = {};
  run_.begin = allocator.tapes().place(kCompute);
  return true;
}

void RunRecorder::begin(const KernelList& list, std::int32_t instance, std::uint8_t had_workspaces, Bytes workspace) {
  if (!start()) return;
  kernel_ = 0;
  reserved_ = before_.reserved.current;
  run_.kernels = &list;
  run_.instance = instance;
  run_.had_workspaces = had_workspaces;
  run_.workspace = workspace;
}

void RunRecorder::begin() {
  if (!start()) return;
  before_ = device_.allocator.part_peaks();
  peak_ = device_.book.part_peak();
  made_before_ = device_.allocator.tapes().allocations(kCompute);
  calls_before_ = device_.allocator.tapes().driver_calls().size();
}

SegmentRun::Holding RunRecorder::holding_of(std::int32_t slot, BlockHandle block) const {
  const CachingAllocator& allocator = device_.allocator;
  return {slot,
          allocator.tapes().number_of(block),
          allocator.block_bytes(block),
          allocator.requested_bytes(block),
          allocator.is_small(block),
          static_cast<std::uint8_t>(device_.book.category(block))};
}

void RunRecorder::holds(std::int32_t slot, BlockHandle block) { tape_->holdings.push_back(holding_of(slot, block)); }

void RunRecorder::made(std::int32_t slot, bool again, bool held, BlockHandle block, std::int32_t gradient) {
  if (block < 0) return;
  const CachingAllocator& allocator = device_.allocator;
  if (again || !allocator.tapes().records(kCompute)) {
    give_up();
    return;
  }
  const bool small = allocator.is_small(block);
  ++run_.made[small ? 1 : 0];
  const SegmentRun::Holding holding = holding_of(slot, block);
  if (slot >= 0) tape_->holdings.push_back(holding);
  if (gradient >= 0 || held) run_.kept.push_back({holding, gradient});
  const Bytes reserved = allocator.stats().reserved.current;
  if (reserved > reserved_) run_.calls.push_back({kernel_, small, reserved - reserved_});
  reserved_ = reserved;
}

void RunRecorder::made_workspace(std::uint8_t which, BlockHandle block) {
  run_.made_workspaces |= which;
  made(-1, false, false, block, -1);
  changed();
}

void RunRecorder::dropped(std::int32_t slot, bool held) {
  SegmentRun::Holding nobody;
  nobody.slot = slot;
  tape_->holdings.push_back(nobody);
  if (held) run_.kept.push_back({nobody, -1});
}

void RunRecorder::gradient_dropped(std::int32_t gradient, std::int32_t slot, BlockHandle block) {
  if (slot >= 0) dropped(slot, false);
  const CachingAllocator& allocator = device_.allocator;
  const std::int32_t number = allocator.tapes().number_of(block);
  const bool small = allocator.is_small(block);
  const auto own = std::find_if(run_.kept.begin(), run_.kept.end(), [&](const SegmentRun::Kept& kept) {
    return kept.gradient >= 0 && kept.holding.number == number && kept.holding.small == small;
  });
  if (own != run_.kept.end())
    run_.kept.erase(own);
  else
    run_.kept.push_back({{}, gradient});  // of an earlier run
}

void RunRecorder::changed() {
  const AllocatorStats& now = device_.allocator.stats();
  if (now.allocated.current - before_.allocated.current > run_.allocated.highest) {
    for (std::size_t c = 0; c < kMemoryCategories; ++c) run_.at_highest[c] = device_.book.now()[c] - categories_[c];
  }
  run_.allocated.note(now.allocated.current - before_.allocated.current);
  run_.active.note(now.active.current - before_.active.current);
  run_.requested.note(now.requested.current - before_.requested.current);
  run_.inactive.note(now.inactive_split.current - before_.inactive_split.current);
}

bool RunRecorder::finish(bool ok) {
  open_ = false;
  const CachingAllocator& allocator = device_.allocator;
  if (!ok || !allocator.tapes().records(kCompute) || allocator.pending().any()) {
    tape_ = nullptr;
    return false;
  }
  run_.end_holding = tape_->holdings.size();
  run_.end = allocator.tapes().place(kCompute);
  run_.events = device_.activity.events - events_;
  for (std::size_t c = 0; c < kMemoryCategories; ++c) run_.categories[c] = device_.book.now()[c] - categories_[c];
  return true;
}

void RunRecorder::end(bool ok, std::size_t additions) {
  run_.additions = additions;
  if (finish(ok)) tape_->runs.push_back(std::move(run_));
}

void RunRecorder::end_instructions(bool ok, std::int32_t first) {
  CachingAllocator& allocator = device_.allocator;
  const AllocatorStats now = allocator.stats();
  const bool kept = finish(ok);
  if (kept) {
    const auto change = [&](MemoryStat AllocatorStats::*stat) -> SegmentRun::Change {
      const Bytes was = (before_.*stat).current;
      return {(now.*stat).current - was, (now.*stat).peak - was};
    };
    run_.allocated = change(&AllocatorStats::allocated);
    run_.active = change(&AllocatorStats::active);
    run_.requested = change(&AllocatorStats::requested);
    run_.inactive = change(&AllocatorStats::inactive_split);
    const MemoryBook& book = device_.book;
    for (std::size_t c = 0; c < kMemoryCategories; ++c) run_.at_highest[c] = book.at_peak()[c] - categories_[c];
    run_.highest_at = book.peak_instruction() - first;
    const PoolTapes& tapes = allocator.tapes();
    for (std::size_t pool = 0; pool < 2; ++pool)
      run_.made[pool] = tapes.allocations(kCompute)[pool] - made_before_[pool];
    run_.calls.assign(tapes.driver_calls().begin() + static_cast<std::ptrdiff_t>(calls_before_),
                      tapes.driver_calls().end());
  }
  allocator.join_peaks(before_);
  device_.book.join_peak(peak_);
  if (kept) tape_->runs.push_back(std::move(run_));
}

}  // namespace foreshard
