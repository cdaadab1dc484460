#include "sim/device/allocator/held_segments.h"

#include <algorithm>
#include <unordered_map>

namespace foreshard {

std::vector<SegmentInfo> segments_of(const Blocks& blocks) {
  std::vector<SegmentInfo> all;
  for (BlockHandle first = 0; first < blocks.end(); ++first) {
    const Block& block = blocks[first];
    if (!block.alive || block.prev != kNoBlock) continue;
    SegmentInfo info{block.address, 0, 0, 0, block.stream, block.small};
    for (BlockHandle h = first; h != kNoBlock; h = blocks[h].next) {
      if (!blocks[h].mapped) continue;
      info.bytes += blocks[h].size;
      if (blocks[h].allocated) info.allocated += blocks[h].size;
      if (blocks[h].allocated || blocks[h].pending > 0) info.active += blocks[h].size;
    }
    if (info.bytes > 0) all.push_back(info);
  }
  std::sort(all.begin(), all.end(), [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
  return all;
}

std::vector<MemoryLog::Segment> held_segments_of(const Blocks& blocks, const MemoryLog& log) {
  std::unordered_map<Bytes, std::int32_t> origin_of;
  for (const MemoryLog::Event& event : log.events) {
    if (event.action == MemoryAction::Alloc) origin_of[event.address] = event.origin;
  }
  std::vector<MemoryLog::Segment> all;
  for (BlockHandle first = 0; first < blocks.end(); ++first) {
    if (!blocks[first].alive || blocks[first].prev != kNoBlock) continue;
    bool open = false;  // pages in between that are not mapped divide a virtual range into segments
    for (BlockHandle h = first; h != kNoBlock; h = blocks[h].next) {
      const Block& block = blocks[h];
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
