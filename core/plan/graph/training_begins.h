// Where the forward of a step begins to train: what stands before it may be run once for several micro-batches (the
// log-probabilities of a rollout).
#pragma once

#include <cstdint>
#include <functional>

#include "core/job.h"
#include "core/plan/graph/module_graph.h"

namespace foreshard {

/// Steps of the root's call before its first call with gradients; `differentiates`: whether a parameter gets one.
std::int32_t steps_before_training(const ModuleGraph& graph, const std::function<bool(ParamId)>& differentiates);

/// The step that a forward of the root begins with. `rest`: behind what it finds made ("fwd_rest"), which is nothing of
/// a root that is a unit and called once: frozen layers before its first trained ones are no rollout.
std::int32_t first_step(const ModuleGraph& graph, const FsdpOptions& fsdp, bool rest);

}  // namespace foreshard
