#include "exec/step/elementwise.h"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "core/job/optimizer_facts.h"

namespace foreshard::exec {
namespace {

/// One shard or a list of them, of one type.
struct Shards {
  std::vector<at::Tensor> params, grads;
  std::vector<std::vector<at::Tensor>> states;  // [Optimizer::slots()][shard]
  std::vector<OptimizerMoments*> moments;
};

double steps_of(const OptimizerMoments& moments) { return static_cast<double>(moments.steps); }

/// With the step counted.
Shards counted(std::span<const OptimizedShard> shards) {
  Shards all;
  for (const OptimizedShard& shard : shards) {
    ++shard.moments->steps;
    all.params.push_back(shard.shard);
    all.grads.push_back(shard.gradient.to(shard.shard.scalar_type()));
    all.moments.push_back(shard.moments);
    all.states.resize(shard.moments->tensors.size());
    for (std::size_t s = 0; s < all.states.size(); ++s) all.states[s].push_back(shard.moments->tensors[s]);
  }
  return all;
}

// ---------------------------------------------------------------- numbers of a step

/// NAdam's momentum of a step, by torch.optim's momentum_decay.
double momentum_at(const OptimizerOptions& options, double step) {
  constexpr double kMomentumDecay = 4e-3;
  return options.beta1 * (1.0 - 0.5 * std::pow(0.96, step * kMomentumDecay));
}

/// The product of all momenta so far, a float on the host for PyTorch; made again where somebody has set the steps.
double momenta_of(const OptimizerOptions& options, OptimizerMoments& moments) {
  if (moments.momenta_steps > moments.steps) moments.momenta = 1.0F, moments.momenta_steps = 0;
  while (moments.momenta_steps < moments.steps)
    moments.momenta *= static_cast<float>(momentum_at(options, static_cast<double>(++moments.momenta_steps)));
  return static_cast<double>(moments.momenta);
}

struct NesterovRates {
  double gradient = 0, average = 0;  // what both are added with
};

NesterovRates nesterov_rates(const OptimizerOptions& options, OptimizerMoments& moments, double lr) {
  const double step = steps_of(moments), product = momenta_of(options, moments);
  const double next = momentum_at(options, step + 1.0);
  return {-lr * (1.0 - momentum_at(options, step)) / (1.0 - product), -lr * next / (1.0 - product * next)};
}

/// What corrects RAdam's variance; 0 in the first steps, which take no adaptive rate.
double rectification(const OptimizerOptions& options, const OptimizerMoments& moments) {
  const double longest = averaged_length(options.beta2, 0), length = averaged_length(options.beta2, moments.steps);
  if (!(length > 5.0)) return 0.0;
  return std::pow((length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length), 0.5);
}

double correction(double beta, const OptimizerMoments& moments) { return 1.0 - std::pow(beta, steps_of(moments)); }

// ---------------------------------------------------------------- by a loop

void adagrad_alone(const OptimizerOptions& options, const Shards& one, double lr) {
  const at::Tensor &gradient = one.grads[0], &sum = one.states[0][0];
  sum.addcmul_(gradient, gradient, 1);
  one.params[0].addcdiv_(gradient, sum.sqrt().add_(options.eps), -lr);
}

void rmsprop_alone(const OptimizerOptions& options, const Shards& one, double lr) {
  const at::Tensor &gradient = one.grads[0], &square = one.states[0][0], &param = one.params[0];
  square.mul_(options.alpha).addcmul_(gradient, gradient, 1.0 - options.alpha);
  at::Tensor root;
  if (options.centered) {
    const at::Tensor& average = one.states.back()[0];
    average.lerp_(gradient, 1.0 - options.alpha);
    root = square.addcmul(average, average, -1).sqrt_();
  } else {
    root = square.sqrt();
  }
  root.add_(options.eps);
  if (options.momentum > 0) {
    const at::Tensor& buffer = one.states[1][0];
    buffer.mul_(options.momentum).addcdiv_(gradient, root);
    param.add_(buffer, -lr);
  } else {
    param.addcdiv_(gradient, root, -lr);
  }
}

void nadam_alone(const OptimizerOptions& options, const Shards& one, double lr) {
  const at::Tensor &gradient = one.grads[0], &first = one.states[0][0], &second = one.states[1][0];
  first.lerp_(gradient, 1.0 - options.beta1);
  second.mul_(options.beta2).addcmul_(gradient, gradient, 1.0 - options.beta2);
  const at::Tensor root = second.div(correction(options.beta2, *one.moments[0])).sqrt_().add_(options.eps);
  const NesterovRates rates = nesterov_rates(options, *one.moments[0], lr);
  one.params[0].addcdiv_(gradient, root, rates.gradient);
  one.params[0].addcdiv_(first, root, rates.average);
}

void radam_alone(const OptimizerOptions& options, const Shards& one, double lr) {
  const at::Tensor &gradient = one.grads[0], &first = one.states[0][0], &second = one.states[1][0];
  first.lerp_(gradient, 1.0 - options.beta1);
  second.mul_(options.beta2).addcmul_(gradient, gradient, 1.0 - options.beta2);
  const at::Tensor update = first.div(correction(options.beta1, *one.moments[0])).mul_(lr);
  if (const double rectified = rectification(options, *one.moments[0]); rectified > 0) {
    const double root = std::pow(correction(options.beta2, *one.moments[0]), 0.5);
    update.mul_(second.sqrt().add_(options.eps).reciprocal_().mul_(root)).mul_(rectified);
  }
  one.params[0].add_(update, -1.0);
}

void adamax_alone(const OptimizerOptions& options, const Shards& one, double lr) {
  const at::Tensor &gradient = one.grads[0], &first = one.states[0][0];
  at::Tensor largest = one.states[1][0];
  first.lerp_(gradient, 1.0 - options.beta1);
  largest.mul_(options.beta2);
  at::maximum_out(largest, largest, gradient.abs().add_(options.eps));
  one.params[0].addcdiv_(first, largest, -(lr / correction(options.beta1, *one.moments[0])));
}

// ---------------------------------------------------------------- as foreach

/// One number for each shard.
template <class Each>
std::vector<at::Scalar> numbers(const Shards& all, const Each& each) {
  std::vector<at::Scalar> made;
  for (OptimizerMoments* moments : all.moments) made.emplace_back(each(*moments));
  return made;
}

/// `own`: the gradients are a copy already.
void adagrad_together(const OptimizerOptions& options, const Shards& all, double lr, bool own) {
  at::_foreach_addcmul_(all.states[0], all.grads, all.grads, 1);
  const std::vector<at::Tensor> roots = at::_foreach_sqrt(all.states[0]);
  at::_foreach_add_(roots, options.eps);
  const std::vector<at::Scalar> rates = numbers(all, [lr](const OptimizerMoments&) { return -lr; });
  if (own) at::_foreach_mul_(all.grads, rates);
  const std::vector<at::Tensor> numerators = own ? all.grads : at::_foreach_mul(all.grads, rates);
  at::_foreach_addcdiv_(all.params, numerators, roots);
}

void rmsprop_together(const OptimizerOptions& options, const Shards& all, double lr) {
  at::_foreach_mul_(all.states[0], options.alpha);
  at::_foreach_addcmul_(all.states[0], all.grads, all.grads, 1.0 - options.alpha);
  std::vector<at::Tensor> roots;
  if (options.centered) {
    const std::vector<at::Tensor>& averages = all.states.back();
    at::_foreach_lerp_(averages, all.grads, 1.0 - options.alpha);
    roots = at::_foreach_addcmul(all.states[0], averages, averages, -1);
    at::_foreach_sqrt_(roots);
  } else {
    roots = at::_foreach_sqrt(all.states[0]);
  }
  at::_foreach_add_(roots, options.eps);
  if (options.momentum > 0) {
    at::_foreach_mul_(all.states[1], options.momentum);
    at::_foreach_addcdiv_(all.states[1], all.grads, roots);
    at::_foreach_add_(all.params, all.states[1], -lr);
  } else {
    at::_foreach_addcdiv_(all.params, all.grads, roots, -lr);
  }
}

void nadam_together(const OptimizerOptions& options, const Shards& all, double lr) {
  at::_foreach_lerp_(all.states[0], all.grads, 1.0 - options.beta1);
  at::_foreach_mul_(all.states[1], options.beta2);
  at::_foreach_addcmul_(all.states[1], all.grads, all.grads, 1.0 - options.beta2);
  const std::vector<at::Tensor> roots = at::_foreach_sqrt(all.states[1]);
  at::_foreach_div_(roots, numbers(all, [&](const OptimizerMoments& moments) {
                      return std::pow(correction(options.beta2, moments), 0.5);
                    }));
  at::_foreach_add_(roots, options.eps);
  at::_foreach_addcdiv_(all.params, all.grads, roots, numbers(all, [&](OptimizerMoments& moments) {
                          return nesterov_rates(options, moments, lr).gradient;
                        }));
  at::_foreach_addcdiv_(all.params, all.states[0], roots, numbers(all, [&](OptimizerMoments& moments) {
                          return nesterov_rates(options, moments, lr).average;
                        }));
}

void radam_together(const OptimizerOptions& options, Shards& all, double lr) {
  at::_foreach_lerp_(all.states[0], all.grads, 1.0 - options.beta1);
  at::_foreach_mul_(all.states[1], options.beta2);
  at::_foreach_addcmul_(all.states[1], all.grads, all.grads, 1.0 - options.beta2);
  all.grads.clear();
  const std::vector<at::Tensor> factors = at::_foreach_sqrt(all.states[1]);
  at::_foreach_add_(factors, options.eps);
  // Where there is no adaptive rate, by -0: the reciprocal is -0.
  at::_foreach_div_(factors, numbers(all, [&](const OptimizerMoments& moments) {
                      return std::pow(correction(options.beta2, moments), 0.5) *
                             (lr * rectification(options, moments) / correction(options.beta1, moments)) * -1.0;
                    }));
  at::_foreach_reciprocal_(factors);
  at::_foreach_add_(factors, numbers(all, [&](const OptimizerMoments& moments) {
                      const double plain = rectification(options, moments) > 0 ? 0.0 : 1.0;
                      return lr * plain / correction(options.beta1, moments) * -1.0;
                    }));
  at::_foreach_addcmul_(all.params, all.states[0], factors);
}

void adamax_together(const OptimizerOptions& options, const Shards& all, double lr, bool own) {
  at::_foreach_lerp_(all.states[0], all.grads, 1.0 - options.beta1);
  at::_foreach_mul_(all.states[1], options.beta2);
  if (own) at::_foreach_abs_(all.grads);
  const std::vector<at::Tensor> norms = own ? all.grads : at::_foreach_abs(all.grads);
  at::_foreach_add_(norms, options.eps);
  at::_foreach_maximum_(all.states[1], norms);
  at::_foreach_addcdiv_(all.params, all.states[0], all.states[1], numbers(all, [&](const OptimizerMoments& moments) {
                          return lr / correction(options.beta1, moments) * -1.0;
                        }));
}

}  // namespace

void step_alone(const OptimizerOptions& options, const OptimizedShard& shard, double lr) {
  Shards one = counted({&shard, 1});
  if (decays_params(options)) {
    one.params[0].mul_(1.0 - lr * options.weight_decay);
  } else if (decays_gradients(options)) {
    one.grads[0] = one.grads[0].add(one.params[0], options.weight_decay);
  }
  switch (options.name) {
    case OptimizerKind::Adagrad: return adagrad_alone(options, one, lr);
    case OptimizerKind::RMSprop: return rmsprop_alone(options, one, lr);
    case OptimizerKind::NAdam: return nadam_alone(options, one, lr);
    case OptimizerKind::RAdam: return radam_alone(options, one, lr);
    default: return adamax_alone(options, one, lr);
  }
}

void step_together(const OptimizerOptions& options, std::span<const OptimizedShard> shards, double lr) {
  if (shards.empty()) return;
  Shards all = counted(shards);
  const bool own = decays_gradients(options);
  if (own) {
    all.grads = at::_foreach_add(all.grads, all.params, options.weight_decay);
  } else if (decays_params(options)) {
    at::_foreach_mul_(all.params, 1.0 - lr * options.weight_decay);
  }
  switch (options.name) {
    case OptimizerKind::Adagrad: return adagrad_together(options, all, lr, own);
    case OptimizerKind::RMSprop: return rmsprop_together(options, all, lr);
    case OptimizerKind::NAdam: return nadam_together(options, all, lr);
    case OptimizerKind::RAdam: return radam_together(options, all, lr);
    default: return adamax_together(options, all, lr, own);
  }
}

}  // namespace foreshard::exec
