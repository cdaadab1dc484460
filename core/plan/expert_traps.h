// What silently goes wrong with experts on ranks of their own. Internal to core/plan.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"

namespace foreshard {

/// Traps 46 (gradients divided by too few ranks; refused) and 47 (experts padded to whole ones by FSDP).
std::vector<Trap> expert_traps(const Model& model, const Job& job, const Plan& plan);

}  // namespace foreshard
