// `foreshard-exec run`: one rank of a training run, or the launcher of all ranks of this machine (--nproc).
#pragma once

#include <string>
#include <vector>

#include "cli/console/console.h"
#include "cli/console/flags.h"

namespace foreshard::cli {

/// Exit codes: 0 all steps done, 1 the run failed, 2 and 3 as everywhere, 5 stopped by a signal after a whole step.
/// `command` is what starts this program again, for the ranks of --nproc.
ExitCode run_training(const RunFlags& flags, const Console& console, const std::vector<std::string>& command);

}  // namespace foreshard::cli
