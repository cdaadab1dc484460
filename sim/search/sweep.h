// The search over a grid of jobs: every point planned and simulated, in parallel, and the front of time against peak
// reserved memory.
//
// Deterministic: but for `seconds` the answer does not depend on the number of threads. A point that cannot be planned
// (a trap, keys that contradict each other) is an answer with its reason, not an error.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/result.h"
#include "core/units.h"
#include "sim/search/pareto.h"
#include "sim/search/sweep_axes.h"

namespace foreshard {

/// The points with index % of == index - 1: a job array's task.
struct SweepPart {
  std::size_t index = 1, of = 1;
  bool operator==(const SweepPart&) const = default;
};

struct SweepOptions {
  Bytes budget = 0;  // memory of one device in place of the job's; 0 = the job's
  int threads = 0;   // 0 = one a core
  SweepPart part;
  std::function<void(std::size_t done, std::size_t total)> progress;  // now and then, on the calling thread
};

struct SweepPoint {
  std::size_t index = 0;               // in the whole grid
  std::vector<std::size_t> values;     // by axis
  std::optional<std::size_t> same_as;  // the earlier point that is the same job
  std::optional<Error> refused;        // could not be planned
  bool fits = false;
  std::string misfit;  // where memory ran out, or who waits for whom
  double step_time_ns = 0;
  double exposed_ns = 0;
  double tokens_per_step = 0;  // of all ranks; samples where the model has no tokens
  Bytes peak_reserved = 0, peak_allocated = 0;
};

/// What `time` of the front is: step times are only comparable where all points do the same work.
enum class SweepObjective { StepTime, TimePerToken };

struct SweepResult {
  std::vector<SweepPoint> points;  // of this part, by index
  SweepObjective objective = SweepObjective::StepTime;
  std::vector<FrontPoint> front;  // indices of points
  std::size_t simulated = 0;      // distinct jobs
  double seconds = 0;
};

Result<SweepResult> sweep(const Job& base, const SweepGrid& grid, const SweepOptions& options);

/// Objective and front of points that are there; `merge` makes them anew.
void find_front(SweepResult& result);

/// Nanoseconds as the objective counts them.
double objective_time(const SweepPoint& point, SweepObjective objective);

}  // namespace foreshard
