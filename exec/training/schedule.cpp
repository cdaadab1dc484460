#include "exec/training/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace foreshard::exec {

double learning_rate(const TrainOptions& train, std::int64_t step) {
  const ScheduleOptions& schedule = train.schedule;
  const double lr = train.optimizer.lr;
  if (step < schedule.warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup);
  if (schedule.name != "cosine") return lr;
  const double length = static_cast<double>(std::max<std::int64_t>(train.steps - schedule.warmup, 1));
  const double way = std::min(static_cast<double>(step - schedule.warmup) / length, 1.0);
  const double height = 0.5 * (1.0 + std::cos(std::numbers::pi * way));
  return lr * (schedule.min_ratio + (1.0 - schedule.min_ratio) * height);
}

}  // namespace foreshard::exec
