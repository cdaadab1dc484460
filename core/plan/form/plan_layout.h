// The layouts of a plan's units as JSON members, for `foreshard plan --layout`: params_layout with every rank's shard
// for fsdp1 (H3..H6), fsdp2_layout with buffers and views for fsdp2 (F2-1, F2-2, F2-18).
#pragma once

#include <string>
#include <vector>

#include "core/model/model.h"
#include "core/plan.h"
#include "core/plan/units/units.h"

namespace foreshard {

/// By unit; what PlanJsonOptions::unit_members takes. REQUIRES `plan` and `table` built from `model` and one job.
std::vector<std::string> layout_members(const Plan& plan, const Model& model, const UnitTable& table);

}  // namespace foreshard
