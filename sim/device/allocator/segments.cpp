#include "sim/device/allocator/segments.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace foreshard {

BlockHandle Segments::take(std::size_t pool, Bytes size) {
  const Bytes segment = segment_bytes(size);
  if (settings_.memory_fraction > 0 && ledger_.stats.reserved.current + segment > allowed_memory(settings_))
    return kNoBlock;  // A12
  if (settings_.expandable_segments) return expandable_.take(pool, size);
  clock_.host_cost(settings_.driver_ns);
  const Bytes address = take_address(pool, segment);
  return address == DriverMemory::kNoAddress ? kNoBlock : blocks_.make(pool, address, segment);
}

Bytes Segments::take_address(std::size_t pool, Bytes segment) {
  const Bytes address = driver_.allocate(segment);
  if (address == DriverMemory::kNoAddress) return address;
  const auto stream = static_cast<int>(pool / 2);
  ledger_.stats.count_segment(pool % 2 == 1, 1);
  ledger_.reserve(stream, segment);
  ledger_.note(MemoryAction::SegmentAlloc, address, segment, stream);
  return address;
}

void Segments::release(BlockHandle h) {
  const Block block = blocks_[h];
  clock_.device_synchronize();  // cudaFree waits for the device
  clock_.host_cost(settings_.driver_ns);
  driver_.release(block.address, block.size);
  ledger_.stats.count_segment(block.small, -1);
  ledger_.note(MemoryAction::SegmentFree, block.address, block.size, block.stream);
  ledger_.reserve(block.stream, -block.size);
  pools_.erase(h);
  blocks_.drop(h);
}

bool Segments::release_available(std::size_t pool, Bytes size) {
  if (settings_.max_split_size == std::numeric_limits<Bytes>::max()) return false;
  if (settings_.expandable_segments) return false;  // their blocks are passed over: pages go back in release_cached()
  const Bytes wanted = std::max(size, settings_.max_split_size);
  const FreeSet& set = pools_.free_blocks(pool);
  const FreeSet::Cursor enough = set.lower_bound(wanted);
  if (!enough.end()) {
    release(set[enough].block);
    return true;
  }
  Bytes released = 0;
  while (released < wanted && !set.empty() && set[set.last()].size >= settings_.max_split_size) {
    const FreeSet::Entry largest = set[set.last()];
    released += largest.size;
    release(largest.block);
  }
  return released >= wanted;
}

void Segments::release_cached() {
  std::vector<BlockHandle> give_back;
  for (const std::size_t small : {std::size_t{0}, std::size_t{1}}) {
    give_back.clear();
    for (std::size_t pool = small; pool < pools_.count(); pool += 2) {
      const FreeSet& set = pools_.free_blocks(pool);
      for (FreeSet::Cursor it = set.first(); !it.end(); it = set.next(it)) {
        const Block& block = blocks_[set[it].block];
        if (block.expandable >= 0 || !block.is_split()) give_back.push_back(set[it].block);
      }
    }
    for (const BlockHandle h : give_back) {
      if (blocks_[h].expandable >= 0)
        expandable_.unmap(h);
      else
        release(h);
    }
  }
}

void Segments::collect_garbage() {
  const Bytes threshold =
      static_cast<Bytes>(settings_.garbage_collection_threshold * static_cast<double>(allowed_memory(settings_)));
  if (ledger_.stats.reserved.current <= threshold) return;
  const Bytes target = ledger_.stats.reserved.current - threshold;
  Bytes reclaimed = 0;
  bool freed = true;
  while (reclaimed < target && freed) {
    freed = false;
    double total_age = 0;
    std::vector<BlockHandle> candidates;
    for (std::size_t pool = 0; pool < pools_.count(); pool += 2) {  // large ones
      const FreeSet& set = pools_.free_blocks(pool);
      for (FreeSet::Cursor it = set.first(); !it.end(); it = set.next(it)) {
        const Block& block = blocks_[set[it].block];
        if (block.is_split() || block.expandable >= 0) continue;
        candidates.push_back(set[it].block);
        total_age += static_cast<double>(pools_.age(set[it].block));
      }
    }
    if (candidates.empty()) return;
    const double threshold_age = total_age / static_cast<double>(candidates.size());
    for (const BlockHandle h : candidates) {
      if (reclaimed >= target) break;
      if (static_cast<double>(pools_.age(h)) < threshold_age) continue;
      reclaimed += blocks_[h].size;
      release(h);
      freed = true;
    }
  }
}

}  // namespace foreshard
