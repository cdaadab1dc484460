// What a reader of recordings returns: a timeline, where it came from, and what was wrong with the file. A plain value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/timeline.h"
#include "traces/timeline/slice_arguments.h"

namespace foreshard {

struct TraceWarning {
  std::string place;  // the file, and where in it; for several files the name inside an archive too
  std::string text;
  bool operator==(const TraceWarning&) const = default;
};

struct OpenedTrace {
  Timeline timeline;         // starts at 0
  SliceArguments arguments;  // what the recording says of its slices beside
  std::string format;        // "fst", "chrome" (our own JSON), "kineto", "snapshot", "nsys"
  std::vector<TraceWarning> warnings;
  std::optional<std::int64_t> origin_ns;  // Unix time of the timeline's 0, where the recording says it
  std::int32_t world_size = 0;            // of the recorded job; 0 = unknown
};

}  // namespace foreshard
