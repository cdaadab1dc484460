// A Failure in words: which rank and step, which instruction of which unit, and the cause.
#pragma once

#include <cstdint>
#include <string>

#include "core/plan.h"
#include "exec/backend/backend.h"

namespace foreshard::exec {

/// "reduce_scatter of unit model.layers.1 (instruction 57, stream S)"; nothing known of the instruction: "stream S".
std::string instruction_text(const Plan& plan, const Failure& failure);

/// "rank 0, step 12: reduce_scatter of unit ... failed: ..."
std::string failure_text(const Plan& plan, std::int64_t step, const Failure& failure);

}  // namespace foreshard::exec
