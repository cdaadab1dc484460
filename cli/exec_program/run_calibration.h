// `foreshard-exec calibrate`: measures this machine for a job's model and writes a hardware profile.
#pragma once

#include "cli/console/console.h"
#include "cli/console/flags.h"

namespace foreshard::cli {

ExitCode run_calibration(const CalibrateFlags& flags, const Console& console);

}  // namespace foreshard::cli
