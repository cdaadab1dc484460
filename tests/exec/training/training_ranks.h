// Ranks as threads of the test that train a job as `run` does: data, checkpoints, resumption.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/job.h"
#include "exec/training/training_loop.h"

namespace foreshard::exec {

/// What rank 0 tells.
struct TrainedJob {
  std::vector<StepReport> steps;
  std::vector<std::string> notes;
  std::string failure;  // of the first rank that failed, or was refused; empty: done
  std::vector<double> losses() const;
};

/// The tiny Llama with its weights on synthetic tokens: two ranks, float32, three steps; then `sets` as --set takes
/// them.
Job scripted_job(const std::vector<std::string>& sets);

TrainedJob train_job(const Job& job, bool resume = false);

}  // namespace foreshard::exec
