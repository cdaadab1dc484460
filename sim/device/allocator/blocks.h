// The blocks of one caching allocator and who lies beside whom: address ranges that are cut in two and joined again.
// Whether a block is free, and in which pool, is the business of sim/device/allocator/pools.h.
//
// A handle stays valid until its block is dropped; a reference only until the next block is made. Bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "core/units.h"

namespace foreshard {

using BlockHandle = std::int32_t;
inline constexpr BlockHandle kNoBlock = -1;      // out of memory
inline constexpr BlockHandle kEmptyBlock = -2;   // a request of 0 bytes owns nothing
inline constexpr BlockHandle kPassedBlock = -3;  // made by a run that was passed over: a tape knows which it is

struct Block {
  Bytes address = 0, size = 0, requested = 0;
  BlockHandle prev = kNoBlock, next = kNoBlock;
  std::uint64_t uses = 0;        // streams noted since it was allocated
  std::int64_t age = 0;          // A9
  std::int32_t pending = 0;      // events recorded at free and not yet seen done
  std::int32_t expandable = -1;  // which virtual range it lies in
  std::uint8_t stream = 0;
  bool small = false, allocated = false, mapped = true, alive = false;
  bool is_split() const { return prev != kNoBlock || next != kNoBlock; }
  /// Two a stream: large, small.
  std::size_t pool() const { return static_cast<std::size_t>(stream) * 2 + (small ? 1 : 0); }
};

class Blocks {
 public:
  Blocks() { blocks_.reserve(256); }

  Block& operator[](BlockHandle h) { return blocks_[static_cast<std::size_t>(h)]; }
  const Block& operator[](BlockHandle h) const { return blocks_[static_cast<std::size_t>(h)]; }
  /// Every handle ever made is below this one; those without a block are not alive.
  BlockHandle end() const { return static_cast<BlockHandle>(blocks_.size()); }

  BlockHandle make() {
    const BlockHandle h = make_room();
    Block& block = (*this)[h];
    block = Block{};
    block.alive = true;
    return h;
  }
  BlockHandle make(std::size_t pool, Bytes address, Bytes size) {
    const BlockHandle h = make();
    Block& block = (*this)[h];
    block.address = address;
    block.size = size;
    block.stream = static_cast<std::uint8_t>(pool / 2);
    block.small = pool % 2 == 1;
    return h;
  }
  void drop(BlockHandle h) {
    (*this)[h].alive = false;
    spare_.push_back(h);
  }

  /// A new block right before a free one, and like it in all but its neighbours. Sizes and addresses are the caller's
  /// to set.
  BlockHandle make_like(BlockHandle h) {
    const BlockHandle made = make_room();  // may move the blocks: no references across this line
    Block &block = (*this)[made], &after = (*this)[h];
    block = after;
    block.next = h;
    if (block.prev != kNoBlock) (*this)[block.prev].next = made;
    after.prev = made;
    return made;
  }

  /// A new block of the same pool and range right before or after `h`. Sizes and addresses are the caller's to set.
  BlockHandle make_before(BlockHandle h) {
    const BlockHandle made = make_beside(h);
    Block &block = (*this)[made], &after = (*this)[h];
    block.prev = after.prev;
    block.next = h;
    if (block.prev != kNoBlock) (*this)[block.prev].next = made;
    after.prev = made;
    return made;
  }
  BlockHandle make_after(BlockHandle h) {
    const BlockHandle made = make_beside(h);
    Block &block = (*this)[made], &before = (*this)[h];
    block.prev = h;
    block.next = before.next;
    if (block.next != kNoBlock) (*this)[block.next].prev = made;
    before.next = made;
    return made;
  }
  /// `from` lies beside `into` and becomes a part of it. Its handle is dropped.
  void join(BlockHandle into, BlockHandle from) {
    const Block& source = (*this)[from];
    Block& target = (*this)[into];
    if (target.prev == from) {
      target.address = source.address;
      target.prev = source.prev;
      if (target.prev != kNoBlock) (*this)[target.prev].next = into;
    } else {
      target.next = source.next;
      if (target.next != kNoBlock) (*this)[target.next].prev = into;
    }
    target.size += source.size;
    drop(from);
  }
  /// The place that `from` stands in among its neighbours; `to` keeps who uses it. `from` is dropped.
  void move(BlockHandle from, BlockHandle to) {
    const Block& source = (*this)[from];
    Block& target = (*this)[to];
    target.address = source.address;
    target.prev = source.prev;
    target.next = source.next;
    if (target.prev != kNoBlock) (*this)[target.prev].next = to;
    if (target.next != kNoBlock) (*this)[target.next].prev = to;
    drop(from);
  }

 private:
  /// A handle whose block is still to be written.
  BlockHandle make_room() {
    if (spare_.empty()) {
      blocks_.emplace_back();
      return static_cast<BlockHandle>(blocks_.size() - 1);
    }
    const BlockHandle h = spare_.back();
    spare_.pop_back();
    return h;
  }
  BlockHandle make_beside(BlockHandle h) {
    const BlockHandle made = make();  // may move the blocks: no references across this line
    Block& block = (*this)[made];
    const Block& other = (*this)[h];
    block.stream = other.stream;
    block.small = other.small;
    block.expandable = other.expandable;
    return made;
  }

  std::vector<Block> blocks_;
  std::vector<BlockHandle> spare_;
};

}  // namespace foreshard
