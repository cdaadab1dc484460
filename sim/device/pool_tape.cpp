// The part of CachingAllocator that records its pools and follows what was recorded.
#include "sim/device/pool_tape.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/result.h"
#include "sim/device/caching_allocator.h"

namespace foreshard {

bool CachingAllocator::can_follow() const {
  return !settings_.expandable_segments && !settings_.exact && settings_.memory_fraction == 0 &&
         settings_.max_split_size == std::numeric_limits<Bytes>::max();
}

void CachingAllocator::record(int stream, PoolTape* tape) {
  FORESHARD_CHECK(can_follow() && stats_.allocations == 0, "a tape begins with the first allocation");
  for (const bool small : {false, true}) pool_of(stream, small).recorded = &tape->pools[small ? 1 : 0];
}

void CachingAllocator::follow(int stream, const PoolTape& tape) {
  FORESHARD_CHECK(can_follow() && stats_.allocations == 0, "a tape begins with the first allocation");
  for (const bool small : {false, true}) pool_of(stream, small).followed = &tape.pools[small ? 1 : 0];
}

void CachingAllocator::number_block(BlockHandle h, std::int32_t number) {
  const auto at = static_cast<std::size_t>(h);
  if (at >= numbers_.size()) numbers_.resize(2 * at + 64);
  numbers_[at] = number;
}

BlockHandle CachingAllocator::allocate_recorded(Pool& pool, int stream, bool small, Bytes size, Bytes requested) {
  const Bytes inactive = stats_.inactive_split.current, reserved = stats_.reserved.current;
  BlockHandle h = find_free(pool.free, size);
  if (h == kNoBlock) h = make_room(stream, small, size);
  if (h == kNoBlock) return kNoBlock;
  h = hand_out(h, size, requested);
  if (pool.recorded == nullptr) return h;  // room was made in a way that no tape holds
  number_block(h, pool.numbers);
  pool.recorded->push_back(
      {size, at(h).size, stats_.reserved.current - reserved, stats_.inactive_split.current - inactive, pool.numbers++});
  return h;
}

/// kNoBlock: the plan, or the card, goes its own way from here; the pool has been rebuilt.
BlockHandle CachingAllocator::allocate_followed(Pool& pool, int stream, bool small, Bytes size, Bytes requested) {
  const bool same = pool.position < pool.followed->size() && (*pool.followed)[pool.position].size == size;
  if (!same) {
    leave(pool);
    return kNoBlock;
  }
  const PoolEvent& event = (*pool.followed)[pool.position];
  if (event.segment > 0) {
    const Bytes address = driver_.allocate(event.segment);
    if (address == DriverMemory::kNoAddress) {  // another card, or other streams took more
      leave(pool);
      return kNoBlock;
    }
    clock_.host_cost(settings_.driver_ns);
    stats_.count_segment(small, 1);
    stats_.reserved.add(event.segment);
    reserved_by_stream_[static_cast<std::size_t>(stream)] += event.segment;
    pool.addresses.push_back(address);
  }
  ++pool.position;
  const BlockHandle h = new_block();
  number_block(h, pool.numbers++);
  Block& block = at(h);
  block.size = event.block;
  block.requested = requested;
  block.stream = static_cast<std::uint8_t>(stream);
  block.small = small;
  block.allocated = true;
  if (event.inactive >= 0)
    stats_.inactive_split.add(event.inactive);
  else
    stats_.inactive_split.remove(-event.inactive);
  ++stats_.allocations;
  stats_.allocated.add(event.block);
  stats_.active.add(event.block);
  stats_.requested.add(requested);
  return h;
}

/// False: the pool has been rebuilt and the block is still to be freed.
bool CachingAllocator::free_followed(Pool& pool, BlockHandle h) {
  const std::int32_t number = numbers_[static_cast<std::size_t>(h)];
  const bool same = pool.position < pool.followed->size() && (*pool.followed)[pool.position].size == 0 &&
                    (*pool.followed)[pool.position].number == number;
  if (!same) {
    leave(pool);
    return false;
  }
  const Bytes change = (*pool.followed)[pool.position++].inactive;
  const Block& block = at(h);
  if (change >= 0)
    stats_.inactive_split.add(change);
  else
    stats_.inactive_split.remove(-change);
  stats_.active.remove(block.size);
  stats_.requested.remove(block.requested);
  drop_block(h);
  return true;
}

/// Blocks and free sets as the events so far have left them; whoever holds a block keeps its handle.
void CachingAllocator::leave(Pool& pool) {
  const std::vector<PoolEvent>& events = *std::exchange(pool.followed, nullptr);
  std::vector<BlockHandle> held(static_cast<std::size_t>(pool.numbers), kNoBlock), made;
  made.reserve(held.size());
  for (std::size_t h = 0; h < blocks_.size(); ++h) {
    if (blocks_[h].alive && &pool_of(blocks_[h]) == &pool)
      held[static_cast<std::size_t>(numbers_[h])] = static_cast<BlockHandle>(h);
  }
  const AllocatorStats stats = stats_;
  const std::int64_t searches = search_count_;
  replay(pool, events, pool.position, made);
  stats_ = stats;
  search_count_ = searches;
  for (std::size_t number = 0; number < held.size(); ++number) {
    if (held[number] == kNoBlock) continue;
    move_block(made[number], held[number]);
    made[number] = held[number];
  }
  if (!pool.skipped) return;
  pool.made = std::move(made);
  Pool& other = pools_[static_cast<std::size_t>(&pool - pools_.data()) ^ 1];
  if (other.followed != nullptr) leave(other);
}

// ------------------------------------------------------------------------------------------------ whole runs

std::array<std::size_t, 2> CachingAllocator::tape_place(int stream) const {
  std::array<std::size_t, 2> place{};
  for (const bool small : {false, true}) {
    const Pool& pool = pool_of(stream, small);
    place[small ? 1 : 0] = pool.recorded != nullptr ? pool.recorded->size() : pool.position;
  }
  return place;
}

bool CachingAllocator::skip(int stream, const SegmentRun& run) {
  if (!follows(stream) || tape_place(stream) != run.begin) return false;
  Bytes wanted = 0;
  for (const SegmentRun::DriverCall& call : run.calls) wanted += round_up(call.bytes, DriverMemory::kPage);
  if (wanted > driver_.free_bytes()) return false;
  for (const SegmentRun::DriverCall& call : run.calls) {
    pool_of(stream, call.small).addresses.push_back(driver_.allocate(call.bytes));
    stats_.count_segment(call.small, 1);
    stats_.reserved.add(call.bytes);
    reserved_by_stream_[static_cast<std::size_t>(stream)] += call.bytes;
  }
  for (const bool small : {false, true}) {
    Pool& pool = pool_of(stream, small);
    pool.position = run.end[small ? 1 : 0];
    pool.numbers += run.made[small ? 1 : 0];
    pool.skipped = true;
    stats_.allocations += run.made[small ? 1 : 0];
  }
  const auto change = [](MemoryStat& stat, const SegmentRun::Change& by) {
    stat.peak = std::max(stat.peak, stat.current + by.highest);
    stat.current += by.end;
  };
  change(stats_.allocated, run.allocated);
  change(stats_.active, run.active);
  change(stats_.requested, run.requested);
  change(stats_.inactive_split, run.inactive);
  return true;
}

BlockHandle CachingAllocator::adopt(int stream, const SegmentRun::Holding& holding) {
  const Pool& pool = pool_of(stream, holding.small);
  if (pool.followed == nullptr) {
    const BlockHandle h = pool.made[static_cast<std::size_t>(holding.number)];
    FORESHARD_CHECK(at(h).alive && at(h).allocated && at(h).size == holding.block,
                    "a skipped block stands where its run made it");
    at(h).requested = holding.requested;
    return h;
  }
  const BlockHandle h = new_block();
  number_block(h, holding.number);
  Block& block = at(h);
  block.size = holding.block;
  block.requested = holding.requested;
  block.stream = static_cast<std::uint8_t>(stream);
  block.small = holding.small;
  block.allocated = true;
  return h;
}

void CachingAllocator::replay(Pool& pool, const std::vector<PoolEvent>& events, std::size_t count,
                              std::vector<BlockHandle>& made) {
  const auto index = static_cast<int>(&pool - pools_.data());
  std::size_t segment = 0;
  for (std::size_t k = 0; k < count; ++k) {
    const PoolEvent& event = events[k];
    if (event.size == 0) {
      const BlockHandle h = made[static_cast<std::size_t>(event.number)];
      at(h).allocated = false;
      free_block(h);
      continue;
    }
    BlockHandle h = kNoBlock;
    if (event.segment > 0)
      h = new_segment(index / 2, index % 2 == 1, pool.addresses[segment++], event.segment);
    else
      h = find_free(pool.free, event.size);
    made.push_back(hand_out(h, event.size, 0));
  }
}

/// The place that `from` stands in among its neighbours; `to` keeps who uses it.
void CachingAllocator::move_block(BlockHandle from, BlockHandle to) {
  const Block& source = at(from);
  Block& target = at(to);
  FORESHARD_CHECK(source.size == target.size, "a tape says how large its blocks are");
  target.address = source.address;
  target.prev = source.prev;
  target.next = source.next;
  if (target.prev != kNoBlock) at(target.prev).next = to;
  if (target.next != kNoBlock) at(target.next).prev = to;
  drop_block(from);
}

void CachingAllocator::end_tapes() {
  for (Pool& pool : pools_) {
    if (pool.followed != nullptr) leave(pool);
    pool.recorded = nullptr;
  }
}

}  // namespace foreshard
