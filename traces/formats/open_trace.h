// Any recording as a Timeline: our own .fst, Kineto's (or any other) Chrome JSON, PyTorch memory snapshots, nsys'
// sqlite export; plain, .gz, .zst, in a .tar. What a file is, its bytes say, never its name.
//
// Files of the world are often damaged: truncated ones give what is there, a slice that cannot be (no time, a negative
// duration) is left out, and each such finding is a warning with a count. An Error is left for files of which nothing
// can be shown. Pure functions; may be called from any thread. Layouts and roles: docs/traces.md.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/result.h"
#include "traces/timeline/opened_trace.h"

namespace foreshard {

struct OpenOptions {
  std::function<bool(double fraction)> progress;  // of the bytes read; false cancels (an Error with code Usage)
  std::uint64_t memory_limit = 64ULL << 30U;      // of the timeline, estimated; beyond it the reader stops
};

Result<OpenedTrace> open_trace(const std::string& path, const OpenOptions& options = {});

/// Several recordings as one timeline. Files without a rank of their own, or with one that another file has, get the
/// next free one. Clocks: by the collectives that ranks share (they end together), else by Unix time, else at 0.
Result<OpenedTrace> open_traces(const std::vector<std::string>& paths, const OpenOptions& options = {});

}  // namespace foreshard
