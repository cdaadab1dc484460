#include "sim/device/allocator/pools.h"

#include <algorithm>

#include "core/result.h"

namespace foreshard {

// ------------------------------------------------------------------------------------------------ free sets

// Size and address as the caller has them: read back right after they were written, they would stall the processor.
void Pools::insert(FreeSet& set, BlockHandle h, Block& block, Bytes size, Bytes address) {
  block.age = searches_;
  set.insert({size, address, h});
}

void Pools::erase(FreeSet& set, BlockHandle h) {
  const bool erased = set.erase({blocks_[h].size, blocks_[h].address, h});
  FORESHARD_CHECK(erased, "a free block stands in its pool");
}

[[gnu::noinline]] void Pools::insert_unmapped(BlockHandle h) {
  std::vector<BlockHandle>& set = pools_[blocks_[h].pool()].unmapped;
  const auto before = [this](BlockHandle a, BlockHandle b) { return blocks_[a].address < blocks_[b].address; };
  set.insert(std::lower_bound(set.begin(), set.end(), h, before), h);
}

[[gnu::noinline]] void Pools::erase_unmapped(BlockHandle h) {
  std::vector<BlockHandle>& set = pools_[blocks_[h].pool()].unmapped;
  const auto it = std::find(set.begin(), set.end(), h);
  FORESHARD_CHECK(it != set.end(), "an unmapped block stands in its pool");
  set.erase(it);
}

// ------------------------------------------------------------------------------------------------ handing out

/// A10: what a block can still grow to counts as its size.
[[gnu::noinline]] FreeSet::Cursor Pools::most_growth(const FreeSet& set, FreeSet::Cursor at) const {
  const auto extent = [this](BlockHandle h) {
    const Block& block = blocks_[h];
    const bool grows = block.next != kNoBlock && !blocks_[block.next].mapped;
    return block.size + (grows ? blocks_[block.next].size : 0);
  };
  for (auto next = set.next(at); !next.end() && extent(set[next].block) < extent(set[at].block);
       next = set.next(next)) {
    at = next;
  }
  return at;
}

BlockHandle Pools::find(FreeSet& set, Bytes size) {
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

bool Pools::should_split(const Block& block, Bytes size) const {  // A5
  const Bytes rest = block.size - size;
  if (settings_.exact) return rest > 0;
  if (block.small || settings_.expandable_segments) return rest >= kMinBlock;
  return size < settings_.max_split_size && rest > kSmallLimit;
}

/// What is left of the block goes back to its pool.
BlockHandle Pools::split(FreeSet& set, BlockHandle rest, Bytes size, bool was_split) {
  const BlockHandle h = blocks_.cut(rest, size);
  Block& tail = blocks_[rest];
  const Bytes rest_size = tail.size;
  insert(set, rest, tail, rest_size, tail.address);
  if (tail.expandable < 0) {  // pages of expandable segments can always be given back
    if (was_split)
      ledger_.stats.inactive_split.remove(size);
    else
      ledger_.stats.inactive_split.add(rest_size);
  }
  return h;
}

BlockHandle Pools::hand_out(FreeSet& set, BlockHandle h, Bytes size, Bytes requested) {
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

// All that happens between here and the free set is one function: it runs for every kernel of every layer.
[[gnu::flatten]] BlockHandle Pools::take(std::size_t pool, Bytes size, Bytes requested) {
  FreeSet& set = pools_[pool].free;
  const BlockHandle found = find(set, size);
  return found == kNoBlock ? kNoBlock : hand_out(set, found, size, requested);
}

// ------------------------------------------------------------------------------------------------ taking back

[[gnu::flatten]] Bytes Pools::take_back(BlockHandle h) {
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

Bytes Pools::merge_neighbour(FreeSet& set, BlockHandle into, BlockHandle from) {
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
