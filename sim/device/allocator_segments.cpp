// The part of CachingAllocator that tells what it holds.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/result.h"
#include "sim/device/caching_allocator.h"

namespace foreshard {

std::vector<SegmentInfo> CachingAllocator::segments() const {
  std::vector<SegmentInfo> all;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (!blocks_[i].alive || blocks_[i].prev != kNoBlock) continue;
    SegmentInfo info{blocks_[i].address, 0, 0, 0, blocks_[i].stream, blocks_[i].small};
    for (BlockHandle h = static_cast<BlockHandle>(i); h != kNoBlock; h = at(h).next) {
      if (!at(h).mapped) continue;
      info.bytes += at(h).size;
      if (at(h).allocated) info.allocated += at(h).size;
      if (at(h).allocated || at(h).pending > 0) info.active += at(h).size;
    }
    if (info.bytes > 0) all.push_back(info);
  }
  std::sort(all.begin(), all.end(), [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
  return all;
}

std::vector<MemoryLog::Segment> CachingAllocator::held_segments() const {
  FORESHARD_CHECK(log_ != nullptr, "whose a block is stands in the log");
  std::unordered_map<Bytes, std::int32_t> origin_of;
  for (const MemoryLog::Event& event : log_->events) {
    if (event.action == MemoryAction::Alloc) origin_of[event.address] = event.origin;
  }
  std::vector<MemoryLog::Segment> all;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (!blocks_[i].alive || blocks_[i].prev != kNoBlock) continue;
    bool open = false;  // pages in between that are not mapped divide a virtual range into segments
    for (BlockHandle h = static_cast<BlockHandle>(i); h != kNoBlock; h = at(h).next) {
      const Block& block = at(h);
      if (block.mapped && !open)
        all.push_back({block.address, 0, 0, 0, 0, block.stream, block.small, block.expandable >= 0, {}});
      open = block.mapped;
      if (!open) continue;
      MemoryLog::Segment& segment = all.back();
      const bool active = block.allocated || block.pending > 0;
      const auto origin = origin_of.find(block.address);
      segment.bytes += block.size;
      if (block.allocated) segment.allocated += block.size;
      if (active) segment.active += block.size;
      if (active) segment.requested += block.requested;
      segment.blocks.push_back({block.address, block.size, active ? block.requested : 0,
                                block.allocated ? MemoryLog::State::Allocated
                                : active        ? MemoryLog::State::PendingFree
                                                : MemoryLog::State::Inactive,
                                active && origin != origin_of.end() ? origin->second : -1});
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
  return all;
}

}  // namespace foreshard
