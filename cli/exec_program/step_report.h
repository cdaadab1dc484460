// What `foreshard run` says while it trains: a line per step (text or JSON) or a bar on a terminal, and at the end the
// measured counterpart of `simulate`'s answer. docs/formats/run.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/console/console.h"
#include "core/job.h"
#include "exec/training/training_loop.h"

namespace foreshard::cli {

/// {"step": 1, "loss": ..., ...} and a line end.
std::string step_json(const exec::StepReport& step);
/// "step    1/20  loss 4.5650  norm 1.2034  lr 2.00e-03  12.3 ms  41,200 tokens/s  peak 1.2 MiB".
std::string step_line(const exec::StepReport& step, std::int64_t steps);
/// One line that is drawn over again, no wider than `width`, without a line end.
std::string progress_bar(const exec::StepReport& step, std::int64_t steps, int width, bool unicode);

/// The whole run on one rank.
struct MeasuredTraining {
  const Job& job;
  const exec::Training& training;
  const std::vector<exec::StepReport>& steps;
  const exec::TrainingEnd& end;
  std::string backend;
  bool emulated = false;  // one real rank of plan().world_size
};

std::string summary_json(const MeasuredTraining& measured);
std::string summary_text(const MeasuredTraining& measured);

}  // namespace foreshard::cli
