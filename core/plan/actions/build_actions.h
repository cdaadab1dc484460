// Plans of what a run does beside training: wrapping, unshard_params, saving and loading state dicts. A plan has one
// iteration for each action asked for (summon with gradients has a training iteration before it), in the order asked.
//
// The instructions are those of core/plan.h with phases init, summon, save, load. Buffers that outlive an action
// (shards, optimizer state, the tensors of a state dict) stay allocated; those that an action finds (shards, when only
// `save` is planned) are not allocated in the plan.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/plan/actions/action_request.h"
#include "core/plan/units/units.h"
#include "core/result.h"

namespace foreshard {

/// Errors: arguments that PyTorch refuses together (U2, I5, K1), an action that the runtime does not have.
Result<Plan> build_action_plan(const Model& model, const Job& job, const UnitTable& table,
                               const std::vector<ActionRequest>& actions);

/// Bytes that one iteration holds of what it allocates itself: the peak and what is left, by place. Logical sizes: no
/// allocator rounds them (`simulate` does that).
struct ActionMemory {
  Bytes device_peak = 0, device_end = 0;
  Bytes host_peak = 0, host_end = 0;
  bool operator==(const ActionMemory&) const = default;
};
ActionMemory action_memory(const PlanIteration& iteration);

}  // namespace foreshard
