#include "exec/operators/operator_flops.h"

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

namespace foreshard::exec {
namespace {

Flops product(const at::Tensor& a, const at::Tensor& b) {
  const std::int64_t columns = b.dim() > 1 ? b.size(-1) : 1;
  return 2 * a.numel() * columns;
}

/// Each element of the output is a product over one filter.
Flops convolution(const at::Tensor& weight, std::int64_t outputs) {
  return weight.size(0) > 0 ? 2 * outputs * (weight.numel() / weight.size(0)) : 0;
}

/// Transposed: each element of the input spreads over one filter.
Flops spread(const at::Tensor& input, const at::Tensor& weight) { return convolution(weight, input.numel()); }

/// The counter takes every channel for the filters' gradient, whatever the groups.
Flops convolution_backward(c10::ArrayRef<const c10::IValue> inputs) {
  const at::Tensor gradient = inputs[0].toTensor(), input = inputs[1].toTensor(), weight = inputs[2].toTensor();
  const auto mask = inputs[10].toBoolList();
  const Flops one = inputs[7].toBool() ? spread(input, weight) : convolution(weight, gradient.numel());
  if (inputs[7].toBool()) return ((mask.get(0) ? 1 : 0) + (mask.get(1) ? 1 : 0)) * one;
  const std::int64_t groups = weight.size(1) > 0 ? input.size(1) / weight.size(1) : 1;
  return (mask.get(0) ? one : 0) + (mask.get(1) ? one * groups : 0);
}

/// Sizes of the output from those of input, filter, stride, padding and dilation.
Flops convolution_forward(c10::ArrayRef<const c10::IValue> inputs) {
  const at::Tensor input = inputs[0].toTensor(), weight = inputs[1].toTensor();
  if (inputs[6].toBool()) return spread(input, weight);
  const auto stride = inputs[3].toIntVector(), padding = inputs[4].toIntVector(), dilation = inputs[5].toIntVector();
  std::int64_t outputs = input.size(0) * weight.size(0);
  for (std::int64_t d = 2; d < input.dim(); ++d) {
    const auto at = [&](const std::vector<std::int64_t>& v) {
      return v.size() == 1 ? v[0] : v[static_cast<std::size_t>(d - 2)];
    };
    outputs *= (input.size(d) + 2 * at(padding) - at(dilation) * (weight.size(d) - 1) - 1) / at(stride) + 1;
  }
  return convolution(weight, outputs);
}

}  // namespace

std::optional<Flops> operator_flops(const std::string& name, c10::ArrayRef<const c10::IValue> inputs) {
  if (name == "aten.mm.default" || name == "aten.bmm.default")
    return product(inputs[0].toTensor(), inputs[1].toTensor());
  if (name == "aten.addmm.default" || name == "aten.baddbmm.default")
    return product(inputs[1].toTensor(), inputs[2].toTensor());
  if (name == "aten.convolution.default") return convolution_forward(inputs);
  if (name == "aten.convolution_backward.default") return convolution_backward(inputs);
  const bool uncounted = name.find("attention") != std::string::npos || name.find("grouped_mm") != std::string::npos ||
                         name == "aten.linear.default" || name == "aten.dot.default" || name == "aten.mv.default" ||
                         name == "aten.addmm_.default" || name == "aten.baddbmm_.default";
  return uncounted ? std::nullopt : std::optional<Flops>(0);
}

}  // namespace foreshard::exec
