// `foreshard-exec checkpoint show|export|import`: exec/checkpoint/checkpoint_export.h on the command line.
#pragma once

#include "cli/console/console.h"
#include "cli/console/flags.h"

namespace foreshard::cli {

ExitCode run_checkpoint(const CheckpointFlags& flags, const Console& console);

}  // namespace foreshard::cli
