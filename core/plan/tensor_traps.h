// What tensor parallelism costs without saying so, one input summed or gathered once for each layer that reads it, and
// what PyTorch refuses beside it. Pure functions.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/plan/units/units.h"
#include "core/result.h"

namespace foreshard {

/// Traps 48 and 49, where the rank's model walks into them.
std::vector<Trap> tensor_traps(const Model& model);

/// FSDP1 with original parameters that are DTensors: what PyTorch ends in an error.
Result<void> check_original_dtensors(const Model& model, const Job& job, const UnitTable& table);

}  // namespace foreshard
