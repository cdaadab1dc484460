#include "exec/step/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <optional>

#include "core/job/optimizer_facts.h"
#include "exec/step/adafactor.h"
#include "exec/step/elementwise.h"

namespace foreshard::exec {
namespace {

/// Equal addresses in equal order give the same kernels.
std::uint64_t key_of(std::initializer_list<std::span<const at::Tensor>> lists, const std::optional<at::Tensor>& last) {
  std::uint64_t key = 14695981039346656037ULL;  // FNV-1a
  const auto add = [&key](const at::Tensor& tensor) {
    key = (key ^ reinterpret_cast<std::uintptr_t>(tensor.data_ptr())) * 1099511628211ULL;
  };
  for (const auto list : lists) {
    for (const at::Tensor& tensor : list) add(tensor);
  }
  if (last) add(*last);
  return key;
}

}  // namespace

std::vector<std::string_view> Optimizer::slots(bool matrix) const {
  if (matrix) return {"momentum_buffer"};
  if (options_.name == OptimizerKind::Muon) return {"exp_avg", "exp_avg_sq"};  // the rest is AdamW's
  if (options_.name == OptimizerKind::Adafactor) return {is_transformers(options_) ? "exp_avg_sq" : "variance"};
  return optimizer_facts(options_).states;
}

std::vector<Shape> Optimizer::moment_shapes(c10::IntArrayRef shard, bool matrix) const {
  if (!matrix && options_.name == OptimizerKind::Adafactor) return adafactor_moments(shard);
  return std::vector<Shape>(slots(matrix).size(), shard.vec());
}

void Optimizer::step(std::span<const OptimizedShard> shards, double lr, const StepWish& how) const {
  at::NoGradGuard no_grad;
  if (options_.name == OptimizerKind::Adafactor) {
    for (const OptimizedShard& shard : shards) adafactor(shard, lr);
    return;
  }
  if (is_other_elementwise(options_.name)) return elementwise(shards, lr, how);
  if (options_.impl == OptimizerImpl::Fused) return fused(shards, lr, how);
  if (options_.impl == OptimizerImpl::Foreach && how.lists) return foreach (shards, lr);
  for (const OptimizedShard& shard : shards) {
    if (!shard.gradient.defined()) continue;
    if (is_adamw()) {
      adamw(shard, lr);
    } else {
      sgd(shard, lr);
    }
  }
}

void Optimizer::adamw(const OptimizedShard& shard, double lr) const {
  const double steps = static_cast<double>(++shard.moments->steps);
  const at::Tensor gradient = shard.gradient.to(shard.shard.scalar_type());
  at::Tensor& first = shard.moments->tensors[0];
  at::Tensor& second = shard.moments->tensors[1];
  shard.shard.mul_(1.0 - lr * options_.weight_decay);
  first.lerp_(gradient, 1.0 - options_.beta1);
  second.mul_(options_.beta2).addcmul_(gradient, gradient, 1.0 - options_.beta2);
  const double step_size = lr / (1.0 - std::pow(options_.beta1, steps));
  const double correction = std::sqrt(1.0 - std::pow(options_.beta2, steps));
  const at::Tensor denominator = second.sqrt().div_(correction).add_(options_.eps);
  shard.shard.addcdiv_(first, denominator, -step_size);
}

/// What has no elements here has no gradient for PyTorch either.
void Optimizer::adafactor(const OptimizedShard& shard, double lr) const {
  if (!shard.gradient.defined() || shard.shard.numel() == 0) return;
  const at::Tensor gradient = shard.gradient.to(shard.shard.scalar_type());
  OptimizerMoments& moments = *shard.moments;
  ++moments.steps;
  if (!is_transformers(options_))
    return step_torch_adafactor(shard.shard, gradient, moments.tensors, moments.steps, options_, lr);
  step_transformers_adafactor(shard.shard, gradient, moments.tensors.front(), moments.steps, options_, lr);
}

/// Without kernels over lists foreach takes one shard after the other: its operators are the same.
void Optimizer::elementwise(std::span<const OptimizedShard> shards, double lr, const StepWish& how) const {
  std::map<at::ScalarType, std::vector<OptimizedShard>> by_type;
  for (const OptimizedShard& shard : shards) {
    if (!shard.gradient.defined()) continue;
    if (shard.shard.numel() == 0) {
      ++shard.moments->steps;
    } else if (options_.impl == OptimizerImpl::ForLoop) {
      step_alone(options_, shard, lr);
    } else if (options_.impl == OptimizerImpl::Foreach && !how.lists) {
      step_together(options_, {&shard, 1}, lr);
    } else {
      by_type[shard.shard.scalar_type()].push_back(shard);
    }
  }
  for (const auto& [type, of_type] : by_type) {
    if (options_.impl == OptimizerImpl::Fused)
      fused_adagrad(of_type, lr, options_);
    else
      step_together(options_, of_type, lr);
  }
}

void Optimizer::fused_adagrad(std::span<const OptimizedShard> shards, double lr, const OptimizerOptions& options) {
  std::vector<at::Tensor> params, grads, sums, steps;
  for (const OptimizedShard& shard : shards) {
    params.push_back(shard.shard);
    grads.push_back(shard.gradient.to(shard.shard.scalar_type()));
    sums.push_back(shard.moments->tensors[0]);
    steps.push_back(counted(*shard.moments, shard.shard.device()));
    shard.moments->counted_steps = ++shard.moments->steps;
  }
  at::_foreach_add_(steps, 1);
  at::_fused_adagrad_(params, grads, sums, steps, lr, /*lr_decay=*/0.0, options.weight_decay, options.eps,
                      /*maximize=*/false);
}

void Optimizer::sgd(const OptimizedShard& shard, double lr) const {
  at::Tensor gradient = shard.gradient.to(shard.shard.scalar_type());
  if (options_.weight_decay != 0.0) gradient = gradient.add(shard.shard, options_.weight_decay);
  if (options_.momentum != 0.0) {
    at::Tensor& momentum = shard.moments->tensors[0];
    if (shard.moments->steps > 0) {
      momentum.mul_(options_.momentum).add_(gradient);
    } else {
      momentum.copy_(gradient);  // the first gradient, undamped
    }
    gradient = momentum;
  }
  ++shard.moments->steps;
  shard.shard.add_(gradient, -lr);
}

namespace {

/// What lists of one type hold, in the shards' order.
struct ShardLists {
  std::vector<at::Tensor> params, grads, first, second;
  std::vector<std::int64_t*> steps;
};

std::map<at::ScalarType, ShardLists> lists_of(std::span<const OptimizedShard> shards) {
  std::map<at::ScalarType, ShardLists> by_type;
  for (const OptimizedShard& shard : shards) {
    if (!shard.gradient.defined() || shard.shard.numel() == 0) continue;
    ShardLists& lists = by_type[shard.shard.scalar_type()];
    lists.params.push_back(shard.shard);
    lists.grads.push_back(shard.gradient.to(shard.shard.scalar_type()));
    const std::vector<at::Tensor>& moments = shard.moments->tensors;
    if (!moments.empty()) lists.first.push_back(moments[0]);
    if (moments.size() > 1) lists.second.push_back(moments[1]);
    lists.steps.push_back(&shard.moments->steps);
  }
  return by_type;
}

// _multi_tensor_adam: all roots live at once.
void adamw_together(ShardLists& lists, const OptimizerOptions& options, double lr) {
  std::vector<at::Scalar> step_sizes, corrections;
  for (std::int64_t* steps : lists.steps) {
    const auto count = static_cast<double>(++*steps);
    step_sizes.emplace_back(-lr / (1.0 - std::pow(options.beta1, count)));
    corrections.emplace_back(std::sqrt(1.0 - std::pow(options.beta2, count)));
  }
  if (options.weight_decay != 0.0) at::_foreach_mul_(lists.params, 1.0 - lr * options.weight_decay);
  at::_foreach_lerp_(lists.first, lists.grads, 1.0 - options.beta1);
  at::_foreach_mul_(lists.second, options.beta2);
  at::_foreach_addcmul_(lists.second, lists.grads, lists.grads, 1.0 - options.beta2);
  lists.grads.clear();
  const std::vector<at::Tensor> roots = at::_foreach_sqrt(lists.second);
  at::_foreach_div_(roots, corrections);
  at::_foreach_add_(roots, options.eps);
  at::_foreach_addcdiv_(lists.params, lists.first, roots, step_sizes);
}

// _multi_tensor_sgd.
void sgd_together(ShardLists& lists, const OptimizerOptions& options, double lr) {
  if (options.weight_decay != 0.0) lists.grads = at::_foreach_add(lists.grads, lists.params, options.weight_decay);
  if (options.momentum != 0.0) {
    const bool first =
        std::any_of(lists.steps.begin(), lists.steps.end(), [](const auto* steps) { return *steps == 0; });
    if (!first) {
      at::_foreach_mul_(lists.first, options.momentum);
      at::_foreach_add_(lists.first, lists.grads);
    }
    for (std::size_t i = 0; first && i < lists.grads.size(); ++i) {
      if (*lists.steps[i] == 0) {
        lists.first[i].copy_(lists.grads[i]);  // the first gradient, undamped
      } else {
        lists.first[i].mul_(options.momentum).add_(lists.grads[i]);
      }
    }
    lists.grads = lists.first;
  }
  for (std::int64_t* steps : lists.steps) ++*steps;
  at::_foreach_add_(lists.params, lists.grads, -lr);
}

}  // namespace

void Optimizer::foreach (std::span<const OptimizedShard> shards, double lr) const {
  for (auto& [type, lists] : lists_of(shards)) {
    if (is_adamw()) {
      adamw_together(lists, options_, lr);
    } else {
      sgd_together(lists, options_, lr);
    }
  }
}

/// The steps so far as a scalar that the device keeps: written only where somebody has set another count.
at::Tensor Optimizer::counted(OptimizerMoments& moments, c10::Device device) {
  const auto steps = static_cast<double>(moments.steps);
  if (!moments.counted.defined()) {
    moments.counted = at::full({}, steps, at::TensorOptions(device).dtype(at::kFloat));
  } else if (moments.counted_steps != moments.steps) {
    moments.counted.fill_(steps);
  }
  return moments.counted;
}

void Optimizer::untake(std::span<OptimizerMoments* const> stepped) {
  for (OptimizerMoments* moments : stepped) {
    --moments->steps;
    if (moments->counted.defined()) --moments->counted_steps;
  }
}

void Optimizer::fused(std::span<const OptimizedShard> shards, double lr, const StepWish& how) const {
  const bool adamw = is_adamw();
  std::vector<at::Tensor> params, grads, first, second, steps;
  bool first_step = false;
  for (const OptimizedShard& shard : shards) {
    if (!shard.gradient.defined() || shard.shard.numel() == 0) continue;
    OptimizerMoments& moments = *shard.moments;
    first_step = moments.steps == 0;
    params.push_back(shard.shard);
    grads.push_back(shard.gradient.to(shard.shard.scalar_type()));
    if (!moments.tensors.empty()) first.push_back(moments.tensors[0]);
    if (!adamw) {
      ++moments.steps;
      continue;
    }
    second.push_back(moments.tensors[1]);
    steps.push_back(counted(moments, shard.shard.device()));
    moments.counted_steps = ++moments.steps;
  }
  if (params.empty()) return;
  // The kernels look for exactly 1; ranks may have summed theirs.
  const std::optional<at::Tensor> skip =
      how.found_inf.defined() ? std::optional(how.found_inf.clamp_max(1.0)) : std::optional<at::Tensor>();
  if (!adamw) {
    at::_fused_sgd_(params, grads, first, options_.weight_decay, options_.momentum, lr, /*dampening=*/0.0,
                    /*nesterov=*/false, /*maximize=*/false, first_step, /*grad_scale=*/{}, skip);
    return;
  }
  const auto kernels = [&](const auto& rate) {
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(params, grads, first, second, {}, steps, rate, options_.beta1, options_.beta2,
                      options_.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{},
                      skip);
    if (skip) at::_foreach_sub_(steps, std::vector<at::Tensor>(steps.size(), skip->squeeze()));
  };
  if (!how.repeat) return kernels(lr);
  if (!how.rate->defined()) *how.rate = at::empty({}, at::TensorOptions(params[0].device()).dtype(at::kFloat));
  how.rate->fill_(lr);
  how.repeat(key_of({params, grads, first, second, steps}, skip), [&] { kernels(*how.rate); });
}

}  // namespace foreshard::exec
