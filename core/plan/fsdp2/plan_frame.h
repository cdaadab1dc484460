// What fsdp2 and plain data parallelism share around their walk: the plan's frame and the loop over iterations.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/plan/build_plan.h"

namespace foreshard::fsdp2 {

/// Units, groups, names and segments of the request; no iterations yet.
Plan frame_with_segments(const PlanRequest& request);

struct Run;

/// What a runtime that stands on this walk changes in the prepared units before the first iteration.
using Decisions = void (*)(Run& run);

/// Traps, iterations and what else the script makes of a frame whose units are decided (fsdp2 and planned).
Result<Plan> run_script(const PlanRequest& request, Plan frame, Decisions decide = nullptr);

/// Runs one iteration of the script into the value given (its index is set) and appends its first event's number to the
/// list that run_iterations reads.
using IterationRunner = std::function<Result<void>(const IterationScript& script, PlanIteration& iteration)>;

/// Iterations until the script ends or, if it repeats, until two in a row are equal but for event names.
Result<void> run_iterations(const PlanRequest& request, Plan& plan, const std::vector<std::int32_t>& first_event,
                            const IterationRunner& run);

}  // namespace foreshard::fsdp2
