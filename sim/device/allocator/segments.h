// What a caching allocator takes from the driver and gives back: segments of fixed size, or pages of expandable ones;
// garbage collection (A3, A6, A9, A12). Bytes.
#pragma once

#include "core/units.h"
#include "sim/device/allocator/allocator_ledger.h"
#include "sim/device/allocator/blocks.h"
#include "sim/device/allocator/expandable_segments.h"
#include "sim/device/allocator/pools.h"
#include "sim/device/allocator/settings.h"
#include "sim/device/device_clock.h"
#include "sim/device/driver_memory.h"

namespace foreshard {

class Segments {
 public:
  Segments(const AllocatorSettings& settings, Blocks& blocks, Pools& pools, AllocatorLedger& ledger,
           DriverMemory& driver, DeviceClock& clock)
      : settings_(settings),
        blocks_(blocks),
        pools_(pools),
        ledger_(ledger),
        driver_(driver),
        clock_(clock),
        expandable_(settings, blocks, pools, ledger, driver, clock) {}

  /// A block of at least this size that stands in no pool. kNoBlock: the device, or what it may take of it, is full.
  BlockHandle take(std::size_t pool, Bytes size);
  /// Counted, with its address; no block is made. DriverMemory::kNoAddress: the device is full.
  Bytes take_address(std::size_t pool, Bytes segment);
  /// A9, before the driver is asked.
  void collect_garbage();
  /// A6(6): large blocks that would serve if they were not too large. True: another try is worth it.
  bool release_available(std::size_t pool, Bytes size);
  /// All that is free.
  void release_cached();

 private:
  void release(BlockHandle h);

  const AllocatorSettings& settings_;
  Blocks& blocks_;
  Pools& pools_;
  AllocatorLedger& ledger_;
  DriverMemory& driver_;
  DeviceClock& clock_;
  ExpandableSegments expandable_;
};

}  // namespace foreshard
