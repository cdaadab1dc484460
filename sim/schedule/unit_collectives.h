// What units gather and reduce by in a step, and how long that takes alone on the links.
//
// Pure functions of a frame; nanoseconds.
#pragma once

#include "core/plan.h"
#include "sim/machine/profile.h"
#include "sim/network/collectives.h"
#include "sim/schedule/candidate.h"

namespace foreshard {

/// Of the last iteration, the first one of a unit; AllReduce: of replicas. Null: it has none.
const Instruction* unit_collective(const Plan& plan, CollectiveKind kind, int unit);

/// 0: it has none.
double unit_collective_ns(const UnitFrame& frame, const HardwareProfile& profile, CollectiveKind kind, int unit);

}  // namespace foreshard
