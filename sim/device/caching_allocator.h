// A replica of PyTorch's CUDA caching allocator (rules A1 to A15): rounding, pools per stream, split and merge, blocks
// that wait for events of other streams, expandable segments, garbage collection, retry, out-of-memory.
//
// It moves no memory: blocks are address ranges of a DriverMemory, and what it asks of the device (record, poll, wait)
// it asks of a DeviceClock, which it also charges for its calls. Sizes are bytes. Owned by one simulation; not shared
// between threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "core/memory_log.h"
#include "core/units.h"
#include "sim/device/allocator_stats.h"
#include "sim/device/device_clock.h"
#include "sim/device/driver_memory.h"
#include "sim/device/free_set.h"
#include "sim/device/pool_tape.h"

namespace foreshard {

struct AllocatorSettings {
  bool expandable_segments = false;
  bool exact = false;  // a host's: blocks are as large as what was asked for
  Bytes max_split_size = std::numeric_limits<Bytes>::max();
  Bytes max_non_split_rounding = 20 * kMiB;
  std::array<std::int64_t, 16> power2_divisions{};  // A11: by interval from 1 MiB; 0 or 1 = off
  double garbage_collection_threshold = 0.0;        // A9: needs a memory fraction
  double memory_fraction = 0.0;                     // A12; 0 = not set
  Bytes device_memory = 0;                          // sizes the virtual range of expandable segments

  // What its calls cost the host.
  SimDuration event_ns = 0, query_ns = 0, driver_ns = 0;
};

/// A11's short form: one number of divisions for every interval.
std::array<std::int64_t, 16> same_divisions(std::int64_t divisions);

/// A1 and A11.
Bytes round_request(Bytes bytes, const AllocatorSettings& settings);
/// A3. REQUIRES rounded > 0.
Bytes segment_bytes(Bytes rounded);

/// The most that there ever was, whenever peaks were reset.
struct MemoryPeaks {
  Bytes allocated = 0, active = 0, reserved = 0;
};

using BlockHandle = std::int32_t;
inline constexpr BlockHandle kNoBlock = -1;     // out of memory
inline constexpr BlockHandle kEmptyBlock = -2;  // a request of 0 bytes owns nothing

struct SegmentInfo {
  Bytes address = 0, bytes = 0, allocated = 0, active = 0;
  int stream = 0;
  bool small = false;
  bool operator==(const SegmentInfo&) const = default;
};

class CachingAllocator {
 public:
  static constexpr int kMaxStreams = 64;

  CachingAllocator(const AllocatorSettings& settings, DriverMemory& driver, DeviceClock& clock, int streams);

  /// A6. kNoBlock is out-of-memory; the counters say so too.
  BlockHandle allocate(Bytes bytes, int stream);
  /// A7: the stream's work so far and until free() may use the block.
  void record_stream(BlockHandle block, int stream);
  void free(BlockHandle block);
  /// torch.cuda.empty_cache().
  void empty_cache();

  const AllocatorStats& stats() const { return stats_; }
  void reset_peaks() {
    highest_ = highest();
    stats_.reset_peaks();
  }
  MemoryPeaks highest() const {
    return {std::max(highest_.allocated, stats_.allocated.peak), std::max(highest_.active, stats_.active.peak),
            std::max(highest_.reserved, stats_.reserved.peak)};
  }
  Bytes block_bytes(BlockHandle block) const { return block < 0 ? 0 : blocks_[static_cast<std::size_t>(block)].size; }
  Bytes address(BlockHandle block) const { return block < 0 ? 0 : blocks_[static_cast<std::size_t>(block)].address; }
  /// Bytes that a stream's pools hold from the driver.
  Bytes reserved_of(int stream) const { return reserved_by_stream_[static_cast<std::size_t>(stream)]; }
  std::vector<SegmentInfo> segments() const;

  /// Writes down what the stream's pools do, or answers as they did (sim/device/pool_tape.h), until they do something
  /// that no tape holds. REQUIRES can_follow() and that nothing was allocated yet. While pools follow, segments() is
  /// not theirs.
  void record(int stream, PoolTape* tape);
  void follow(int stream, const PoolTape& tape);
  /// Plain settings: no limit of splits, nothing expandable.
  bool can_follow() const;
  bool records(int stream) const { return pool_of(stream, false).recorded && pool_of(stream, true).recorded; }
  bool follows(int stream) const { return pool_of(stream, false).followed && pool_of(stream, true).followed; }
  /// Where the stream's pools stand on their tape. REQUIRES records() or follows().
  std::array<std::size_t, 2> tape_place(int stream) const;
  /// Which allocation of its pool a block is. REQUIRES records() or follows() for its stream.
  std::int32_t number_of(BlockHandle block) const { return numbers_[static_cast<std::size_t>(block)]; }
  bool is_small(BlockHandle block) const { return at(block).small; }
  Bytes requested_bytes(BlockHandle block) const { return at(block).requested; }
  /// Frees that wait for other streams.
  bool has_pending() const { return pending_streams_ != 0; }
  /// Whether a free has ever waited: then what is reserved depends on how far the host runs ahead.
  bool ever_pending() const { return ever_pending_; }

  /// Passes over what a recorded run did; its blocks are not made. False: the tape stands elsewhere or the card has
  /// not the room, and nothing was done. The host pays for run.calls at its own time.
  bool skip(int stream, const SegmentRun& run);
  /// A block that skipped runs made and did not free: what it adds to the statistics has been added.
  BlockHandle adopt(int stream, const SegmentRun::Holding& holding);
  /// A block that was adopted, where a skipped run has freed it.
  void disown(BlockHandle block) { drop_block(block); }

  /// From now on all that happens is written down; nullptr ends it. `origin` is whose the next calls are.
  void log_to(MemoryLog* log) {
    end_tapes();
    log_ = log;
  }
  void set_origin(std::int32_t origin) { origin_ = origin; }
  /// What is held now, as a snapshot shows it.
  std::vector<MemoryLog::Segment> held_segments() const;

 private:
  struct Block {
    Bytes address = 0, size = 0, requested = 0;
    BlockHandle prev = kNoBlock, next = kNoBlock;
    std::uint64_t uses = 0;        // streams noted since it was allocated
    std::int64_t age = 0;          // A9
    std::int32_t pending = 0;      // events recorded at free and not yet seen done
    std::int32_t expandable = -1;  // index into ranges_
    std::uint8_t stream = 0;
    bool small = false, allocated = false, mapped = true, alive = false;
    bool is_split() const { return prev != kNoBlock || next != kNoBlock; }
  };
  struct Pool {
    FreeSet free;
    std::vector<BlockHandle> unmapped;  // by address; expandable segments only
    std::vector<PoolEvent>* recorded = nullptr;
    const std::vector<PoolEvent>* followed = nullptr;
    std::size_t position = 0;       // in the followed tape
    std::int32_t numbers = 0;       // allocations so far
    std::vector<Bytes> addresses;   // of segments, while following
    bool skipped = false;           // a run: both pools of the stream leave together
    std::vector<BlockHandle> made;  // by number, once the tape was left after skipping
  };
  struct VirtualRange {
    Bytes begin = 0, size = 0, page = 0;
    int stream = 0;
  };
  struct PendingFree {
    EventStamp event;
    BlockHandle block;
  };

  Block& at(BlockHandle h) { return blocks_[static_cast<std::size_t>(h)]; }
  const Block& at(BlockHandle h) const { return blocks_[static_cast<std::size_t>(h)]; }
  Pool& pool_of(const Block& block) {
    return pools_[static_cast<std::size_t>(block.stream) * 2 + (block.small ? 1 : 0)];
  }
  const Pool& pool_of(int stream, bool small) const {
    return pools_[static_cast<std::size_t>(stream) * 2 + (small ? 1 : 0)];
  }
  Pool& pool_of(int stream, bool small) { return pools_[static_cast<std::size_t>(stream) * 2 + (small ? 1 : 0)]; }
  BlockHandle new_block();
  void drop_block(BlockHandle h);
  void insert_free(BlockHandle h, Block& block, Bytes size, Bytes address);
  void insert_free(BlockHandle h) { insert_free(h, at(h), at(h).size, at(h).address); }
  void erase_free(BlockHandle h);
  void insert_unmapped(BlockHandle h);
  void erase_unmapped(BlockHandle h);

  void note(MemoryAction action, Bytes address, Bytes bytes, int stream) {
    if (log_ != nullptr) log_->events.push_back({action, stream, origin_, address, bytes, clock_.host()});
  }
  void process_events();
  void synchronize_events();
  BlockHandle find_free(FreeSet& set, Bytes size);
  FreeSet::Cursor most_growth(const FreeSet& set, FreeSet::Cursor at) const;
  BlockHandle make_room(int stream, bool small, Bytes size);
  BlockHandle new_segment(int stream, bool small, Bytes address, Bytes bytes);
  BlockHandle split(BlockHandle h, Bytes size, bool was_split);
  BlockHandle allocate_segment(int stream, bool small, Bytes size, Bytes segment, bool retry);
  BlockHandle hand_out(BlockHandle h, Bytes size, Bytes requested);
  bool should_split(const Block& block, Bytes size) const;
  void free_block(BlockHandle h);
  Bytes merge(BlockHandle into, BlockHandle from) { return from == kNoBlock ? 0 : merge_neighbour(into, from); }
  Bytes merge_neighbour(BlockHandle into, BlockHandle from);
  bool release_available(int stream, bool small, Bytes size);
  void release_cached();
  void release_segment(BlockHandle h);
  void collect_garbage();
  Bytes allowed_memory() const;

  // With a tape: sim/device/pool_tape.cpp.
  BlockHandle allocate_recorded(Pool& pool, int stream, bool small, Bytes size, Bytes requested);
  BlockHandle allocate_followed(Pool& pool, int stream, bool small, Bytes size, Bytes requested);
  bool free_followed(Pool& pool, BlockHandle h);
  void number_block(BlockHandle h, std::int32_t number);
  void leave(Pool& pool);
  void replay(Pool& pool, const std::vector<PoolEvent>& events, std::size_t count, std::vector<BlockHandle>& made);
  void move_block(BlockHandle from, BlockHandle to);
  void end_tapes();

  BlockHandle allocate_expandable(int stream, bool small, Bytes size);
  BlockHandle find_expandable(int stream, bool small, Bytes size);
  bool map_block(BlockHandle h, Bytes size);
  void unmap_block(BlockHandle h);

  AllocatorSettings settings_;
  bool plain_rounding_;  // to 512 bytes, nothing else
  DriverMemory& driver_;
  DeviceClock& clock_;
  AllocatorStats stats_;
  MemoryPeaks highest_;
  int streams_;
  std::vector<Block> blocks_;
  std::vector<BlockHandle> spare_;
  std::vector<Pool> pools_;                       // two a stream: large, small
  std::vector<std::deque<PendingFree>> pending_;  // by stream
  std::uint64_t pending_streams_ = 0;
  bool ever_pending_ = false;
  std::vector<VirtualRange> ranges_;
  std::vector<Bytes> reserved_by_stream_;
  std::int64_t search_count_ = 0;
  std::vector<std::int32_t> numbers_;  // by block: which allocation of its pool; pools with a tape only
  MemoryLog* log_ = nullptr;
  std::int32_t origin_ = -1;
};

}  // namespace foreshard
