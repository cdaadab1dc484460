// Where a script's schedule parts from a plan's: units, gathers, reductions, element sizes, order. Pure functions.
#pragma once

#include <vector>

#include "core/plan.h"
#include "core/timeline.h"
#include "shadow/device_log.h"
#include "shadow/difference.h"

namespace foreshard::shadow {

/// The collectives of a plan's steady iteration, as the log would have them.
std::vector<LoggedCollective> planned_collectives(const Plan& plan);

/// Those that the program itself meets over dimensions of a mesh, which the plan has in its segments: of the last
/// iteration in the plan's simulated timeline.
std::vector<LoggedCollective> collectives_inside(const Plan& plan, const Timeline& timeline);

/// A step of the script against the plan's steady one. Units that part alike are told together. `inside`:
/// collectives_inside(), nullptr where there is no mesh; what lies outside of units is then compared by kind and bytes.
std::vector<Difference> schedule_differences(const std::vector<LoggedCollective>& script, const Plan& plan,
                                             const std::vector<LoggedCollective>* inside = nullptr);

}  // namespace foreshard::shadow
