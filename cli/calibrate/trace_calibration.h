// `calibrate --from` with recordings of a job that runs elsewhere: a profile fitted to its steps.
#pragma once

#include <string>

#include "cli/console/console.h"
#include "cli/console/flags.h"
#include "core/job.h"

namespace foreshard::cli {

/// Whether a file is a recording (or a folder of them); else it is taken for an output of nccl-tests.
bool is_recording(const std::string& path);

/// Fits the profile of the job to the recordings of flags.from and writes it to flags.output. The job says what was
/// run: model, batch, sharding.
ExitCode calibrate_from_recordings(const CalibrateFlags& flags, const Job& job, const Console& console);

}  // namespace foreshard::cli
