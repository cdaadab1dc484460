// `calibrate --from`: a job's profile with collectives as nccl-tests measured them.
#pragma once

#include "cli/console/console.h"
#include "cli/console/flags.h"
#include "core/job.h"

namespace foreshard::cli {

/// Reads every file of flags.from, writes the profile of the job with their curves to flags.output.
ExitCode calibrate_links(const CalibrateFlags& flags, const Job& job, const Console& console);

}  // namespace foreshard::cli
