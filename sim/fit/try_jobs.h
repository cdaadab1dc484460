// Jobs tried for `fit`: for one layout and one recomputation, the number of sequences at a time that trains fastest.
//
// Deterministic: lines are searched in parallel, each by one thread, and no line's answer depends on another's.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/result.h"
#include "core/units.h"
#include "sim/fit/axes.h"
#include "sim/search/shared_parts.h"

namespace foreshard {

/// One simulated job of a line.
struct FitTrial {
  fit_axes::Batch batch;
  bool fits = false;
  double step_time_ns = 0;
  double ns_per_token = 0;          // of all ranks together: what is made small
  double compute_ns_per_token = 0;  // the share of it that no layout removes
  Bytes peak_reserved = 0;
};

/// Jobs that differ in the number of sequences alone.
struct FitLine {
  std::string layout, recomputation;
  std::vector<std::string> set;
  Job job;                       // with these settings
  std::vector<FitTrial> trials;  // in the order in which they were made
  std::optional<Error> refused;  // the job cannot be planned
  bool cut = false;              // not tried: its compute alone takes longer than the best found

  /// The fastest that fits; nullptr where none does.
  const FitTrial* best() const;
};

/// The job with this batch, simulated. Errors: it cannot be planned.
Result<FitTrial> try_job(Workbench& bench, Job job, const fit_axes::Batch& batch);

/// The settings of a trial beside its line's.
std::vector<std::string> batch_settings(const fit_axes::Batch& batch);

class LineSearch {
 public:
  /// `progress` is called on the calling thread, with lines done and lines in all.
  LineSearch(SharedParts& shared, int threads, std::function<void(std::size_t, std::size_t)> progress);

  /// Every line that is not cut: its largest batches that fit, and how fast they are.
  void run(std::vector<FitLine>& lines, const std::vector<fit_axes::Batch>& batches, std::int64_t tokens_per_step);

  std::size_t simulated() const { return simulated_; }

 private:
  SharedParts& shared_;
  int threads_;
  std::function<void(std::size_t, std::size_t)> progress_;
  std::size_t simulated_ = 0;
};

}  // namespace foreshard
