// The invariants V1..V15 of the FSDP semantics page, section 20, on a plan, and V16, whom its collectives meet (R4).
//
// Those that a plan alone decides are decided here, with a text that names the instructions; the others are
// not_applicable with the name of who decides them (sim or run). A failed check in a plan that we built is a bug of
// ours.
#pragma once

#include <vector>

#include "core/plan.h"

namespace foreshard {

/// One entry for each of V1..V16, in that order.
std::vector<PlanCheck> run_checks(const Plan& plan);

}  // namespace foreshard
