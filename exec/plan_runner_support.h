// What a plan must be for PlanRunner to run it; anything else is an Error that names the instruction.
#pragma once

#include <optional>

#include "core/plan.h"
#include "core/result.h"
#include "exec/plan_runner.h"

namespace foreshard::exec {

/// The first instruction (or setting) of the plan that is not run yet. Also checked: an iteration waits for its own
/// events only, so that the last one may be repeated.
std::optional<Error> unsupported_instruction(const Plan& plan);

/// A stream with collectives but without a communicator, or one of the wrong rank or size.
std::optional<Error> missing_communicator(const PlanRunnerSetup& setup);

/// Id of an iteration's first instruction: instructions are numbered over all iterations of a plan.
std::int32_t first_instruction(const Plan& plan, std::size_t iteration);

}  // namespace foreshard::exec
