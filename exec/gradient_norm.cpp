#include "exec/gradient_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>

#include <cmath>

namespace foreshard::exec {
namespace {

/// Local norms to the p-th power, in fp32.
std::vector<at::Tensor> powers(std::span<const NormedGradient> gradients, bool replicated, double p) {
  std::vector<at::Tensor> each;
  for (const NormedGradient& one : gradients) {
    if (one.replicated != replicated) continue;
    const at::Tensor norm = at::linalg_vector_norm(one.gradient, p, {}, /*keepdim=*/false, at::kFloat);
    each.push_back(std::isinf(p) ? norm : norm.pow(p));
  }
  return each;
}

at::Tensor together(const std::vector<at::Tensor>& each, double p, const at::TensorOptions& options) {
  if (each.empty()) return at::zeros({1}, options);
  const at::Tensor all = at::stack(each);
  return (std::isinf(p) ? all.max() : all.sum()).reshape({1});
}

}  // namespace

NormShare norm_share(std::span<const NormedGradient> gradients, double p, bool apart, c10::Device device) {
  at::NoGradGuard no_grad;
  const at::TensorOptions options =
      at::TensorOptions().dtype(at::kFloat).device(gradients.empty() ? device : gradients[0].gradient.device());
  const std::vector<at::Tensor> sharded = powers(gradients, false, p);
  NormShare share;
  share.sharded = apart && !sharded.empty() ? at::stack(sharded) : together(sharded, p, options);
  share.replicated = together(powers(gradients, true, p), p, options);
  return share;
}

at::Tensor total_norm(const NormShare& share, double p) {
  at::NoGradGuard no_grad;
  const at::Tensor all = at::cat({share.sharded, share.replicated});
  return std::isinf(p) ? all.max() : all.sum().pow(1.0 / p);
}

void clip_gradients(std::span<const NormedGradient> gradients, const at::Tensor& total, double max_norm) {
  at::NoGradGuard no_grad;
  const at::Tensor coefficient = at::clamp_max(max_norm / (total + 1e-6), 1.0);
  for (const NormedGradient& one : gradients) {
    at::Tensor gradient = one.gradient;
    gradient.mul_(coefficient.to(gradient.scalar_type()));
  }
}

at::Tensor returned_norm(std::span<const NormedGradient> gradients, const at::Tensor& total) {
  if (gradients.empty()) return total;
  at::ScalarType type = gradients[0].gradient.scalar_type();
  for (const NormedGradient& one : gradients) type = c10::promoteTypes(type, one.gradient.scalar_type());
  return total.to(type);
}

}  // namespace foreshard::exec
