#include "exec/step/gradient_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>

#include <cmath>
#include <map>
#include <utility>

namespace foreshard::exec {
namespace {

/// Zeros where another rank counts.
at::Tensor counted_here(const NormedGradient& one) {
  if (one.elsewhere.empty()) return one.gradient;
  at::Tensor counted = one.gradient.reshape({-1}).clone();
  for (const ElementRange& range : one.elsewhere) counted.narrow(0, range.begin, range.end - range.begin).zero_();
  return counted;
}

/// Local norms to the p-th power, in fp32.
std::vector<at::Tensor> powers(std::span<const NormedGradient> gradients, bool replicated, double p, bool of_lists) {
  std::vector<at::Tensor> each;
  std::map<at::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<std::size_t>>> lists;
  for (const NormedGradient& one : gradients) {
    if (one.replicated != replicated) continue;
    const at::Tensor gradient = counted_here(one);
    if (of_lists && gradient.numel() > 0) {
      auto& [tensors, places] = lists[gradient.scalar_type()];
      tensors.push_back(gradient);
      places.push_back(each.size());
      each.emplace_back();
      continue;
    }
    const at::Tensor norm = at::linalg_vector_norm(gradient, p, {}, /*keepdim=*/false, at::kFloat);
    each.push_back(std::isinf(p) ? norm : norm.pow(p));
  }
  for (const auto& [type, list] : lists) {
    std::vector<at::Tensor> norms = at::_foreach_norm(list.first, p, at::kFloat);
    if (!std::isinf(p)) at::_foreach_pow_(norms, p);
    for (std::size_t i = 0; i < norms.size(); ++i) each[list.second[i]] = norms[i];
  }
  return each;
}

at::Tensor together(const std::vector<at::Tensor>& each, double p, const at::TensorOptions& options) {
  if (each.empty()) return at::zeros({1}, options);
  const at::Tensor all = at::stack(each);
  return (std::isinf(p) ? all.max() : all.sum()).reshape({1});
}

}  // namespace

NormShare norm_share(std::span<const NormedGradient> gradients, const NormWish& wish) {
  at::NoGradGuard no_grad;
  const at::TensorOptions options =
      at::TensorOptions().dtype(at::kFloat).device(gradients.empty() ? wish.nowhere : gradients[0].gradient.device());
  const std::vector<at::Tensor> sharded = powers(gradients, false, wish.p, wish.lists);
  NormShare share;
  share.sharded = wish.apart && !sharded.empty() ? at::stack(sharded) : together(sharded, wish.p, options);
  share.replicated = together(powers(gradients, true, wish.p, wish.lists), wish.p, options);
  return share;
}

at::Tensor total_norm(const NormShare& share, double p) {
  at::NoGradGuard no_grad;
  const at::Tensor all = at::cat({share.sharded, share.replicated});
  return std::isinf(p) ? all.max() : all.sum().pow(1.0 / p);
}

void clip_gradients(std::span<const NormedGradient> gradients, const at::Tensor& total, double max_norm,
                    bool of_lists) {
  at::NoGradGuard no_grad;
  const at::Tensor coefficient = at::clamp_max(max_norm / (total + 1e-6), 1.0);
  std::map<at::ScalarType, std::vector<at::Tensor>> lists;
  for (const NormedGradient& one : gradients) {
    at::Tensor gradient = one.gradient;
    if (of_lists) {
      lists[gradient.scalar_type()].push_back(std::move(gradient));
    } else {
      gradient.mul_(coefficient.to(gradient.scalar_type()));
    }
  }
  for (const auto& [type, list] : lists) at::_foreach_mul_(list, coefficient.to(type));
}

at::Tensor returned_norm(std::span<const NormedGradient> gradients, const at::Tensor& total) {
  if (gradients.empty()) return total;
  at::ScalarType type = gradients[0].gradient.scalar_type();
  for (const NormedGradient& one : gradients) type = c10::promoteTypes(type, one.gradient.scalar_type());
  return total.to(type);
}

}  // namespace foreshard::exec
