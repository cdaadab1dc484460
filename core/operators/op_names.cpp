#include "core/operators/op_names.h"

#include <utility>

namespace foreshard {

std::string op_name(std::string_view target) {
  static constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
      {"aten.__and__.Tensor", "aten.bitwise_and.Tensor"},
      {"aten.__or__.Tensor", "aten.bitwise_or.Tensor"},
      {"aten.__xor__.Tensor", "aten.bitwise_xor.Tensor"},
      {"aten.min.other", "aten.minimum.default"},
      {"aten.max.other", "aten.maximum.default"},
      {"aten.multiply.Tensor", "aten.mul.Tensor"},
      {"aten.subtract.Tensor", "aten.sub.Tensor"},
      {"aten.divide.Tensor", "aten.div.Tensor"},
      {"aten.true_divide.Tensor", "aten.div.Tensor"},
      {"aten.negative.default", "aten.neg.default"},
      {"aten.greater.Tensor", "aten.gt.Tensor"},
      {"aten.greater.Scalar", "aten.gt.Scalar"},
      {"aten.less.Tensor", "aten.lt.Tensor"},
      {"aten.less.Scalar", "aten.lt.Scalar"},
      {"aten.not_equal.Tensor", "aten.ne.Tensor"},
      {"aten.not_equal.Scalar", "aten.ne.Scalar"},
      {"aten.greater_equal.Tensor", "aten.ge.Tensor"},
      {"aten.greater_equal.Scalar", "aten.ge.Scalar"},
      {"aten.less_equal.Tensor", "aten.le.Tensor"},
      {"aten.less_equal.Scalar", "aten.le.Scalar"},
      {"aten.swapaxes.default", "aten.transpose.int"},
      {"aten.swapdims.default", "aten.transpose.int"},
      {"aten.concat.default", "aten.cat.default"},
      {"aten.concatenate.default", "aten.cat.default"},
      {"aten.absolute.default", "aten.abs.default"},
      {"aten.clip.default", "aten.clamp.default"}};
  constexpr std::string_view kPrefix = "torch.ops.";
  const std::string_view name = target.starts_with(kPrefix) ? target.substr(kPrefix.size()) : target;
  for (const auto& [alias, real] : kAliases) {
    if (name == alias) return std::string(real);
  }
  return std::string(name);
}

bool is_in_place(std::string_view name) {
  const std::size_t overload = name.rfind('.');
  const std::string_view base = name.substr(0, overload);
  return overload != name.npos && base.ends_with('_') && !base.ends_with("__");
}

std::string without_overwriting(std::string_view name) {
  for (const std::string_view base : {"aten.silu", "aten.hardswish", "aten.hardsigmoid", "aten.mish"}) {
    if (name.starts_with(base) && name.substr(base.size()) == "_.default") return std::string(base) + ".default";
  }
  return {};
}

}  // namespace foreshard
