// Where the forward of a step begins to train: what stands before it may be run once for several micro-batches (the
// log-probabilities of a rollout).
#pragma once

#include <cstdint>
#include <functional>

#include "core/plan/graph/module_graph.h"

namespace foreshard {

/// Steps of the root's call before its first call with gradients; `differentiates`: whether a parameter gets one.
std::int32_t steps_before_training(const ModuleGraph& graph, const std::function<bool(ParamId)>& differentiates);

}  // namespace foreshard
