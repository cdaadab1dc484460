// The program behind main(): a command line in, one verb's answer out. The Python package runs the same.
#pragma once

#include <string>
#include <vector>

#include "cli/console/console.h"

namespace foreshard::cli {

/// `arguments` without the program's name. `heard` takes what would have gone to stdout and stderr; nullptr: these do.
/// Verbs that start other programs (run, view, ...) let those write to the process's own. Throws std::bad_alloc alone.
ExitCode run_program(const std::vector<std::string>& arguments, Heard* heard = nullptr);

}  // namespace foreshard::cli
