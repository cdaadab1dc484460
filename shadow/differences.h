// Where a script's schedule parts from a plan's: units, gathers, reductions, element sizes, order. Pure functions.
#pragma once

#include <vector>

#include "core/plan.h"
#include "shadow/device_log.h"
#include "shadow/difference.h"

namespace foreshard::shadow {

/// The collectives of a plan's steady iteration, as the log would have them.
std::vector<LoggedCollective> planned_collectives(const Plan& plan);

/// A step of the script against the plan's steady one. Units that part alike are told together. `meets_inside`: the
/// program itself communicates over dimensions of a mesh, which the plan has in its segments: what lies outside of
/// units is not compared.
std::vector<Difference> schedule_differences(const std::vector<LoggedCollective>& script, const Plan& plan,
                                             bool meets_inside = false);

}  // namespace foreshard::shadow
