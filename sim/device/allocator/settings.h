// How a caching allocator rounds and what it may do: PYTORCH_CUDA_ALLOC_CONF's words, the device's memory, what calls
// cost. Plain values; bytes, nanoseconds.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "core/units.h"

namespace foreshard {

inline constexpr Bytes kMinBlock = 512;
inline constexpr Bytes kSmallLimit = kMiB;  // A2: blocks up to this size come from a stream's small pool

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
/// Whether every request is rounded to kMinBlock and nothing else.
bool rounds_plainly(const AllocatorSettings& settings);
/// A3. REQUIRES rounded > 0.
Bytes segment_bytes(Bytes rounded);
/// A12: what it may take of the device. REQUIRES memory_fraction > 0.
Bytes allowed_memory(const AllocatorSettings& settings);

}  // namespace foreshard
