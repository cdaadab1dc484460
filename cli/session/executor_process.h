// Verbs that are foreshard-exec's (cli/session/executor_program.h), started with the console's own flags.
#pragma once

#include <string>
#include <vector>

#include "cli/console/console.h"
#include "cli/session/executor_program.h"

namespace foreshard::cli {

/// Becomes the executor with these arguments, and --json, --quiet and --no-color as here. Returns only with an error
/// told.
ExitCode run_in_executor(std::vector<std::string> arguments, const Console& console,
                         Executor executor = Executor::Host);

/// Waits for it instead, and keeps what it prints. The error: it cannot be started.
Result<Captured> capture_executor(std::vector<std::string> arguments, const Console& console,
                                  Executor executor = Executor::Host);

}  // namespace foreshard::cli
