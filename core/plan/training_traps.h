// Traps of what scripts put around a model: operator-level checkpointing, adapters. Unlike those of units and runtimes
// they follow from the program, so they are named with what they cost.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/plan/units/units.h"
#include "core/result.h"

namespace foreshard {

/// `checkpointed` by ModuleId, as checkpointed_modules gives it. In order of their numbers.
std::vector<Trap> training_traps(const Model& model, const Job& job, const UnitTable& table,
                                 const std::vector<CheckpointKind>& checkpointed);

/// What operator-level checkpointing cannot keep, or not with what it is asked together with: refused.
Result<void> check_saved(const Job& job);

}  // namespace foreshard
