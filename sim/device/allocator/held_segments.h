// Pictures of what a caching allocator holds: its segments in few words, and as a memory snapshot shows them. Bytes.
#pragma once

#include <vector>

#include "core/memory_log.h"
#include "core/units.h"
#include "sim/device/allocator/blocks.h"

namespace foreshard {

struct SegmentInfo {
  Bytes address = 0, bytes = 0, allocated = 0, active = 0;
  int stream = 0;
  bool small = false;
  bool operator==(const SegmentInfo&) const = default;
};

/// By address.
std::vector<SegmentInfo> segments_of(const Blocks& blocks);
/// By address, with their blocks; whose those are is read from the log of all that happened.
std::vector<MemoryLog::Segment> held_segments_of(const Blocks& blocks, const MemoryLog& log);

}  // namespace foreshard
