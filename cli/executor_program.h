// foreshard-exec, the program beside this one that is linked to LibTorch: verbs that need it become it.
#pragma once

#include <string>
#include <vector>

#include "cli/console.h"

namespace foreshard::cli {

/// Replaces this process by `foreshard-exec arguments...`; returns only if that cannot be done, with the error told.
ExitCode become_executor(const std::vector<std::string>& arguments, const Console& console);

}  // namespace foreshard::cli
