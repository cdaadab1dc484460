// What happened in the pools of one stream of the caching allocator, and how the pools answered.
//
// Pools of different streams share nothing but the card: how a pool splits and merges follows from the order of its own
// allocations and completed frees alone. Plans that differ in prefetching issue the same ones on the compute stream, so
// the first of them is recorded and the others read its answers, as long as they ask the same. The answers are exact:
// CachingAllocator::follow checks every event and rebuilds the pool where a plan goes its own way.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/units.h"

namespace foreshard {

struct PoolEvent {
  Bytes size = 0;           // asked for, rounded; 0 = a block's free has completed
  Bytes block = 0;          // what was handed out
  Bytes segment = 0;        // taken from the driver for it
  Bytes inactive = 0;       // change of inactive_split bytes
  std::int32_t number = 0;  // which allocation of the pool, counted from 0
  bool operator==(const PoolEvent&) const = default;
};

struct PoolTape {
  std::array<std::vector<PoolEvent>, 2> pools;  // large, small
};

}  // namespace foreshard
