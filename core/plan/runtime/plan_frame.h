// What every plan begins with, whichever runtime fills it: ranks, units, groups, factors, names of parameters.
#pragma once

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/plan/units/units.h"

namespace foreshard {

/// No segments, streams or iterations yet; traps and warnings are those of the units.
Plan frame_of(const Model& model, const Job& job, const UnitTable& table);

/// Equal but for the names of events, which are numbered from each iteration's own first one; the limiter's queue too.
/// Two such iterations in a row mean that all later ones are alike.
bool same_but_events(const PlanIteration& a, std::int32_t a_first_event, const PlanIteration& b,
                     std::int32_t b_first_event);

}  // namespace foreshard
