// What stands on this machine that only foreshard-exec-cuda can tell: it asks CUDA's libraries, `foreshard` links none.
#pragma once

#include <string>
#include <vector>

#include "cli/console/json_text.h"
#include "cli/session/machine.h"

namespace foreshard::cli {

/// The array "found" of `doctor --json`, inside an object that is open.
void tell_findings(JsonText& out, const std::vector<Finding>& findings);

/// Starts `foreshard-exec-cuda doctor` and reads what it finds. A program that is not there, or does not start for want
/// of a library, is a finding itself. Never fails.
std::vector<Finding> ask_cuda_executor();

/// What that program has printed; exposed for tests.
std::vector<Finding> findings_in(const std::string& printed, int exit_code);

}  // namespace foreshard::cli
