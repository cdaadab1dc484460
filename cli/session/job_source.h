// The job that a verb was asked about: the file, what the environment and --set change, and warnings as notes.
#pragma once

#include "cli/console/console.h"
#include "cli/console/flags.h"
#include "core/job/job_file.h"
#include "core/result.h"

namespace foreshard::cli {

/// Overrides come from FORESHARD_SET and then --set.
Result<LoadedJob> load_job(const JobFlags& flags, const Console& console);

}  // namespace foreshard::cli
