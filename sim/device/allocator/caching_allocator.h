// A replica of PyTorch's CUDA caching allocator (rules A1 to A15): rounding, pools per stream, split and merge, blocks
// that wait for events of other streams, expandable segments, garbage collection, retry, out-of-memory.
//
// It moves no memory: blocks are address ranges of a DriverMemory, and what it asks of the device (record, poll, wait)
// it asks of a DeviceClock, which it also charges for its calls. This is the face; what it is made of stands beside it:
// blocks, pools of free ones, segments of the driver, frees that wait, tapes, the ledger. Sizes are bytes. Owned by one
// simulation; not shared between threads.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "core/memory_log.h"
#include "core/units.h"
#include "sim/device/allocator/allocator_ledger.h"
#include "sim/device/allocator/allocator_stats.h"
#include "sim/device/allocator/blocks.h"
#include "sim/device/allocator/held_segments.h"
#include "sim/device/allocator/pending_frees.h"
#include "sim/device/allocator/pool_tapes.h"
#include "sim/device/allocator/pools.h"
#include "sim/device/allocator/segments.h"
#include "sim/device/allocator/settings.h"
#include "sim/device/device_clock.h"
#include "sim/device/driver_memory.h"

namespace foreshard {

class CachingAllocator {
 public:
  CachingAllocator(const AllocatorSettings& settings, DriverMemory& driver, DeviceClock& clock, int streams);
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// A6. kNoBlock is out-of-memory; the counters say so too.
  BlockHandle allocate(Bytes bytes, int stream);
  /// A7: the stream's work so far and until free() may use the block.
  void record_stream(BlockHandle block, int stream);
  void free(BlockHandle block);
  /// torch.cuda.empty_cache().
  void empty_cache();

  const AllocatorStats& stats() const { return ledger_.stats; }
  void reset_peaks() { ledger_.reset_peaks(); }
  /// Peaks of what happens from here on alone, until join_peaks() is given what this has returned.
  AllocatorStats part_peaks();
  void join_peaks(const AllocatorStats& before);
  MemoryPeaks highest() const { return ledger_.highest(); }
  /// Bytes that a stream's pools hold from the driver.
  Bytes reserved_of(int stream) const { return ledger_.reserved_of(stream); }

  Bytes block_bytes(BlockHandle block) const { return block < 0 ? 0 : blocks_[block].size; }
  Bytes requested_bytes(BlockHandle block) const { return blocks_[block].requested; }
  Bytes address(BlockHandle block) const { return block < 0 ? 0 : blocks_[block].address; }
  int stream_of(BlockHandle block) const { return blocks_[block].stream; }
  bool is_small(BlockHandle block) const { return blocks_[block].small; }
  /// Frees that wait for other streams.
  const PendingFrees& pending() const { return pending_; }
  /// Of pools that follow no tape.
  std::vector<SegmentInfo> segments() const { return segments_of(blocks_); }

  /// Called before what depends on the time: the driver is asked, or a block begins to wait for other streams. Whoever
  /// has not yet issued what is due issues it then.
  void before_time_matters(std::function<void()> told) { before_time_matters_ = std::move(told); }

  PoolTapes& tapes() { return tapes_; }
  const PoolTapes& tapes() const { return tapes_; }

  /// From now on all that happens is written down; nullptr ends it. `origin` is whose the next calls are.
  void log_to(MemoryLog* log) {
    tapes_.end();
    ledger_.log_to(log);
  }
  bool logs() const { return ledger_.log() != nullptr; }
  void set_origin(std::int32_t origin) { ledger_.set_origin(origin); }
  /// What is held now, as a snapshot shows it. REQUIRES a log.
  std::vector<MemoryLog::Segment> held_segments() const;

 private:
  BlockHandle allocate_taped(std::size_t pool, Bytes size, Bytes requested);
  void complete_taped(BlockHandle block);
  BlockHandle make_room(std::size_t pool, Bytes size, Bytes requested);
  void wait_for_streams(BlockHandle h);
  void complete(BlockHandle h);
  void release_cached();

  AllocatorSettings settings_;
  bool plain_rounding_;  // to 512 bytes, nothing else
  DriverMemory& driver_;
  Blocks blocks_;
  AllocatorLedger ledger_;
  Pools pools_;
  Segments segments_;
  PendingFrees pending_;
  PoolTapes tapes_;
  std::function<void()> before_time_matters_;
};

}  // namespace foreshard
