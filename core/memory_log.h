// What a caching allocator did, in order, and what it held at the end: the value behind a memory snapshot
// (torch.cuda.memory._snapshot). Sizes in bytes; times in nanoseconds of the device clock. A plain value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"

namespace foreshard {

enum class MemoryAction : std::uint8_t {
  Alloc,
  FreeRequested,
  FreeCompleted,  // no stream uses the block any more
  SegmentAlloc,
  SegmentFree,
  SegmentMap,  // expandable segments
  SegmentUnmap,
  OutOfMemory,
};
std::string_view memory_action_name(MemoryAction action);  // PyTorch's: "alloc", "free_requested", ...

/// Who asked: what a snapshot shows as a stack.
struct MemoryOrigin {
  std::string category;  // "activations", "full_params", ...
  std::string unit;      // "" = root, or nobody's
  std::string phase;     // "forward", ...; "init" before the first iteration
  std::int32_t iteration = -1, instruction = -1;
  bool operator==(const MemoryOrigin&) const = default;
};

struct MemoryLog {
  struct Event {
    MemoryAction action = MemoryAction::Alloc;
    std::int32_t stream = 0;
    std::int32_t origin = -1;  // in origins
    Bytes address = 0;         // OutOfMemory: what the device had left
    Bytes bytes = 0;           // of blocks as requested, of segments as they are
    SimTime time = 0;          // of the host
    bool operator==(const Event&) const = default;
  };
  enum class State : std::uint8_t { Allocated, PendingFree, Inactive };
  struct Block {
    Bytes address = 0, bytes = 0, requested = 0;
    State state = State::Inactive;
    std::int32_t origin = -1;
    bool operator==(const Block&) const = default;
  };
  struct Segment {
    Bytes address = 0, bytes = 0, allocated = 0, active = 0, requested = 0;
    std::int32_t stream = 0;
    bool small = false, expandable = false;
    std::vector<Block> blocks;  // by address, without gaps
    bool operator==(const Segment&) const = default;
  };

  std::vector<Event> events;
  std::vector<Segment> segments;  // when it ended
  std::vector<MemoryOrigin> origins;
  bool operator==(const MemoryLog&) const = default;
};

}  // namespace foreshard
