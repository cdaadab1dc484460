// Any recording as a Timeline: our own .fst, Kineto's (or any other) Chrome JSON, PyTorch memory snapshots, nsys'
// sqlite export; plain, .gz, .zst, in a .tar. What a file is, its bytes say, never its name.
//
// Files of the world are often damaged: truncated ones give what is there, a slice that cannot be (no time, a negative
// duration) is left out, and each such finding is a warning with a count. An Error is left for files of which nothing
// can be shown. Pure functions; may be called from any thread. Layouts and roles: docs/traces.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/timeline.h"
#include "core/units.h"

namespace foreshard {

struct TraceWarning {
  std::string place;  // the file, and where in it; for several files the name inside an archive too
  std::string text;
  bool operator==(const TraceWarning&) const = default;
};

struct OpenedTrace {
  Timeline timeline;   // starts at 0
  std::string format;  // "fst", "chrome" (our own JSON), "kineto", "snapshot", "nsys"
  std::vector<TraceWarning> warnings;
  std::optional<std::int64_t> origin_ns;  // Unix time of the timeline's 0, where the recording says it
  std::int32_t world_size = 0;            // of the recorded job; 0 = unknown
};

struct OpenOptions {
  std::function<bool(double fraction)> progress;  // of the bytes read; false cancels (an Error with code Usage)
  std::uint64_t memory_limit = 64ULL << 30U;      // of the timeline, estimated; beyond it the reader stops
};

Result<OpenedTrace> open_trace(const std::string& path, const OpenOptions& options = {});

/// Several recordings as one timeline. Files without a rank of their own, or with one that another file has, get the
/// next free one. Clocks: by the collectives that ranks share (they end together), else by Unix time, else at 0.
Result<OpenedTrace> open_traces(const std::vector<std::string>& paths, const OpenOptions& options = {});

}  // namespace foreshard
