// Where a script's schedule parts from a plan's: units, gathers, reductions, element sizes, order. Pure functions.
#pragma once

#include <vector>

#include "core/plan.h"
#include "shadow/device_log.h"
#include "shadow/difference.h"

namespace foreshard::shadow {

/// The collectives of a plan's steady iteration, as the log would have them.
std::vector<LoggedCollective> planned_collectives(const Plan& plan);

/// A step of the script against the plan's steady one. Units that part alike are told together.
std::vector<Difference> schedule_differences(const std::vector<LoggedCollective>& script, const Plan& plan);

}  // namespace foreshard::shadow
