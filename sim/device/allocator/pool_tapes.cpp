#include "sim/device/allocator/pool_tapes.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/result.h"

namespace foreshard {
namespace {

std::size_t pool_of(int stream, bool small) { return static_cast<std::size_t>(stream) * 2 + (small ? 1 : 0); }

}  // namespace

// ------------------------------------------------------------------------------------------------ tapes

bool PoolTapes::can_follow() const {
  return !settings_.expandable_segments && !settings_.exact && settings_.memory_fraction == 0 &&
         settings_.max_split_size == std::numeric_limits<Bytes>::max();
}

void PoolTapes::begin() {
  FORESHARD_CHECK(can_follow() && ledger_.stats.allocations == 0, "a tape begins with the first allocation");
  used_ = true;
}

void PoolTapes::record(int stream, PoolTape* tape) {
  begin();
  for (const bool small : {false, true}) decks_[pool_of(stream, small)].recorded = &tape->pools[small ? 1 : 0];
}

void PoolTapes::follow(int stream, const PoolTape& tape) {
  begin();
  for (const bool small : {false, true}) decks_[pool_of(stream, small)].followed = &tape.pools[small ? 1 : 0];
}

bool PoolTapes::records(int stream) const {
  return decks_[pool_of(stream, false)].recorded != nullptr && decks_[pool_of(stream, true)].recorded != nullptr;
}

bool PoolTapes::follows(int stream) const {
  return decks_[pool_of(stream, false)].followed != nullptr && decks_[pool_of(stream, true)].followed != nullptr;
}

bool PoolTapes::answers(int stream) const {
  return decks_[pool_of(stream, false)].followed != nullptr || decks_[pool_of(stream, true)].followed != nullptr;
}

void PoolTapes::end() {
  for (std::size_t pool = 0; pool < decks_.size(); ++pool) {
    if (decks_[pool].followed != nullptr) leave(pool);
    decks_[pool].recorded = nullptr;
  }
}

void PoolTapes::number(BlockHandle h, std::int32_t number) {
  const auto at = static_cast<std::size_t>(h);
  if (at >= numbers_.size()) numbers_.resize(2 * at + 64);
  numbers_[at] = number;
}

// ------------------------------------------------------------------------------------------------ recording

[[gnu::noinline, gnu::flatten]] void PoolTapes::made(BlockHandle h, Bytes size, const Before& was) {
  Deck& deck = decks_[blocks_[h].pool()];
  if (deck.recorded == nullptr) return;  // or room was made in a way that no tape holds
  const Before now = before();
  number(h, deck.numbers);
  if (now.reserved > was.reserved) calls_.push_back({0, blocks_[h].small, now.reserved - was.reserved});
  deck.recorded->push_back(
      {size, blocks_[h].size, now.reserved - was.reserved, now.inactive - was.inactive, deck.numbers++});
}

void PoolTapes::freed(BlockHandle h, Bytes change) {
  Deck& deck = decks_[blocks_[h].pool()];
  if (deck.recorded != nullptr) deck.recorded->push_back({0, 0, 0, change, numbers_[static_cast<std::size_t>(h)]});
}

// ------------------------------------------------------------------------------------------------ following

BlockHandle PoolTapes::make_block(std::size_t pool, std::int32_t number_, Bytes size, Bytes requested) {
  const BlockHandle h = blocks_.make(pool, 0, size);
  number(h, number_);
  blocks_[h].requested = requested;
  blocks_[h].allocated = true;
  return h;
}

/// kNoBlock: the plan, or the card, goes its own way from here; the pool has been rebuilt.
[[gnu::noinline, gnu::flatten]] BlockHandle PoolTapes::allocate(std::size_t pool, Bytes size, Bytes requested) {
  Deck& deck = decks_[pool];
  if (deck.followed == nullptr) return kNoBlock;
  const bool same = deck.position < deck.followed->size() && (*deck.followed)[deck.position].size == size;
  if (!same) {
    leave(pool);
    return kNoBlock;
  }
  const PoolEvent& event = (*deck.followed)[deck.position];
  if (event.segment > 0) {
    const Bytes address = segments_.take_address(pool, event.segment);
    if (address == DriverMemory::kNoAddress) {  // another card, or other streams took more
      leave(pool);
      return kNoBlock;
    }
    clock_.host_cost(settings_.driver_ns);
    deck.addresses.push_back(address);
  }
  ++deck.position;
  const BlockHandle h = make_block(pool, deck.numbers++, event.block, requested);
  AllocatorStats& stats = ledger_.stats;
  ledger_.change_inactive(event.inactive);
  ++stats.allocations;
  stats.allocated.add(event.block);
  stats.active.add(event.block);
  stats.requested.add(requested);
  return h;
}

/// False also where the pool has been rebuilt.
[[gnu::noinline, gnu::flatten]] bool PoolTapes::free(BlockHandle h) {
  const std::size_t pool = blocks_[h].pool();
  Deck& deck = decks_[pool];
  if (deck.followed == nullptr) return false;
  const bool same = deck.position < deck.followed->size() && (*deck.followed)[deck.position].size == 0 &&
                    (*deck.followed)[deck.position].number == numbers_[static_cast<std::size_t>(h)];
  if (!same) {
    leave(pool);
    return false;
  }
  ledger_.change_inactive((*deck.followed)[deck.position++].inactive);
  ledger_.stats.active.remove(blocks_[h].size);
  ledger_.stats.requested.remove(blocks_[h].requested);
  blocks_.drop(h);
  return true;
}

/// Blocks and free sets as the events so far have left them; whoever holds a block keeps its handle.
[[gnu::noinline]] void PoolTapes::leave(std::size_t pool) {
  Deck& deck = decks_[pool];
  const std::vector<PoolEvent>& events = *std::exchange(deck.followed, nullptr);
  std::vector<BlockHandle> held(static_cast<std::size_t>(deck.numbers), kNoBlock);
  for (BlockHandle h = 0; h < blocks_.end(); ++h) {
    if (blocks_[h].alive && blocks_[h].pool() == pool)
      held[static_cast<std::size_t>(numbers_[static_cast<std::size_t>(h)])] = h;
  }
  const AllocatorStats stats = ledger_.stats;
  const std::int64_t searches = pools_.searches();
  std::vector<BlockHandle> made = replay(pool, events);
  ledger_.stats = stats;
  pools_.set_searches(searches);
  for (std::size_t number = 0; number < held.size(); ++number) {
    if (held[number] == kNoBlock) continue;
    FORESHARD_CHECK(blocks_[made[number]].size == blocks_[held[number]].size, "a tape says how large its blocks are");
    blocks_.move(made[number], held[number]);
    made[number] = held[number];
  }
  if (!deck.skipped) return;
  deck.made = std::move(made);
  const std::size_t other = pool ^ 1;
  if (decks_[other].followed != nullptr) leave(other);
}

/// Blocks by number, as the pool makes them from what the tape has asked of it.
std::vector<BlockHandle> PoolTapes::replay(std::size_t pool, const std::vector<PoolEvent>& events) {
  const Deck& deck = decks_[pool];
  std::vector<BlockHandle> made;
  made.reserve(static_cast<std::size_t>(deck.numbers));
  std::size_t segment = 0;
  for (std::size_t k = 0; k < deck.position; ++k) {
    const PoolEvent& event = events[k];
    if (event.size == 0) {
      const BlockHandle h = made[static_cast<std::size_t>(event.number)];
      blocks_[h].allocated = false;
      pools_.take_back(h);
    } else if (event.segment > 0) {
      const BlockHandle h = blocks_.make(pool, deck.addresses[segment++], event.segment);
      made.push_back(pools_.hand_out(h, event.size, 0));
    } else {
      made.push_back(pools_.take(pool, event.size, 0));
    }
  }
  return made;
}

// ------------------------------------------------------------------------------------------------ whole runs

std::array<std::size_t, 2> PoolTapes::place(int stream) const {
  std::array<std::size_t, 2> place{};
  for (const bool small : {false, true}) {
    const Deck& deck = decks_[pool_of(stream, small)];
    place[small ? 1 : 0] = deck.recorded != nullptr ? deck.recorded->size() : deck.position;
  }
  return place;
}

std::array<std::int32_t, 2> PoolTapes::allocations(int stream) const {
  return {decks_[pool_of(stream, false)].numbers, decks_[pool_of(stream, true)].numbers};
}

bool PoolTapes::skip(int stream, const SegmentRun& run) {
  if (!follows(stream) || place(stream) != run.begin) return false;
  Bytes wanted = 0;
  for (const SegmentRun::DriverCall& call : run.calls) wanted += round_up(call.bytes, DriverMemory::kPage);
  if (wanted > driver_.free_bytes()) return false;
  for (const SegmentRun::DriverCall& call : run.calls) {
    const std::size_t pool = pool_of(stream, call.small);
    decks_[pool].addresses.push_back(segments_.take_address(pool, call.bytes));
  }
  AllocatorStats& stats = ledger_.stats;
  for (const bool small : {false, true}) {
    Deck& deck = decks_[pool_of(stream, small)];
    deck.position = run.end[small ? 1 : 0];
    deck.numbers += run.made[small ? 1 : 0];
    deck.skipped = true;
    stats.allocations += run.made[small ? 1 : 0];
  }
  const auto change = [](MemoryStat& stat, const SegmentRun::Change& by) {
    stat.peak = std::max(stat.peak, stat.current + by.highest);
    stat.current += by.end;
  };
  change(stats.allocated, run.allocated);
  change(stats.active, run.active);
  change(stats.requested, run.requested);
  change(stats.inactive_split, run.inactive);
  return true;
}

BlockHandle PoolTapes::adopt(int stream, const SegmentRun::Holding& holding) {
  const std::size_t pool = pool_of(stream, holding.small);
  const Deck& deck = decks_[pool];
  if (deck.followed != nullptr) return make_block(pool, holding.number, holding.block, holding.requested);
  const BlockHandle h = deck.made[static_cast<std::size_t>(holding.number)];
  FORESHARD_CHECK(blocks_[h].alive && blocks_[h].allocated && blocks_[h].size == holding.block,
                  "a skipped block stands where its run made it");
  blocks_[h].requested = holding.requested;
  return h;
}

}  // namespace foreshard
