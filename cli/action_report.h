// `plan --action` for people: what each action holds at most and at its end, its collectives, then the plan's own text
// form. Amounts are logical sizes of what the action allocates itself, beside what was there before it.
#pragma once

#include <string>

#include "core/plan.h"

namespace foreshard::cli {

std::string action_report(const Plan& plan);

}  // namespace foreshard::cli
