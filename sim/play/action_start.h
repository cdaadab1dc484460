// What is on the device before an action's plan (core/plan/actions) begins: for init nothing, or the model where it was
// made there; for summon, save and load what training leaves between two steps.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "sim/device/device.h"
#include "sim/play/initialisation.h"

namespace foreshard {

/// True for the plans of build_action_plan.
bool is_action_plan(const Plan& plan);

/// The optimizer's state of this rank's parameters, which lies on the host where they do. False: out of memory.
bool hold_optimizer_state(Device& device, const Plan& plan, const Model& model, const Job& job);

/// Shards and module buffers; before summon and save the optimizer's state too (load makes its own where it is asked
/// for). Before init nothing. Nothing but that is ever allocated, so that the peak is the action's. False: out of
/// memory.
bool play_action_start(Device& device, const Plan& plan, const Model& model, const Job& job,
                       std::vector<ResidentBuffer>& buffers);

}  // namespace foreshard
