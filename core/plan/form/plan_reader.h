// From the document that both outer forms of a plan parse into, to a Plan. Every reference is looked up and bounded.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/plan.h"
#include "core/result.h"

namespace foreshard::detail {

/// Deepest nesting of a plan's document is 5; more is never a plan.
inline constexpr int kMaxPlanDepth = 32;
inline constexpr std::size_t kMaxPlanBytes = std::size_t{256} * 1024 * 1024;

/// Objects may carry a member "@line": it is the place in errors, in place of the path inside the document.
Result<Plan> read_plan(const nlohmann::json& document, const std::string& file);

}  // namespace foreshard::detail
