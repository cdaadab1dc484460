// The longest sequence that fits: the same job with one sequence at a time and ever more tokens in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/job.h"
#include "core/result.h"
#include "sim/search/shared_parts.h"

namespace foreshard {

struct LongestContext {
  std::int64_t tokens = 0;    // 0 = not even the shortest fits
  std::int64_t too_long = 0;  // what does not fit any more; 0 = nothing longer was refused by memory
  bool model_ends = false;    // the model takes no longer sequence: memory would
  std::size_t simulated = 0;
};

/// In steps of 1024 tokens (128 where less than 1024 fit). Errors: a job that cannot be planned at any length.
Result<LongestContext> longest_context(const Job& job, Workbench& bench);

}  // namespace foreshard
