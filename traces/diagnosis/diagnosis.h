// A recording in, causes with costs and remedies out. Any recording that open_traces reads: Kineto's, memory snapshots,
// nsys', our own; one rank or several.
//
// A finding is named only where the recording shows its mark: what costs less than `least_share` of the step (of the
// memory's peak) is left out, and a rule that lacks what it looks at (no memory counters, one rank alone) says so in
// `not_looked_at` instead of guessing. Times are those of a mean step after the first, in nanoseconds. Savings are
// estimates, upper bounds unless said otherwise, until somebody who has the job simulates `set`. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/timeline.h"
#include "traces/timeline/intervals.h"
#include "traces/timeline/opened_trace.h"

namespace foreshard {

/// Where to look: a stretch of the recording, with what is there.
struct Evidence {
  std::int32_t rank = 0;
  Interval time;
  std::string text;
};

struct DiagnosedCause {
  std::string name;                // "missing_prefetch": stable, listed in docs/diagnose.md
  std::string cause;               // one sentence with its numbers
  SimDuration cost = 0;            // of a step; 0 = none in time
  Bytes cost_bytes = 0;            // of the memory's peak; 0 = none in memory
  std::vector<std::string> where;  // units, operators, ranks: what costs most first
  std::string remedy;              // the PyTorch call or setting
  std::vector<std::string> set;    // the same as keys of a job, in the spelling of --set; empty = no key says it
  std::optional<SimDuration> saving;
  std::optional<Bytes> saving_bytes;
  bool simulated = false;  // the savings were simulated, not estimated
  std::vector<Evidence> evidence;
  double share = 0;  // of the step, or of memory (the card's where its name says it, else the peak) if that is more
};

struct Diagnosis {
  std::int32_t rank = 0;                   // whose step it is: the longest one's
  std::int64_t steps = 0;                  // looked at
  SimDuration step = 0;                    // mean; 0 = no work on a device was recorded
  SimDuration compute = 0;                 // of it: something computes
  Bytes peak = 0;                          // allocated; 0 = not recorded
  std::vector<DiagnosedCause> findings;    // the most expensive first
  std::vector<std::string> not_looked_at;  // and why
};

struct DiagnosisOptions {
  std::optional<std::int32_t> rank;  // else the one with the longest step
  double least_share = 0.02;
};

/// Errors: no such rank; a recording in which neither work on a device nor memory can be seen.
Result<Diagnosis> diagnose(const Timeline& timeline, const DiagnosisOptions& options = {});
inline Result<Diagnosis> diagnose(const OpenedTrace& trace, const DiagnosisOptions& options = {}) {
  return diagnose(trace.timeline, options);
}

}  // namespace foreshard
