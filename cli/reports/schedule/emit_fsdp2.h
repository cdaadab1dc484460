// A schedule as a Python module for PyTorch's own FSDP2: what its public knobs can say, and what they cannot.
#pragma once

#include <string>

#include "sim/schedule/schedule_search.h"

namespace foreshard::cli {

/// `expressed_ns`: the simulated step of what the module sets. The module needs torch alone.
std::string fsdp2_module(const FoundSchedule& found, const std::string& model, double expressed_ns);

/// The job with the decisions that the module can express.
Job expressed_by_fsdp2(const FoundSchedule& found);

}  // namespace foreshard::cli
