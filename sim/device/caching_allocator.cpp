#include "sim/device/caching_allocator.h"

#include <algorithm>
#include <bit>

#include "core/result.h"

namespace foreshard {
namespace {

constexpr Bytes kMinBlock = 512;
constexpr Bytes kSmallLimit = kMiB;        // A2
constexpr Bytes kSmallSegment = 2 * kMiB;  // A3
constexpr Bytes kLargeSegment = 20 * kMiB;
constexpr Bytes kMinLargeAllocation = 10 * kMiB;
constexpr Bytes kLargeRounding = 2 * kMiB;

std::size_t interval_of(Bytes bytes) {
  const auto log2 = static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(bytes))) - 1;
  return static_cast<std::size_t>(std::clamp<std::int64_t>(log2 - 20, 0, 15));
}

}  // namespace

std::array<std::int64_t, 16> same_divisions(std::int64_t divisions) {
  std::array<std::int64_t, 16> all{};
  all.fill(divisions);
  return all;
}

Bytes round_request(Bytes bytes, const AllocatorSettings& settings) {
  if (settings.exact) return bytes;
  if (bytes < kMinBlock) return kMinBlock;
  const std::int64_t divisions = settings.power2_divisions[interval_of(bytes)];
  if (divisions > 1 && bytes > kMinBlock * divisions) {
    const auto lower = static_cast<Bytes>(std::bit_floor(static_cast<std::uint64_t>(bytes)));
    if (lower == bytes) return bytes;
    return round_up(bytes, std::max<Bytes>(lower / divisions, 1));
  }
  return round_up(bytes, kMinBlock);
}

Bytes segment_bytes(Bytes rounded) {
  if (rounded <= kSmallLimit) return kSmallSegment;
  if (rounded < kMinLargeAllocation) return kLargeSegment;
  return round_up(rounded, kLargeRounding);
}

CachingAllocator::CachingAllocator(const AllocatorSettings& settings, DriverMemory& driver, DeviceClock& clock,
                                   int streams)
    : settings_(settings),
      plain_rounding_(!settings.exact && std::all_of(settings.power2_divisions.begin(), settings.power2_divisions.end(),
                                                     [](std::int64_t divisions) { return divisions <= 1; })),
      driver_(driver),
      clock_(clock),
      streams_(streams) {
  FORESHARD_CHECK(streams > 0 && streams <= kMaxStreams, "streams are counted in a mask of 64 bits");
  const auto n = static_cast<std::size_t>(streams);
  pools_.resize(2 * n);
  pending_.resize(n);
  reserved_by_stream_.assign(n, 0);
  blocks_.reserve(256);
}

// ------------------------------------------------------------------------------------------------ blocks and free sets

BlockHandle CachingAllocator::new_block() {
  if (spare_.empty()) {
    blocks_.emplace_back();
    blocks_.back().alive = true;
    return static_cast<BlockHandle>(blocks_.size() - 1);
  }
  const BlockHandle h = spare_.back();
  spare_.pop_back();
  Block& block = at(h);
  block = Block{};
  block.alive = true;
  return h;
}

void CachingAllocator::drop_block(BlockHandle h) {
  at(h).alive = false;
  spare_.push_back(h);
}

// Size and address as the caller has them: read back right after they were written, they would stall the processor.
void CachingAllocator::insert_free(BlockHandle h, Block& block, Bytes size, Bytes address) {
  block.age = search_count_;
  pool_of(block).free.insert({size, address, h});
}

void CachingAllocator::erase_free(BlockHandle h) {
  const Block& block = at(h);
  const bool erased = pool_of(block).free.erase({block.size, block.address, h});
  FORESHARD_CHECK(erased, "a free block stands in its pool");
}

/// A10: what a block can still grow to counts as its size.
FreeSet::Cursor CachingAllocator::most_growth(const FreeSet& set, FreeSet::Cursor at_) const {
  const auto extent = [this](BlockHandle h) {
    const Block& block = at(h);
    const bool grows = block.next != kNoBlock && !at(block.next).mapped;
    return block.size + (grows ? at(block.next).size : 0);
  };
  for (auto next = set.next(at_); !next.end() && extent(set[next].block) < extent(set[at_].block);
       next = set.next(next)) {
    at_ = next;
  }
  return at_;
}

BlockHandle CachingAllocator::find_free(FreeSet& set, Bytes size) {
  ++search_count_;
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

// ------------------------------------------------------------------------------------------------ allocate

BlockHandle CachingAllocator::allocate(Bytes bytes, int stream) {
  if (pending_streams_ != 0) process_events();
  if (bytes <= 0) return kEmptyBlock;
  const Bytes size = plain_rounding_ ? (bytes + kMinBlock - 1) & -kMinBlock : round_request(bytes, settings_);
  const bool small = size <= kSmallLimit;
  Pool& pool = pool_of(stream, small);
  if (pool.followed != nullptr) {
    const BlockHandle block = allocate_followed(pool, stream, small, size, bytes);
    if (block != kNoBlock) return block;  // else the tape ended
  }
  if (pool.recorded != nullptr) return allocate_recorded(pool, stream, small, size, bytes);
  BlockHandle found = find_free(pool.free, size);
  if (found == kNoBlock) found = make_room(stream, small, size);
  return found == kNoBlock ? kNoBlock : hand_out(found, size, bytes);
}

/// A6, where no cached block serves.
BlockHandle CachingAllocator::make_room(int stream, bool small, Bytes size) {
  const Bytes segment = segment_bytes(size);
  if (settings_.memory_fraction > 0 && settings_.garbage_collection_threshold > 0) collect_garbage();
  BlockHandle found = allocate_segment(stream, small, size, segment, false);
  if (found == kNoBlock && release_available(stream, small, size)) {
    found = allocate_segment(stream, small, size, segment, false);
  }
  if (found == kNoBlock) {  // A6(7)
    release_cached();
    found = allocate_segment(stream, small, size, segment, true);
  }
  if (found == kNoBlock) {
    ++stats_.ooms;
    note(MemoryAction::OutOfMemory, driver_.free_bytes(), size, stream);
  }
  return found;
}

BlockHandle CachingAllocator::allocate_segment(int stream, bool small, Bytes size, Bytes segment, bool retry) {
  if (retry) ++stats_.retries;
  if (settings_.memory_fraction > 0 && stats_.reserved.current + segment > allowed_memory()) return kNoBlock;  // A12
  if (settings_.expandable_segments) return allocate_expandable(stream, small, size);
  const Bytes address = driver_.allocate(segment);
  clock_.host_cost(settings_.driver_ns);
  if (address == DriverMemory::kNoAddress) return kNoBlock;
  stats_.count_segment(small, 1);
  stats_.reserved.add(segment);
  reserved_by_stream_[static_cast<std::size_t>(stream)] += segment;
  note(MemoryAction::SegmentAlloc, address, segment, stream);
  return new_segment(stream, small, address, segment);
}

BlockHandle CachingAllocator::new_segment(int stream, bool small, Bytes address, Bytes bytes) {
  const BlockHandle h = new_block();
  Block& block = at(h);
  block.address = address;
  block.size = bytes;
  block.stream = static_cast<std::uint8_t>(stream);
  block.small = small;
  return h;
}

bool CachingAllocator::should_split(const Block& block, Bytes size) const {  // A5
  const Bytes rest = block.size - size;
  if (settings_.exact) return rest > 0;
  if (block.small || settings_.expandable_segments) return rest >= kMinBlock;
  return size < settings_.max_split_size && rest > kSmallLimit;
}

/// What is left of the block goes back to its pool.
BlockHandle CachingAllocator::split(BlockHandle rest, Bytes size, bool was_split) {
  const BlockHandle h = new_block();  // may move the blocks: no references across this line
  Block& block = at(h);
  Block& tail = at(rest);
  const Bytes rest_address = tail.address + size, rest_size = tail.size - size;
  block.address = tail.address;
  block.size = size;
  block.stream = tail.stream;
  block.small = tail.small;
  block.expandable = tail.expandable;
  block.prev = tail.prev;
  block.next = rest;
  if (block.prev != kNoBlock) at(block.prev).next = h;
  tail.prev = h;
  tail.address = rest_address;
  tail.size = rest_size;
  insert_free(rest, tail, rest_size, rest_address);
  if (tail.expandable < 0) {  // pages of expandable segments can always be given back
    if (was_split)
      stats_.inactive_split.remove(size);
    else
      stats_.inactive_split.add(rest_size);
  }
  return h;
}

BlockHandle CachingAllocator::hand_out(BlockHandle h, Bytes size, Bytes requested) {
  const bool was_split = at(h).is_split();
  if (should_split(at(h), size)) {
    h = split(h, size, was_split);
  } else {
    size = at(h).size;
    if (was_split && at(h).expandable < 0) stats_.inactive_split.remove(size);
  }
  Block& block = at(h);
  block.allocated = true;
  block.requested = requested;
  block.uses = 0;
  ++stats_.allocations;
  stats_.allocated.add(size);
  stats_.active.add(size);
  stats_.requested.add(requested);
  note(MemoryAction::Alloc, block.address, requested, block.stream);
  return h;
}

// ------------------------------------------------------------------------------------------------ free

void CachingAllocator::record_stream(BlockHandle h, int stream) {
  if (h < 0 || at(h).stream == stream) return;  // A7: its own stream is in order anyway
  at(h).uses |= std::uint64_t{1} << stream;
}

void CachingAllocator::free(BlockHandle h) {
  if (h < 0) return;
  Block& block = at(h);
  FORESHARD_CHECK(block.alive && block.allocated, "only an allocated block is freed");
  block.allocated = false;
  stats_.allocated.remove(block.size);
  note(MemoryAction::FreeRequested, block.address, block.requested, block.stream);
  if (block.uses == 0) {
    free_block(h);
    return;
  }
  for (std::uint64_t uses = block.uses; uses != 0; uses &= uses - 1) {
    const int stream = std::countr_zero(uses);
    clock_.host_cost(settings_.event_ns);
    pending_[static_cast<std::size_t>(stream)].push_back({clock_.record(stream), h});
    pending_streams_ |= std::uint64_t{1} << stream;
    ++block.pending;
  }
  block.uses = 0;
  ever_pending_ = true;
}

void CachingAllocator::process_events() {
  for (std::uint64_t streams = pending_streams_; streams != 0; streams &= streams - 1) {
    const int stream = std::countr_zero(streams);
    std::deque<PendingFree>& queue = pending_[static_cast<std::size_t>(stream)];
    while (!queue.empty()) {
      clock_.host_cost(settings_.query_ns);
      if (!clock_.finished(queue.front().event)) break;  // A7: FIFO, stops at the first that is not done
      const BlockHandle h = queue.front().block;
      queue.pop_front();
      if (--at(h).pending == 0) free_block(h);
    }
    if (queue.empty()) pending_streams_ &= ~(std::uint64_t{1} << stream);
  }
}

void CachingAllocator::synchronize_events() {
  for (std::deque<PendingFree>& queue : pending_) {
    for (const PendingFree& entry : queue) {
      clock_.host_wait(entry.event);
      clock_.host_cost(settings_.event_ns);
      if (--at(entry.block).pending == 0) free_block(entry.block);
    }
    queue.clear();
  }
  pending_streams_ = 0;
}

void CachingAllocator::free_block(BlockHandle h) {
  Pool& pool = pool_of(at(h));
  if (pool.followed != nullptr && free_followed(pool, h)) return;
  Block& block = at(h);
  const Bytes size = block.size;
  note(MemoryAction::FreeCompleted, block.address, block.requested, block.stream);
  Bytes merged = merge(h, block.prev);
  merged += merge(h, block.next);
  insert_free(h, block, size + merged, block.address);
  if (block.expandable < 0) {
    const Bytes change = (block.is_split() ? size + merged : 0) - merged;
    if (change >= 0)
      stats_.inactive_split.add(change);
    else
      stats_.inactive_split.remove(-change);
    if (pool.recorded != nullptr) pool.recorded->push_back({0, 0, 0, change, numbers_[static_cast<std::size_t>(h)]});
  }
  stats_.active.remove(size);
  stats_.requested.remove(block.requested);
  block.requested = 0;
}

Bytes CachingAllocator::merge_neighbour(BlockHandle into, BlockHandle from) {
  const Block& source = at(from);
  Block& target = at(into);
  if (source.allocated || source.pending > 0 || source.mapped != target.mapped) return 0;
  const Bytes size = source.size;
  if (target.prev == from) {
    target.address = source.address;
    target.prev = source.prev;
    if (target.prev != kNoBlock) at(target.prev).next = into;
  } else {
    target.next = source.next;
    if (target.next != kNoBlock) at(target.next).prev = into;
  }
  if (source.mapped)
    erase_free(from);
  else
    erase_unmapped(from);
  target.size += size;
  drop_block(from);
  return size;
}

// ------------------------------------------------------------------------------------------------ giving back

Bytes CachingAllocator::allowed_memory() const {
  return static_cast<Bytes>(settings_.memory_fraction * static_cast<double>(settings_.device_memory));
}

void CachingAllocator::release_segment(BlockHandle h) {
  const Block block = at(h);
  clock_.device_synchronize();  // cudaFree waits for the device
  clock_.host_cost(settings_.driver_ns);
  driver_.release(block.address, block.size);
  stats_.count_segment(block.small, -1);
  note(MemoryAction::SegmentFree, block.address, block.size, block.stream);
  stats_.reserved.remove(block.size);
  reserved_by_stream_[block.stream] -= block.size;
  erase_free(h);
  drop_block(h);
}

bool CachingAllocator::release_available(int stream, bool small, Bytes size) {  // A6(6)
  end_tapes();
  if (settings_.max_split_size == std::numeric_limits<Bytes>::max()) return false;
  if (settings_.expandable_segments) return false;  // their blocks are passed over: pages go back in release_cached()
  const Bytes wanted = std::max(size, settings_.max_split_size);
  const FreeSet& set = pool_of(stream, small).free;
  const FreeSet::Cursor enough = set.lower_bound(wanted);
  if (!enough.end()) {
    release_segment(set[enough].block);
    return true;
  }
  Bytes released = 0;
  while (released < wanted && !set.empty() && set[set.last()].size >= settings_.max_split_size) {
    const FreeSet::Entry largest = set[set.last()];
    released += largest.size;
    release_segment(largest.block);
  }
  return released >= wanted;
}

void CachingAllocator::release_cached() {
  end_tapes();
  synchronize_events();
  std::vector<BlockHandle> give_back;
  for (const bool small : {false, true}) {
    give_back.clear();
    for (int stream = 0; stream < streams_; ++stream) {
      const FreeSet& set = pool_of(stream, small).free;
      for (FreeSet::Cursor it = set.first(); !it.end(); it = set.next(it)) {
        const Block& block = at(set[it].block);
        if (block.expandable >= 0 || !block.is_split()) give_back.push_back(set[it].block);
      }
    }
    for (const BlockHandle h : give_back) {
      if (at(h).expandable >= 0)
        unmap_block(h);
      else
        release_segment(h);
    }
  }
}

void CachingAllocator::empty_cache() { release_cached(); }

void CachingAllocator::collect_garbage() {  // A9
  const Bytes threshold =
      static_cast<Bytes>(settings_.garbage_collection_threshold * static_cast<double>(allowed_memory()));
  if (stats_.reserved.current <= threshold) return;
  const Bytes target = stats_.reserved.current - threshold;
  Bytes reclaimed = 0;
  bool freed = true;
  while (reclaimed < target && freed) {
    freed = false;
    double total_age = 0;
    std::vector<BlockHandle> candidates;
    for (int stream = 0; stream < streams_; ++stream) {
      const FreeSet& set = pool_of(stream, false).free;
      for (FreeSet::Cursor it = set.first(); !it.end(); it = set.next(it)) {
        const Block& block = at(set[it].block);
        if (block.is_split() || block.expandable >= 0) continue;
        candidates.push_back(set[it].block);
        total_age += static_cast<double>(search_count_ - block.age);
      }
    }
    if (candidates.empty()) return;
    const double threshold_age = total_age / static_cast<double>(candidates.size());
    for (const BlockHandle h : candidates) {
      if (reclaimed >= target) break;
      if (static_cast<double>(search_count_ - at(h).age) < threshold_age) continue;
      reclaimed += at(h).size;
      release_segment(h);
      freed = true;
    }
  }
}

}  // namespace foreshard
