// Expandable segments (A10): a virtual range for each pool that pages are mapped into and unmapped from, instead of
// segments of fixed size. Bytes.
#pragma once

#include <vector>

#include "core/units.h"
#include "sim/device/allocator/allocator_ledger.h"
#include "sim/device/allocator/blocks.h"
#include "sim/device/allocator/pools.h"
#include "sim/device/allocator/settings.h"
#include "sim/device/device_clock.h"
#include "sim/device/driver_memory.h"

namespace foreshard {

class ExpandableSegments {
 public:
  ExpandableSegments(const AllocatorSettings& settings, Blocks& blocks, Pools& pools, AllocatorLedger& ledger,
                     DriverMemory& driver, DeviceClock& clock)
      : settings_(settings), blocks_(blocks), pools_(pools), ledger_(ledger), driver_(driver), clock_(clock) {}

  /// Maps what is missing behind the pool's free blocks: a block of at least this size that stands in no pool.
  /// kNoBlock: the device is full; what was mapped until then stays.
  BlockHandle take(std::size_t pool, Bytes size);
  /// A free block's whole pages go back to the driver.
  void unmap(BlockHandle h);

 private:
  struct VirtualRange {
    Bytes begin = 0, size = 0, page = 0;
    int stream = 0;
  };
  BlockHandle find(std::size_t pool, Bytes size);
  BlockHandle reserve_range(std::size_t pool);
  bool map(BlockHandle h, Bytes size);

  const AllocatorSettings& settings_;
  Blocks& blocks_;
  Pools& pools_;
  AllocatorLedger& ledger_;
  DriverMemory& driver_;
  DeviceClock& clock_;
  std::vector<VirtualRange> ranges_;  // by Block::expandable
};

}  // namespace foreshard
