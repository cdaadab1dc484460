// Traps of what the training script puts around a model: its optimizer, its loss, its masks. They are named with what
// they cost. Numbers 33 to 41, 50 to 52.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/plan/units/units.h"
#include "core/result.h"

namespace foreshard {

/// Optimizers that cannot step what the runtime gives them: what PyTorch raises, as a refusal.
Result<void> check_optimizer(const Model& model, const Job& job, const UnitTable& table);

/// Of a plan that is otherwise done, in order of their numbers.
std::vector<Trap> script_traps(const Model& model, const Job& job, const Plan& plan);

}  // namespace foreshard
