// The programs beside this one that are linked to LibTorch: verbs that need it become one of them. foreshard-exec
// computes on the host and links no CUDA library; foreshard-exec-cuda computes on CUDA devices (docs/adr/0004).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/console/console.h"
#include "cli/session/sibling_program.h"
#include "core/result.h"

namespace foreshard::cli {

enum class Executor : std::uint8_t { Host, Cuda };

/// Where it is, or would be.
std::string executor_path(Executor executor);

/// Replaces this process by `foreshard-exec arguments...`; returns only if that cannot be done, with the error told.
ExitCode become_executor(const std::vector<std::string>& arguments, const Console& console,
                         Executor executor = Executor::Host);

/// Waits for it instead, and keeps what it prints. The error: it cannot be started.
Result<Captured> capture_executor_program(const std::vector<std::string>& arguments, Executor executor);

}  // namespace foreshard::cli
