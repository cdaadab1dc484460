// The free blocks of one caching allocator, two pools a stream (large and small): best fit, split and merge (A2, A4,
// A5, A8). Pools never ask the driver: what they hold comes from sim/device/allocator/segments.h. Sizes in bytes,
// rounded.
#pragma once

#include <cstdint>
#include <vector>

#include "core/result.h"
#include "core/units.h"
#include "sim/device/allocator/allocator_ledger.h"
#include "sim/device/allocator/blocks.h"
#include "sim/device/allocator/free_set.h"
#include "sim/device/allocator/settings.h"

namespace foreshard {

class Pools {
 public:
  Pools(const AllocatorSettings& settings, int streams, Blocks& blocks, AllocatorLedger& ledger)
      : settings_(settings), blocks_(blocks), ledger_(ledger), pools_(2 * static_cast<std::size_t>(streams)) {}

  std::size_t count() const { return pools_.size(); }
  const FreeSet& free_blocks(std::size_t pool) const { return pools_[pool].free; }
  /// By address; expandable segments only.
  const std::vector<BlockHandle>& unmapped_blocks(std::size_t pool) const { return pools_[pool].unmapped; }

  /// The best fit of the pool's free blocks, cut to size and handed out. kNoBlock: none serves.
  BlockHandle take(std::size_t pool, Bytes size, Bytes requested);
  /// A block that stands in no pool, cut to size; what is left of it is free.
  BlockHandle hand_out(BlockHandle h, Bytes size, Bytes requested) { return hand_out(free_of(h), h, size, requested); }
  /// A block whose free has completed joins its free neighbours in its pool. The change of inactive_split bytes.
  Bytes take_back(BlockHandle h);

  void insert(BlockHandle h) { insert(free_of(h), h, blocks_[h], blocks_[h].size, blocks_[h].address); }
  void erase(BlockHandle h) { erase(free_of(h), h); }
  void insert_unmapped(BlockHandle h);
  void erase_unmapped(BlockHandle h);
  /// Joins `from` to its neighbour if both are free and alike. Bytes that `into` grew by.
  Bytes merge(BlockHandle into, BlockHandle from) {
    return from == kNoBlock ? 0 : merge_neighbour(free_of(into), into, from);
  }

  /// Searches since the block became free (A9).
  std::int64_t age(BlockHandle h) const { return searches_ - blocks_[h].age; }
  std::int64_t searches() const { return searches_; }
  void set_searches(std::int64_t searches) { searches_ = searches; }

 private:
  struct Pool {
    FreeSet free;
    std::vector<BlockHandle> unmapped;
  };

  FreeSet& free_of(BlockHandle h) { return pools_[blocks_[h].pool()].free; }
  BlockHandle find(FreeSet& set, Bytes size);
  FreeSet::Cursor most_growth(const FreeSet& set, FreeSet::Cursor at) const;
  bool should_split(const Block& block, Bytes size) const;
  BlockHandle hand_out(FreeSet& set, BlockHandle h, Bytes size, Bytes requested);
  BlockHandle split(FreeSet& set, BlockHandle h, Bytes size, bool was_split);
  void insert(FreeSet& set, BlockHandle h, Block& block, Bytes size, Bytes address);
  void erase(FreeSet& set, BlockHandle h);
  Bytes merge_neighbour(FreeSet& set, BlockHandle into, BlockHandle from);

  const AllocatorSettings& settings_;
  Blocks& blocks_;
  AllocatorLedger& ledger_;
  std::vector<Pool> pools_;
  std::int64_t searches_ = 0;
};

// What runs for every block of every kernel stands here: the allocator makes one function of it.

// Size and address as the caller has them: read back right after they were written, they would stall the processor.
inline void Pools::insert(FreeSet& set, BlockHandle h, Block& block, Bytes size, Bytes address) {
  block.age = searches_;
  set.insert({size, address, h});
}

inline void Pools::erase(FreeSet& set, BlockHandle h) {
  const bool erased = set.erase({blocks_[h].size, blocks_[h].address, h});
  FORESHARD_CHECK(erased, "a free block stands in its pool");
}

inline BlockHandle Pools::find(FreeSet& set, Bytes size) {
  ++searches_;
  FreeSet::Cursor it = set.lower_bound(size);
  if (it.end()) return kNoBlock;
  if (settings_.expandable_segments) it = most_growth(set, it);
  // A4
  const FreeSet::Entry& found = set[it];
  if (size < settings_.max_split_size && found.size >= settings_.max_split_size) return kNoBlock;
  if (size >= settings_.max_split_size && found.size >= size + settings_.max_non_split_rounding) return kNoBlock;
  const BlockHandle block = found.block;
  set.erase(it);
  return block;
}

inline bool Pools::should_split(const Block& block, Bytes size) const {  // A5
  const Bytes rest = block.size - size;
  if (settings_.exact) return rest > 0;
  if (block.small || settings_.expandable_segments) return rest >= kMinBlock;
  return size < settings_.max_split_size && rest > kSmallLimit;
}

/// What is left of the block goes back to its pool.
inline BlockHandle Pools::split(FreeSet& set, BlockHandle rest, Bytes size, bool was_split) {
  const BlockHandle h = blocks_.make_like(rest);
  Block& tail = blocks_[rest];
  const Bytes rest_address = tail.address + size, rest_size = tail.size - size;
  blocks_[h].size = size;
  tail.address = rest_address;
  tail.size = rest_size;
  insert(set, rest, tail, rest_size, rest_address);
  if (tail.expandable < 0) {  // pages of expandable segments can always be given back
    if (was_split)
      ledger_.stats.inactive_split.remove(size);
    else
      ledger_.stats.inactive_split.add(rest_size);
  }
  return h;
}

inline BlockHandle Pools::hand_out(FreeSet& set, BlockHandle h, Bytes size, Bytes requested) {
  const bool was_split = blocks_[h].is_split();
  AllocatorStats& stats = ledger_.stats;
  if (should_split(blocks_[h], size)) {
    h = split(set, h, size, was_split);
  } else {
    size = blocks_[h].size;
    if (was_split && blocks_[h].expandable < 0) stats.inactive_split.remove(size);
  }
  Block& block = blocks_[h];
  block.allocated = true;
  block.requested = requested;
  block.uses = 0;
  ++stats.allocations;
  stats.allocated.add(size);
  stats.active.add(size);
  stats.requested.add(requested);
  ledger_.note(MemoryAction::Alloc, block.address, requested, block.stream);
  return h;
}

inline BlockHandle Pools::take(std::size_t pool, Bytes size, Bytes requested) {
  FreeSet& set = pools_[pool].free;
  const BlockHandle found = find(set, size);
  return found == kNoBlock ? kNoBlock : hand_out(set, found, size, requested);
}

inline Bytes Pools::take_back(BlockHandle h) {
  Block& block = blocks_[h];
  AllocatorStats& stats = ledger_.stats;
  const Bytes size = block.size;
  ledger_.note(MemoryAction::FreeCompleted, block.address, block.requested, block.stream);
  FreeSet& set = free_of(h);
  Bytes merged = block.prev == kNoBlock ? 0 : merge_neighbour(set, h, block.prev);
  merged += block.next == kNoBlock ? 0 : merge_neighbour(set, h, block.next);
  insert(set, h, block, size + merged, block.address);
  Bytes change = 0;
  if (block.expandable < 0) {
    change = (block.is_split() ? size + merged : 0) - merged;
    ledger_.change_inactive(change);
  }
  stats.active.remove(size);
  stats.requested.remove(block.requested);
  block.requested = 0;
  return change;
}

inline Bytes Pools::merge_neighbour(FreeSet& set, BlockHandle into, BlockHandle from) {
  const Block& source = blocks_[from];
  if (source.allocated || source.pending > 0 || source.mapped != blocks_[into].mapped) return 0;
  const Bytes size = source.size;
  if (source.mapped)
    erase(set, from);
  else
    erase_unmapped(from);
  blocks_.join(into, from);
  return size;
}

}  // namespace foreshard
