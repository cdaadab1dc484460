#include "exec/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "core/result.h"

namespace foreshard::exec {

void Optimizer::step(std::span<const OptimizedShard> shards, double lr) {
  at::NoGradGuard no_grad;
  states_.resize(shards.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (!shards[i].gradient.defined()) continue;
    if (options_.name == OptimizerKind::AdamW) {
      adamw(shards[i], states_[i], lr);
    } else {
      sgd(shards[i], states_[i], lr);
    }
  }
}

void Optimizer::adamw(const OptimizedShard& shard, State& state, double lr) const {
  if (!state.first.defined()) {
    state.first = at::zeros_like(shard.shard);
    state.second = at::zeros_like(shard.shard);
  }
  ++state.steps;
  const double steps = static_cast<double>(state.steps);
  shard.shard.mul_(1.0 - lr * options_.weight_decay);
  state.first.lerp_(shard.gradient, 1.0 - options_.beta1);
  state.second.mul_(options_.beta2).addcmul_(shard.gradient, shard.gradient, 1.0 - options_.beta2);
  const double step_size = lr / (1.0 - std::pow(options_.beta1, steps));
  const double correction = std::sqrt(1.0 - std::pow(options_.beta2, steps));
  const at::Tensor denominator = state.second.sqrt().div_(correction).add_(options_.eps);
  shard.shard.addcdiv_(state.first, denominator, -step_size);
}

void Optimizer::sgd(const OptimizedShard& shard, State& state, double lr) const {
  at::Tensor gradient = shard.gradient;
  if (options_.weight_decay != 0.0) gradient = gradient.add(shard.shard, options_.weight_decay);
  if (options_.momentum != 0.0) {
    if (state.first.defined()) {
      state.first.mul_(options_.momentum).add_(gradient);
    } else {
      state.first = gradient.clone();  // the first gradient, undamped
    }
    gradient = state.first;
  }
  shard.shard.add_(gradient, -lr);
}

}  // namespace foreshard::exec
