// The free blocks of one caching allocator, two pools a stream (large and small): best fit, split and merge (A2, A4,
// A5, A8). Pools never ask the driver: what they hold comes from sim/device/allocator/segments.h. Sizes in bytes,
// rounded.
#pragma once

#include <cstdint>
#include <vector>

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
  BlockHandle hand_out(BlockHandle h, Bytes size, Bytes requested) {
    return hand_out(free_of(h), h, size, requested);
  }
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

}  // namespace foreshard
