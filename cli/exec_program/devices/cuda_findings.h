// What `foreshard doctor` can only learn by asking CUDA's libraries: foreshard-exec-cuda answers.
#pragma once

#include <vector>

#include "cli/session/machine.h"

namespace foreshard::cli {

/// Cards, their memory and drivers, NCCL, CUPTI; for each that does not work, what to do. Empty: not this program's.
std::vector<Finding> cuda_findings();

}  // namespace foreshard::cli
