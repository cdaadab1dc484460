// What tensor parallelism costs without saying so: one input that is summed or gathered once for each layer that reads
// it. Pure functions.
#pragma once

#include <vector>

#include "core/model/model.h"
#include "core/plan.h"

namespace foreshard {

/// Traps 48 and 49, where the rank's model walks into them.
std::vector<Trap> tensor_traps(const Model& model);

}  // namespace foreshard
