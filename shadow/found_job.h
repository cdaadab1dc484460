// The FSDP set-up of a watched script as a job, and what no key of a job can say of it. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/job.h"
#include "shadow/difference.h"
#include "shadow/watched_run.h"

namespace foreshard::shadow {

/// What the verb knows beside the report.
struct ShadowMachine {
  std::string profile;
  std::int64_t ranks_per_node = 8;
};

struct FoundJob {
  Job job;
  std::vector<Difference> beyond;  // what the job cannot express; `plan` says what stands there instead
};

/// REQUIRES run.setting; of one of run.turns if `turn` is above 0. `model` is the job's model.source; empty: none was
/// written down.
FoundJob found_job(const WatchedRun& run, const ShadowMachine& machine, const std::string& model, std::size_t turn = 0);

/// The keys whose values are not the defaults, one a line: a job file.
std::string short_job_text(const Job& job);

/// Keys in which the job that the script was meant to be parts from the one that it is.
std::vector<Difference> setting_differences(const Job& script, const Job& meant);

}  // namespace foreshard::shadow
