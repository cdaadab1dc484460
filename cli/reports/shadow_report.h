// The answer of `shadow`: a script's steps on the virtual device, its set-up as a job, the plan beside it, what
// differs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/reports/report.h"
#include "core/job.h"
#include "shadow/difference.h"
#include "shadow/watched_run.h"
#include "sim/play/prediction.h"

namespace foreshard::cli {

/// Of a script whose optimizers take turns, one behind the first.
struct ShadowTurn {
  Job found;
  std::string job_text, job_file;
  std::optional<Prediction> plan;
};

struct ShadowAnswer {
  shadow::WatchedRun run;
  std::string profile;
  double seconds = 0;              // of real time, the script's imports included
  std::optional<Job> found;        // the set-up of the script
  std::optional<Job> meant;        // --job
  std::string job_text;            // the same as a file beside its model
  std::string job_file;            // where the found job was kept; empty: it was not
  std::optional<Prediction> plan;  // of `meant`, else of `found`
  std::vector<ShadowTurn> turns;   // from the second on
  bool compared = false;           // a whole step with the plan
  std::vector<shadow::Difference> differences;
  std::vector<std::string> notes;
};

std::string shadow_report(const ShadowAnswer& answer, const ReportStyle& style);
/// foreshard.shadow/1
std::string shadow_json(const ShadowAnswer& answer);

}  // namespace foreshard::cli
