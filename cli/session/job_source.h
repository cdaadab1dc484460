// The job that a verb was asked about: the file, what the environment and --set change, and warnings as notes.
#pragma once

#include "cli/console/console.h"
#include "cli/console/flags.h"
#include "core/job/job_file.h"
#include "core/result.h"

namespace foreshard::cli {

/// Overrides come from FORESHARD_SET and then --set.
Result<LoadedJob> load_job(const JobFlags& flags, const Console& console);

/// Prints why a job's schedule or plan cannot be made; that no schedule fits the budget is exit code 4.
ExitCode tell_refusal(const Error& error, const Console& console);

}  // namespace foreshard::cli
