// Verbs that are foreshard-exec's (cli/executor_program.h), started with the console's own flags.
#pragma once

#include <string>
#include <vector>

#include "cli/console.h"

namespace foreshard::cli {

/// Becomes `foreshard-exec arguments...` with --json, --quiet and --no-color as here. Returns only with an error told.
ExitCode run_in_executor(std::vector<std::string> arguments, const Console& console);

}  // namespace foreshard::cli
