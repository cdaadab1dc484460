#include "sim/device/allocator/pools.h"

#include <algorithm>

#include "core/result.h"

namespace foreshard {

// ------------------------------------------------------------------------------------------------ free sets

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

}  // namespace foreshard
