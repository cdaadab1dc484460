// The learning rate of every step, from train.schedule.
#pragma once

#include <cstdint>

#include "core/job.h"

namespace foreshard::exec {

/// `step` counts from 0. For `warmup` steps the rate grows evenly to optimizer.lr (which the last of them has); then it
/// stays ("constant") or falls along half a cosine towards min_ratio x lr, which step `train.steps` would have
/// ("cosine").
double learning_rate(const TrainOptions& train, std::int64_t step);

}  // namespace foreshard::exec
