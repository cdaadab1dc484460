#include "exec/step/adafactor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace foreshard::exec {
namespace {

// torch.optim.Adafactor's own; Transformers' decay is the same.
constexpr double kDecay = -0.8, kLeastScale = 1e-3, kWidestUpdate = 1.0;
constexpr double kLeastSquare = 1e-30;  // Transformers' eps[0]

double root_mean_square(const at::Tensor& of) {
  return of.norm(2).item<double>() / std::sqrt(static_cast<double>(of.numel()));
}

double least_of(at::ScalarType type) {
  if (type == at::kDouble) return std::numeric_limits<double>::epsilon();
  if (type == at::kBFloat16) return 0.0078125;
  return type == at::kHalf ? 0.0009765625 : static_cast<double>(std::numeric_limits<float>::epsilon());
}

}  // namespace

std::vector<Shape> adafactor_moments(c10::IntArrayRef param) {
  if (param.size() < 2) return {param.vec()};
  Shape rows = param.vec(), columns = param.vec();
  rows.back() = 1;
  columns[columns.size() - 2] = 1;
  return {rows, columns};
}

// _single_tensor_adafactor
void step_torch_adafactor(const at::Tensor& param, const at::Tensor& gradient, std::span<const at::Tensor> moments,
                          std::int64_t steps, const OptimizerOptions& options, double lr) {
  const auto count = static_cast<double>(steps);
  const double share = std::pow(count, kDecay);
  const double least = least_of(param.scalar_type());
  const double alpha = std::max(kLeastScale, root_mean_square(param)) * std::min(lr, 1 / std::sqrt(count));
  if (options.weight_decay != 0) param.mul_(1 - lr * options.weight_decay);
  at::Tensor estimate;
  if (gradient.dim() > 1) {
    const at::Tensor rows = at::norm(gradient, 2, {-1}, true).square_().div_(gradient.size(-1));
    moments[0].lerp_(rows, share);
    const at::Tensor columns = at::norm(gradient, 2, {-2}, true).square_().div_(gradient.size(-2));
    moments[1].lerp_(columns, share);
    estimate = at::matmul(moments[0], moments[1]);
    estimate.div_(moments[0].mean(-2, true).clamp_(least));
  } else {
    moments[0].lerp_(gradient * gradient, share);
    estimate = moments[0].clone();
  }
  const at::Tensor update = estimate.clamp_(least * least).rsqrt_().mul_(gradient);
  const double wide = std::max(1.0, root_mean_square(update) / kWidestUpdate);
  param.add_(update, -alpha / wide);
}

void step_transformers_adafactor(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& squares,
                                 std::int64_t steps, const OptimizerOptions& options, double lr) {
  const double decay = 1.0 - std::pow(static_cast<double>(steps), kDecay);
  at::Tensor update = gradient.pow(2) + kLeastSquare;
  squares.mul_(decay).add_(update, 1.0 - decay);
  update = squares.rsqrt().mul_(gradient);
  const double count = std::sqrt(static_cast<double>(update.numel()));
  update.div_((update.norm(2) / count / kWidestUpdate).clamp_(1.0));
  update.mul_(lr);
  if (options.weight_decay != 0) param.add_(param, -options.weight_decay * lr);
  param.add_(-update);
}

}  // namespace foreshard::exec
