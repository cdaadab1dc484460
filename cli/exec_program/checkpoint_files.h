// `foreshard-exec checkpoint show|export|import`: exec/checkpoint_export.h on the command line.
#pragma once

#include "cli/console.h"
#include "cli/flags.h"

namespace foreshard::cli {

ExitCode run_checkpoint(const CheckpointFlags& flags, const Console& console);

}  // namespace foreshard::cli
