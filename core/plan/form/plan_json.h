// A plan as versioned JSON (foreshard.plan/1, docs/formats/plan.md) and back. Equal plans give equal bytes.
//
// Written straight into one string, an instruction a line; read with bounded depth and size, so that garbled or
// truncated text is an Error with its place. Reading gives an equal Plan; order and counts, which follow from the rest,
// are not read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/plan.h"
#include "core/result.h"

namespace foreshard {

struct PlanJsonOptions {
  /// By unit: further members as JSON text ("\"params_layout\": [...]"), see core/plan/form/plan_layout.h; empty =
  /// none.
  std::vector<std::string> unit_members;
  bool warnings = true;
};

std::string plan_to_json(const Plan& plan, const PlanJsonOptions& options = {});

/// FNV-1a (64 bits, hex) of the plan's JSON without warnings: says whether two timelines stem from the same plan,
/// whoever settled its units and schedule and told of it.
std::string plan_digest(const Plan& plan);

/// `file` names the source in errors.
Result<Plan> plan_from_json(std::string_view text, const std::string& file);

}  // namespace foreshard
