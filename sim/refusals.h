// What is refused before anything is simulated: optimizers that PyTorch does not run on the device, and parts that do
// not belong together.
#pragma once

#include <optional>

#include "core/job.h"
#include "core/lowering/lowering.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/result.h"
#include "sim/machine/profile.h"

namespace foreshard {

/// What the simulation does not check itself must hold, or indices would lead nowhere. `memory`: the allocator's,
/// bytes.
std::optional<Error> refused_simulation(const Plan& plan, const Model& model, const LoweredProgram& lowered,
                                        const Job& job, const HardwareProfile& profile, Bytes memory);

}  // namespace foreshard
