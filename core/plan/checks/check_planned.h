// V17, V18: what a schedule must hold at every instruction (runtime "planned"). Private to core/plan/checks.
#pragma once

#include "core/plan/checks/check_parts.h"

namespace foreshard::detail {

Verdict check_memory_at_instructions(const IndexedPlan& indexed);  // V17
Verdict check_no_deadlock(const IndexedPlan& indexed);             // V18

}  // namespace foreshard::detail
