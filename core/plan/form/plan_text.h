// A plan as text for people and golden tests: one line an instruction, grouped by phase and unit. Grammar:
// docs/formats/plan.md. Lossless: reading gives an equal Plan, and equal plans give equal bytes.
#pragma once

#include <string>
#include <string_view>

#include "core/plan.h"
#include "core/result.h"

namespace foreshard {

std::string plan_to_text(const Plan& plan);

/// `file` names the source in errors; their place is a line.
Result<Plan> plan_from_text(std::string_view text, const std::string& file);

}  // namespace foreshard
