#include "exec/step/gradient_scaler.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>
#include <vector>

namespace foreshard::exec {

at::Tensor GradientScaler::scale(c10::Device device) {
  if (!scale_.defined()) {
    scale_ = at::full({}, start_.scale, at::TensorOptions(device).dtype(at::kFloat));
    growth_tracker_ = at::full({}, start_.growth_tracker, at::TensorOptions(device).dtype(at::kInt));
  }
  return scale_;
}

void GradientScaler::unscale(std::span<const at::Tensor> gradients, c10::Device device) {
  at::NoGradGuard no_grad;
  // In float64, since a division in float32 may be inexact. The host waits for a copy of its own before it reads it.
  const at::Tensor inverse = scale(device).to(at::kDouble).reciprocal().to(at::kFloat).to(device);
  found_inf_ = at::zeros({1}, inverse.options());
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.numel() > 0) by_type[gradient.scalar_type()].push_back(gradient);
  }
  for (auto& [type, of_type] : by_type) {
    at::_amp_foreach_non_finite_check_and_unscale_(of_type, found_inf_, inverse);
  }
}

void GradientScaler::update() {
  at::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf_.to(scale_.device()), options_.growth_factor,
                         options_.backoff_factor, options_.growth_interval);
  found_inf_ = at::Tensor();
}

ScalerState GradientScaler::state() const {
  if (!scale_.defined()) return start_;
  return {scale_.item<double>(), growth_tracker_.item<std::int64_t>()};
}

void GradientScaler::set_state(const ScalerState& state) {
  start_ = state;
  scale_ = growth_tracker_ = at::Tensor();
}

}  // namespace foreshard::exec
