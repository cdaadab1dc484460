#include "core/operators/pointwise_writer.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace foreshard::families {

Tensor PointwiseWriter::arange(std::int64_t count) {
  Op& op = begin("aten.arange.default", 1);
  put(op, std::int64_t{count});
  return result(op, {count}, {1}, DType::Int64);
}

Tensor PointwiseWriter::scalar(double value, DType dtype, bool layout) {
  Op& op = begin("aten.scalar_tensor.default", 1);
  put(op, value);
  op.kwargs.push_back({"dtype", Arg{dtype}});
  if (layout) op.kwargs.push_back({"layout", Arg{std::string("torch.strided")}});
  return result(op, {}, {}, dtype);
}

Tensor PointwiseWriter::ones(const Dims& sizes, DType dtype) {
  Op& op = begin("aten.ones.default", 1);
  op.args.push_back(arg(sizes));
  op.kwargs.push_back({"dtype", Arg{dtype}});
  op.kwargs.push_back({"layout", Arg{std::string("torch.strided")}});
  return result(op, sizes, contiguous_strides(sizes), dtype);
}

Tensor PointwiseWriter::zeros(const Dims& sizes, DType dtype) {
  Op& op = begin("aten.zeros.default", 1);
  op.args.push_back(arg(sizes));
  op.kwargs.push_back({"dtype", Arg{dtype}});
  return result(op, sizes, contiguous_strides(sizes), dtype);
}

DType PointwiseWriter::promote(const Tensor& a, const Tensor& b) {
  if (a.dtype == b.dtype) return a.dtype;
  if (is_floating(a.dtype) != is_floating(b.dtype)) return is_floating(a.dtype) ? a.dtype : b.dtype;
  if (itemsize(a.dtype) != itemsize(b.dtype)) return itemsize(a.dtype) > itemsize(b.dtype) ? a.dtype : b.dtype;
  return DType::Float32;  // bfloat16 with float16
}

Tensor PointwiseWriter::binary(std::string_view name, const Tensor& a, const Tensor& b, DType dtype) {
  const Dims sizes = broadcast_sizes(a.sizes, b.sizes);
  const Dims operands[] = {broadcast_strides(a.layout(), sizes), broadcast_strides(b.layout(), sizes)};
  const bool same = a.sizes == b.sizes && a.strides == b.strides && a.is_dense();
  const Dims strides = same ? a.strides : strides_by_operands(sizes, operands);
  Op& op = begin(name, 2);
  op.args.push_back(arg(a));
  op.args.push_back(arg(b));
  return result(op, sizes, strides, dtype);
}

Tensor PointwiseWriter::add_in_place(const Tensor& a, const Tensor& b) {
  Op& op = begin("aten.add_.Tensor", 2);
  op.args.push_back(arg(a));
  op.args.push_back(arg(b));
  op.out.push_back(ValueId(a.index));
  return a;
}

Tensor PointwiseWriter::divide_in_place(const Tensor& a, const Tensor& b) {
  Op& copy = begin("aten.clone.default", 1);  // autograd keeps what a was, for the gradient of b
  copy.args.push_back(arg(a));
  result(copy, a.sizes, like_strides(a), a.dtype);
  Op& op = begin("aten.div_.Tensor", 2);
  op.args.push_back(arg(a));
  op.args.push_back(arg(b));
  op.out.push_back(ValueId(a.index));
  return a;
}

Tensor PointwiseWriter::index_put_in_place(const Tensor& x, const Tensor& index, const Tensor& values) {
  Op& op = begin("aten.index_put_.default", 3);
  op.args.push_back(arg(x));
  op.args.push_back(Arg{ArgList{arg(index)}});
  op.args.push_back(arg(values));
  op.out.push_back(ValueId(x.index));
  return x;
}

Tensor PointwiseWriter::scatter_value_in_place(const Tensor& x, int dim, const Tensor& index, Arg value) {
  Op& op = begin("aten.scatter_.value", 4);
  op.args.push_back(arg(x));
  put(op, std::int64_t{dim});
  op.args.push_back(arg(index));
  op.args.push_back(std::move(value));
  op.out.push_back(ValueId(x.index));
  return x;
}

Tensor PointwiseWriter::with_scalar(std::string_view name, const Tensor& given, Arg value, DType dtype) {
  const bool wide = kernels().wide_autocast && name == "aten.pow.Tensor_Scalar";
  const Tensor x = wide ? widened(given) : given;
  if (x.dtype != given.dtype) dtype = x.dtype;
  Op& op = begin(name, 2);
  op.args.push_back(arg(x));
  op.args.push_back(std::move(value));
  return result(op, x.sizes, like_strides(x), dtype);
}

namespace {

/// Of the operators that are written here, those of a GPU's list in float32.
bool is_wide(std::string_view name) {
  constexpr std::string_view kWide[] = {"aten.rsqrt.default", "aten.exp.default",      "aten.log.default",
                                        "aten.log2.default",  "aten.softplus.default", "aten.reciprocal.default"};
  return std::find(std::begin(kWide), std::end(kWide), name) != std::end(kWide);
}

}  // namespace

Tensor PointwiseWriter::unary(std::string_view name, const Tensor& given) {
  const Tensor x = kernels().wide_autocast && is_wide(name) ? widened(given) : given;
  Op& op = begin(name, 1);
  op.args.push_back(arg(x));
  return result(op, x.sizes, like_strides(x), x.dtype);
}

Tensor PointwiseWriter::where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  const Dims sizes = broadcast_sizes(condition.sizes, broadcast_sizes(a.sizes, b.sizes));
  const Dims operands[] = {broadcast_strides(condition.layout(), sizes), broadcast_strides(a.layout(), sizes),
                           broadcast_strides(b.layout(), sizes)};
  Op& op = begin("aten.where.self", 3);
  for (const Tensor* x : {&condition, &a, &b}) op.args.push_back(arg(*x));
  return result(op, sizes, strides_by_operands(sizes, operands), promote(a, b));
}

Tensor PointwiseWriter::dropout(const Tensor& x, double p) {
  if (p <= 0.0) return x;  // at::native::dropout returns its input
  if (kernels().fused_dropout && p < 1.0) {
    Op& op = begin("aten.native_dropout.default", 3);
    op.args.push_back(arg(x));
    put(op, p);
    put(op, true);
    const Tensor y = result(op, x.sizes, like_strides(x), x.dtype);
    result(op, x.sizes, like_strides(x), DType::Bool);
    return y;
  }
  const Tensor mask = unary("aten.empty_like.default", x);
  for (const auto* name : {"aten.bernoulli_.float", "aten.div_.Scalar"}) {
    Op& op = begin(name, 2);
    op.args.push_back(arg(mask));
    put(op, 1.0 - p);
    op.out.push_back(ValueId(mask.index));  // in place: the result is the argument
  }
  return mul(x, mask);
}

}  // namespace foreshard::families
