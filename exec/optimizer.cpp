#include "exec/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <initializer_list>
#include <optional>

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

std::vector<std::string_view> Optimizer::slots() const {
  if (options_.name == OptimizerKind::AdamW) return {"exp_avg", "exp_avg_sq"};
  if (options_.momentum != 0.0) return {"momentum_buffer"};
  return {};
}

void Optimizer::step(std::span<const OptimizedShard> shards, double lr, const FusedStep& how) const {
  at::NoGradGuard no_grad;
  if (options_.impl == OptimizerImpl::Fused) return fused(shards, lr, how);
  for (const OptimizedShard& shard : shards) {
    if (!shard.gradient.defined()) continue;
    if (options_.name == OptimizerKind::AdamW) {
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

void Optimizer::fused(std::span<const OptimizedShard> shards, double lr, const FusedStep& how) const {
  const bool adamw = options_.name == OptimizerKind::AdamW;
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
