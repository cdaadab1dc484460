// The activations that config.json may name: their modules in the library, and what these run.
#include <cmath>

#include "core/model/families/family.h"
#include "core/model/json_input.h"

namespace foreshard::families {
namespace {

struct ActivationName {
  std::string_view name, class_name;
  Activation activation;
};

/// ACT2FN of Transformers; the first row of an activation is the one it is printed as.
constexpr ActivationName kActivations[] = {
    {"silu", "SiLUActivation", Activation::Silu},
    {"swish", "SiLU", Activation::Swish},
    {"relu", "ReLU", Activation::Relu},
    {"relu2", "ReLUSquaredActivation", Activation::ReluSquared},
    {"relu6", "ReLU6", Activation::Relu6},
    {"leaky_relu", "LeakyReLU", Activation::LeakyRelu},
    {"gelu", "GELUActivation", Activation::Gelu},
    {"gelu_10", "ClippedGELUActivation", Activation::GeluClipped},
    {"gelu_new", "NewGELUActivation", Activation::GeluNew},
    {"gelu_fast", "FastGELUActivation", Activation::GeluFast},
    {"gelu_pytorch_tanh", "GELUTanh", Activation::GeluTanh},
    {"quick_gelu", "QuickGELUActivation", Activation::QuickGelu},
    {"mish", "MishActivation", Activation::Mish},
    {"hardswish", "Hardswish", Activation::Hardswish},
    {"sigmoid", "Sigmoid", Activation::Sigmoid},
    {"tanh", "Tanh", Activation::Tanh},
    {"linear", "LinearActivation", Activation::Linear},
};

/// FastGELUActivation: 0.5 x (1 + tanh(0.7978845608 x (1 + 0.044715 x x)))
Tensor write_gelu_fast(ProgramWriter& w, const Tensor& x) {
  const auto times = [&](const Tensor& a, double factor) { return w.with_scalar("aten.mul.Tensor", a, Arg{factor}); };
  const auto plus_one = [&](const Tensor& a) { return w.with_scalar("aten.add.Tensor", a, Arg{1.0}); };
  const Tensor half = times(x, 0.5);
  const Tensor left = times(x, 0.7978845608);
  const Tensor right = plus_one(w.mul(times(x, 0.044715), x));
  return w.mul(half, plus_one(w.unary("aten.tanh.default", w.mul(left, right))));
}

/// NewGELUActivation: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
Tensor write_gelu_new(ProgramWriter& w, const Tensor& x) {
  const Tensor half = w.with_scalar("aten.mul.Tensor", x, Arg{0.5});
  const Tensor cube =
      w.with_scalar("aten.mul.Tensor", w.with_scalar("aten.pow.Tensor_Scalar", x, Arg{3.0}), Arg{0.044715});
  const Tensor inner = w.with_scalar("aten.mul.Tensor", w.add(x, cube), Arg{std::sqrt(2.0 / M_PI)});
  const Tensor outer = w.with_scalar("aten.add.Tensor", w.unary("aten.tanh.default", inner), Arg{1.0});
  return w.mul(half, outer);
}

Tensor write_with(ProgramWriter& w, std::string_view op, const Tensor& x, std::vector<Arg> rest) {
  ArgList args{ProgramWriter::arg(x)};
  for (Arg& arg : rest) args.push_back(std::move(arg));
  return w.emit(op, std::move(args), {}, {{x.sizes, ProgramWriter::like_strides(x), x.dtype}})[0];
}

}  // namespace

std::string_view activation_class(Activation activation) {
  for (const ActivationName& row : kActivations)
    if (row.activation == activation) return row.class_name;
  return "";
}

Activation read_activation(ConfigReader& config, std::string_view key, std::string_view otherwise) {
  const std::string name = config.text_or(key, std::string(otherwise));
  std::string known;
  for (const ActivationName& row : kActivations) {
    if (row.name == name) return row.activation;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  config.fail_with(ErrorCode::Unsupported, key, in_quotes(std::string(key)) + " names an activation that is not built",
                   "one of " + known, in_quotes(name));
  return Activation::Silu;
}

Tensor write_activation(ProgramWriter& w, Activation activation, const Tensor& x) {
  switch (activation) {
    case Activation::Silu:
    case Activation::Swish: return w.unary("aten.silu.default", x);
    case Activation::Relu: return w.unary("aten.relu.default", x);
    case Activation::ReluSquared:
      return w.with_scalar("aten.pow.Tensor_Scalar", w.unary("aten.relu.default", x), Arg{std::int64_t{2}});
    case Activation::Relu6: return write_with(w, "aten.hardtanh.default", x, {Arg{0.0}, Arg{6.0}});
    case Activation::LeakyRelu: return w.unary("aten.leaky_relu.default", x);
    case Activation::Gelu: return w.unary("aten.gelu.default", x);
    case Activation::GeluClipped:
      return write_with(w, "aten.clamp.default", w.unary("aten.gelu.default", x),
                        {Arg{std::int64_t{-10}}, Arg{std::int64_t{10}}});
    case Activation::GeluNew: return write_gelu_new(w, x);
    case Activation::GeluFast: return write_gelu_fast(w, x);
    case Activation::GeluTanh:
      return w.emit("aten.gelu.default", {ProgramWriter::arg(x)}, {{"approximate", Arg{std::string("tanh")}}},
                    {{x.sizes, ProgramWriter::like_strides(x), x.dtype}})[0];
    case Activation::QuickGelu:  // x sigmoid(1.702 x)
      return w.mul(x, w.unary("aten.sigmoid.default", w.with_scalar("aten.mul.Tensor", x, Arg{1.702})));
    case Activation::Mish: return w.unary("aten.mish.default", x);
    case Activation::Hardswish: return w.unary("aten.hardswish.default", x);
    case Activation::Sigmoid: return w.unary("aten.sigmoid.default", x);
    case Activation::Tanh: return w.unary("aten.tanh.default", x);
    case Activation::Linear: break;
  }
  return x;
}

}  // namespace foreshard::families
