// `plan --action` and `simulate --action` for people. The plan's: what each action holds at most and at its end, its
// collectives, then the plan's own text form. Amounts are logical sizes of what the action allocates itself, beside
// what was there before it.
#pragma once

#include <string>

#include "core/job.h"
#include "core/plan.h"
#include "core/result.h"
#include "sim/search/prepare_job.h"
#include "sim/simulate.h"

namespace foreshard::cli {

/// "54 instructions, 5 all_gather".
std::string counts_text(const PlanIteration& iteration);

std::string action_report(const Plan& plan);

/// Profile, model and the plan of a list of actions ("init:sync,save:full"), ready to simulate. The model has no
/// tokens: an action has no throughput. `on_host`: the model's program is the one that ranks of CPUs run, whatever card
/// is predicted (a mesh may cut one program and not the other).
Result<Prepared> prepare_actions(const Job& job, const std::string& actions, bool on_host = false);

/// Per action: what the allocator holds at the peak and at the end beside what was there before, its time, its
/// collectives; then what holds the memory at the highest point.
std::string action_prediction_report(const Plan& plan, const Prediction& prediction, Bytes card);

}  // namespace foreshard::cli
