// Backward of operators that work element by element; see backward.h.
#include "core/lowering/backward/backward.h"
#include "core/lowering/lowering_machine.h"

namespace foreshard::lowering {
namespace {

using Grads = std::vector<Ref>;

/// other.conj(): products do not take it lazily, so that they copy a complex tensor first (ATen's conjugate fallback).
Ref conjugated(Emitter& e, const Ref& other) {
  const Layout layout = e.layout(other);
  if (!is_complex(layout.dtype)) return {};
  return e.tape().make_bytes(layout.bytes(), SlotCategory::Temporary);
}

Ref mul(Emitter& e, const Ref& a, const Ref& b) { return e.elementwise("aten.mul.Tensor", {&a, &b}); }
Ref scale(Emitter& e, const Ref& a, std::string_view name = "aten.mul.Scalar") { return e.elementwise(name, {&a}); }

/// Sums, products, quotients.
Grads arithmetic(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  const Op& op = *in.node.op;
  switch (in.node.rule->formula) {
    case OpFormula::Add:
    case OpFormula::Sub:
      if (in.wants(0)) out[0] = g;
      if (in.wants(1)) {
        out[1] = in.node.rule->formula == OpFormula::Sub ? e.elementwise("aten.neg.default", {&g}) : g;
        out[1] = times(e, in, "alpha", out[1]);
      }
      break;
    case OpFormula::Mul:
      if (in.node.in.size() < 2) {
        out[0] = scale(e, g, op.name == "aten.mul.Scalar" ? "aten.mul.Scalar" : "aten.mul.Tensor");
        break;
      }
      for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
        if (!in.wants(i)) continue;
        const Ref other = in.saved_arg(i == 0 ? 1 : 0), copy = conjugated(e, other);
        out[i] = mul(e, g, other);
      }
      break;
    case OpFormula::Div: {
      const Ref other = in.node.in.size() > 1 ? in.saved_arg(1) : Ref();
      if (in.wants(1)) {
        const Ref self = in.saved_arg(0);
        Ref quotient = e.elementwise("aten.div.Tensor", {&self, &other});
        Ref second = e.elementwise("aten.div.Tensor", {&quotient, &other});
        Ref negative = e.elementwise("aten.neg.default", {&g});
        out[1] = mul(e, negative, second);
      }
      if (in.wants(0))
        out[0] = e.elementwise(op.name.ends_with(".Scalar") ? "aten.div.Scalar" : "aten.div.Tensor", {&g, &other});
      break;
    }
    case OpFormula::Neg: out[0] = e.elementwise("aten.neg.default", {&g}); break;
    default: break;
  }
  return out;
}

/// Powers and roots.
Grads powers(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  const Op& op = *in.node.op;
  switch (in.node.rule->formula) {
    case OpFormula::Pow: {
      const Ref self = in.saved_arg(0);
      if (number_arg(op, 1, "exponent", 2.0) == 0.0) {
        out[0] = e.elementwise("aten.zeros_like.default", {&self});
        break;
      }
      Ref power = e.elementwise("aten.pow.Tensor_Scalar", {&self});
      Ref scaled = scale(e, power);
      out[0] = mul(e, g, scaled);
      break;
    }
    case OpFormula::Rsqrt: {
      const Ref result = in.saved_result(0);
      Ref cube = e.elementwise("aten.pow.Tensor_Scalar", {&result});
      Ref half = scale(e, g);
      out[0] = mul(e, half, cube);
      break;
    }
    case OpFormula::Sqrt: {
      const Ref result = in.saved_result(0);
      Ref twice = scale(e, result);
      out[0] = e.elementwise("aten.div.Tensor", {&g, &twice});
      break;
    }
    case OpFormula::Reciprocal: {
      const Ref result = in.saved_result(0);
      Ref square = e.elementwise("aten.mul.Tensor", {&result, &result});
      Ref negative = e.elementwise("aten.neg.default", {&g});
      out[0] = e.elementwise("aten.mul.Tensor", {&negative, &square});
      break;
    }
    case OpFormula::PowOfScalar: {
      const Ref result = in.saved_result(0);
      Ref scaled = e.elementwise("aten.mul.Scalar", {&result});
      out[0] = e.elementwise("aten.mul.Tensor", {&g, &scaled});
      break;
    }
    default: break;
  }
  return out;
}

/// What a mask decides.
Grads choices(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  const Op& op = *in.node.op;
  switch (in.node.rule->formula) {
    case OpFormula::Dropout: {
      const Ref mask = in.saved_result(1);
      out[0] = e.elementwise("aten.native_dropout_backward.default", {&g, &mask});
      break;
    }
    case OpFormula::MaskedFill: {
      const Ref mask = in.saved_arg(1);
      if (in.wants(0)) out[0] = e.elementwise("aten.masked_fill.Scalar", {&g, &mask});
      if (in.wants(2)) {  // the value filled in
        Ref zero = e.fresh("aten.scalar_tensor.default", KernelClass::Elementwise,
                           contiguous_layout(Dims{}, e.layout(g).dtype), {});
        Ref filled = e.elementwise("aten.where.self", {&mask, &g, &zero}, e.layout(g).dtype);
        out[2] = e.sum(filled, {}, false, "aten.sum.default", KernelClass::Reduction, e.layout(g).dtype);
      }
      break;
    }
    case OpFormula::Where: {
      const Ref condition = in.saved_arg(0);
      const Layout scalar = contiguous_layout(Dims{}, e.layout(g).dtype);
      for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {  // each side has a zero of its own
        if (!in.wants(i)) continue;
        Ref zero = e.fresh("aten.scalar_tensor.default", KernelClass::Elementwise, scalar, {});
        out[i] = e.elementwise("aten.where.self", {&condition, &g, &zero}, scalar.dtype);
      }
      break;
    }
    case OpFormula::Tril: out[0] = e.elementwise(out_of_place(op.name), {&g}); break;
    default: break;
  }
  return out;
}

/// One kernel of the gradient and what was kept.
Grads activations(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  switch (in.node.rule->formula) {
    case OpFormula::Tanh: {
      const Ref result = in.saved_result(0);
      out[0] = e.elementwise("aten.tanh_backward.default", {&g, &result});
      break;
    }
    case OpFormula::Sigmoid: {
      const Ref result = in.saved_result(0);
      out[0] = e.elementwise("aten.sigmoid_backward.default", {&g, &result});
      break;
    }
    case OpFormula::Relu: {
      const Ref result = in.saved_result(0);
      out[0] = e.elementwise("aten.threshold_backward.default", {&g, &result});
      break;
    }
    case OpFormula::Silu:
    case OpFormula::Gelu: {
      const Ref self = in.saved_arg(0);
      out[0] = e.elementwise(
          in.node.rule->formula == OpFormula::Silu ? "aten.silu_backward.default" : "aten.gelu_backward.default",
          {&g, &self});
      break;
    }
    default: break;
  }
  return out;
}

/// Other functions of one tensor.
Grads curves(Emitter& e, BackwardInput& in, const Ref& g) {
  Grads out(in.node.in.size());
  switch (in.node.rule->formula) {
    case OpFormula::Exp: out[0] = mul(e, g, in.saved_result(0)); break;
    case OpFormula::Log: {
      const Ref self = in.saved_arg(0);
      out[0] = e.elementwise("aten.div.Tensor", {&g, &self});
      break;
    }
    case OpFormula::Abs: {
      const Ref self = in.saved_arg(0);
      Ref sign = e.elementwise("aten.sgn.default", {&self});
      out[0] = mul(e, g, sign);
      break;
    }
    case OpFormula::Cos: {
      const Ref self = in.saved_arg(0);
      Ref sine = e.elementwise("aten.sin.default", {&self});
      Ref negative = e.elementwise("aten.neg.default", {&sine});
      out[0] = mul(e, g, negative);
      break;
    }
    case OpFormula::Sin: {
      const Ref self = in.saved_arg(0);
      Ref cosine = e.elementwise("aten.cos.default", {&self});
      out[0] = mul(e, g, cosine);
      break;
    }
    case OpFormula::Erf: {
      const Ref self = in.saved_arg(0);
      Ref square = e.elementwise("aten.pow.Tensor_Scalar", {&self});
      Ref negative = e.elementwise("aten.neg.default", {&square});
      Ref bell = e.elementwise("aten.exp.default", {&negative});
      Ref scaled = e.elementwise("aten.mul.Scalar", {&bell});
      out[0] = e.elementwise("aten.mul.Tensor", {&scaled, &g});
      break;
    }
    case OpFormula::Expm1: {
      const Ref result = in.saved_result(0);
      Ref whole = e.elementwise("aten.add.Scalar", {&result});
      out[0] = e.elementwise("aten.mul.Tensor", {&g, &whole});
      break;
    }
    case OpFormula::Log1p:
    case OpFormula::Log2: {
      const Ref self = in.saved_arg(0);
      Ref under =
          e.elementwise(in.node.rule->formula == OpFormula::Log1p ? "aten.add.Scalar" : "aten.mul.Scalar", {&self});
      out[0] = e.elementwise("aten.div.Tensor", {&g, &under});
      break;
    }
    default: break;
  }
  return out;
}

}  // namespace

Ref times(Emitter& e, BackwardInput& in, std::string_view factor, const Ref& product) {
  if (number_arg(*in.node.op, 99, factor, 1.0) == 1.0) return product;
  return e.elementwise("aten.mul.Scalar", {&product});
}

std::vector<Ref> backward_of_pointwise(Emitter& e, BackwardInput& in, const Ref& g) {
  switch (in.node.rule->formula) {
    case OpFormula::Add:
    case OpFormula::Sub:
    case OpFormula::Mul:
    case OpFormula::Div:
    case OpFormula::Neg: return arithmetic(e, in, g);
    case OpFormula::Pow:
    case OpFormula::Rsqrt:
    case OpFormula::Sqrt:
    case OpFormula::Reciprocal:
    case OpFormula::PowOfScalar: return powers(e, in, g);
    case OpFormula::Dropout:
    case OpFormula::MaskedFill:
    case OpFormula::Where:
    case OpFormula::Tril: return choices(e, in, g);
    case OpFormula::Tanh:
    case OpFormula::Sigmoid:
    case OpFormula::Relu:
    case OpFormula::Silu:
    case OpFormula::Gelu: return activations(e, in, g);
    default: return curves(e, in, g);
  }
}

}  // namespace foreshard::lowering
