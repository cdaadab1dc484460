// What an allocator counts: torch.cuda.memory_stats(), the part that is predicted. Plain values; bytes.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/units.h"

namespace foreshard {

struct MemoryStat {
  Bytes current = 0, peak = 0;
  void add(Bytes bytes) {
    current += bytes;
    if (current > peak) peak = current;
  }
  void remove(Bytes bytes) { current -= bytes; }
  bool operator==(const MemoryStat&) const = default;
};

/// Counts are since the start.
struct AllocatorStats {
  MemoryStat allocated, active, reserved, requested, inactive_split;
  std::int64_t allocations = 0, retries = 0, ooms = 0, device_allocs = 0, device_frees = 0;
  std::int64_t large_segments = 0, small_segments = 0;  // held now; ranges of expandable segments are not counted

  /// A segment came from the driver (1) or went back (-1).
  void count_segment(bool small, std::int64_t change) {
    (small ? small_segments : large_segments) += change;
    (change > 0 ? device_allocs : device_frees) += 1;
  }
  void reset_peaks() {
    for (MemoryStat* s : {&allocated, &active, &reserved, &requested, &inactive_split}) s->peak = s->current;
  }
  bool operator==(const AllocatorStats&) const = default;
};

}  // namespace foreshard
