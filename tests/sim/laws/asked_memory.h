// What a job asks of the allocator, from its log: a function of the host's calls in their order, whatever a machine's
// speed. What the allocator says beyond it (rests of blocks that it does not split, blocks that wait for streams, its
// cache) has bounds of its own. Bytes.
#pragma once

#include "core/memory_log.h"
#include "core/units.h"
#include "sim/device/allocator/caching_allocator.h"

namespace foreshard::testing {

struct AskedMemory {
  Bytes peak = 0;       // of the requests, rounded as the allocator rounds them, until their owners let go
  Bytes most = 0;       // ... with the largest rest that each block may keep: allocated bytes lie between the two
  Bytes kept_peak = 0;  // ... without what kernels take for themselves (temporaries, workspaces)
  bool operator==(const AskedMemory&) const = default;
};

/// By how much a block may be larger than the rounded request that it serves (CUDACachingAllocator.cpp: should_split,
/// get_free_block): small blocks and pages of expandable segments are always cut; a large one keeps up to 1 MiB, and
/// beyond max_split_size up to 20 MiB.
Bytes largest_rest(Bytes rounded, const AllocatorSettings& settings);

AskedMemory asked_memory(const MemoryLog& log, const AllocatorSettings& settings);

}  // namespace foreshard::testing
