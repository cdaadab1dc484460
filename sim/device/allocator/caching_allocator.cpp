#include "sim/device/allocator/caching_allocator.h"

#include <algorithm>

#include "core/result.h"

namespace foreshard {

CachingAllocator::CachingAllocator(const AllocatorSettings& settings, DriverMemory& driver, DeviceClock& clock,
                                   int streams)
    : settings_(settings),
      plain_rounding_(rounds_plainly(settings)),
      driver_(driver),
      ledger_(clock, streams),
      pools_(settings_, streams, blocks_, ledger_),
      segments_(settings_, blocks_, pools_, ledger_, driver, clock),
      pending_(settings_, streams, blocks_, clock),
      tapes_(settings_, blocks_, pools_, segments_, ledger_, driver, clock) {
  FORESHARD_CHECK(streams > 0 && streams <= PendingFrees::kMaxStreams, "streams are counted in a mask of 64 bits");
}

// ------------------------------------------------------------------------------------------------ allocate

// flatten: what runs for every block of every kernel is one function, and what is rare stands outside of it.
[[gnu::flatten]] BlockHandle CachingAllocator::allocate(Bytes bytes, int stream) {
  if (pending_.any()) pending_.poll([this](BlockHandle h) { complete(h); });
  if (bytes <= 0) return kEmptyBlock;
  const Bytes size = plain_rounding_ ? (bytes + kMinBlock - 1) & -kMinBlock : round_request(bytes, settings_);
  const std::size_t pool = static_cast<std::size_t>(stream) * 2 + (size <= kSmallLimit ? 1 : 0);
  if (tapes_.used()) return allocate_taped(pool, size, bytes);
  const BlockHandle block = pools_.take(pool, size, bytes);
  return block != kNoBlock ? block : make_room(pool, size, bytes);
}

[[gnu::noinline, gnu::flatten]] BlockHandle CachingAllocator::allocate_taped(std::size_t pool, Bytes size,
                                                                             Bytes requested) {
  BlockHandle block = tapes_.allocate(pool, size, requested);
  if (block != kNoBlock) return block;  // else the tape ended, or there is none
  const PoolTapes::Before before = tapes_.before();
  block = pools_.take(pool, size, requested);
  if (block == kNoBlock) block = make_room(pool, size, requested);
  if (block != kNoBlock) tapes_.made(block, size, before);
  return block;
}

/// A6, where no cached block serves.
[[gnu::noinline]] BlockHandle CachingAllocator::make_room(std::size_t pool, Bytes size, Bytes requested) {
  if (before_time_matters_) before_time_matters_();
  if (settings_.memory_fraction > 0 && settings_.garbage_collection_threshold > 0) segments_.collect_garbage();
  BlockHandle found = segments_.take(pool, size);
  if (found == kNoBlock) {
    tapes_.end();
    if (segments_.release_available(pool, size)) found = segments_.take(pool, size);
  }
  if (found == kNoBlock) {  // A6(7)
    release_cached();
    ++ledger_.stats.retries;
    found = segments_.take(pool, size);
  }
  if (found != kNoBlock) return pools_.hand_out(found, size, requested);
  ++ledger_.stats.ooms;
  ledger_.note(MemoryAction::OutOfMemory, driver_.free_bytes(), size, static_cast<int>(pool / 2));
  return kNoBlock;
}

// ------------------------------------------------------------------------------------------------ free

void CachingAllocator::record_stream(BlockHandle h, int stream) {
  if (h < 0 || blocks_[h].stream == stream) return;  // A7: its own stream is in order anyway
  blocks_[h].uses |= std::uint64_t{1} << stream;
}

[[gnu::flatten]] void CachingAllocator::free(BlockHandle h) {
  if (h < 0) return;
  Block& block = blocks_[h];
  FORESHARD_CHECK(block.alive && block.allocated, "only an allocated block is freed");
  block.allocated = false;
  ledger_.stats.allocated.remove(block.size);
  ledger_.note(MemoryAction::FreeRequested, block.address, block.requested, block.stream);
  if (block.uses == 0)
    complete(h);
  else
    wait_for_streams(h);
}

[[gnu::noinline]] void CachingAllocator::wait_for_streams(BlockHandle h) {
  if (before_time_matters_) before_time_matters_();
  pending_.add(h);
}

/// No stream uses it any more.
void CachingAllocator::complete(BlockHandle h) {
  if (tapes_.used()) return complete_taped(h);
  pools_.take_back(h);
}

[[gnu::noinline, gnu::flatten]] void CachingAllocator::complete_taped(BlockHandle h) {
  if (!tapes_.free(h)) tapes_.freed(h, pools_.take_back(h));
}

// ------------------------------------------------------------------------------------------------ giving back

void CachingAllocator::release_cached() {
  tapes_.end();
  pending_.synchronize([this](BlockHandle h) { complete(h); });
  segments_.release_cached();
}

void CachingAllocator::empty_cache() { release_cached(); }

AllocatorStats CachingAllocator::part_peaks() {
  const AllocatorStats before = ledger_.stats;
  ledger_.stats.reset_peaks();
  return before;
}

void CachingAllocator::join_peaks(const AllocatorStats& before) {
  for (const auto stat : {&AllocatorStats::allocated, &AllocatorStats::active, &AllocatorStats::reserved,
                          &AllocatorStats::requested, &AllocatorStats::inactive_split}) {
    MemoryStat& now = ledger_.stats.*stat;
    now.peak = std::max(now.peak, (before.*stat).peak);
  }
}

std::vector<MemoryLog::Segment> CachingAllocator::held_segments() const {
  FORESHARD_CHECK(ledger_.log() != nullptr, "whose a block is stands in the log");
  return held_segments_of(blocks_, *ledger_.log());
}

}  // namespace foreshard
