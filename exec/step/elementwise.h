// Adagrad, RMSprop, NAdam, RAdam and Adamax as torch.optim steps them: the same operators in the same order, by a loop
// (_single_tensor_*) and as foreach (_multi_tensor_*), which round differently.
#pragma once

#include <span>

#include "core/job.h"
#include "exec/step/optimizer.h"

namespace foreshard::exec {

/// By a loop. REQUIRES a gradient and moments in the order of Optimizer::slots().
void step_alone(const OptimizerOptions& options, const OptimizedShard& shard, double lr);
/// As foreach; shards of one type. Where a device has no kernels over lists each call is a loop.
void step_together(const OptimizerOptions& options, std::span<const OptimizedShard> shards, double lr);

}  // namespace foreshard::exec
