// `plan` for people: a summary in lines that begin with '#', then the plan's own text form
// (core/plan/form/plan_text.h).
#pragma once

#include <string>

#include "core/plan.h"

namespace foreshard::cli {

std::string plan_report(const Plan& plan);

/// The summary alone: units, order, counts, checks, traps.
std::string plan_summary(const Plan& plan);

}  // namespace foreshard::cli
