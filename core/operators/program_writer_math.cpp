// The operators of ProgramWriter that compute: element by element, products, reductions, norms and losses.
#include "core/operators/program_writer.h"

namespace foreshard::families {
namespace {

/// Appends a constant argument, built in place.
template <class T>
void put(Op& op, T value) {
  op.args.emplace_back().value.emplace<T>(value);
}

}  // namespace

// --- element by element ---

Tensor ProgramWriter::binary(std::string_view name, const Tensor& a, const Tensor& b, DType dtype) {
  const Dims sizes = broadcast_sizes(a.sizes, b.sizes);
  const Dims operands[] = {broadcast_strides(a.layout(), sizes), broadcast_strides(b.layout(), sizes)};
  const bool same = a.sizes == b.sizes && a.strides == b.strides && a.is_dense();
  const Dims strides = same ? a.strides : strides_by_operands(sizes, operands);
  Op& op = begin(name, 2);
  op.args.push_back(arg(a));
  op.args.push_back(arg(b));
  return result(op, sizes, strides, dtype);
}

Tensor ProgramWriter::add_in_place(const Tensor& a, const Tensor& b) {
  Op& op = begin("aten.add_.Tensor", 2);
  op.args.push_back(arg(a));
  op.args.push_back(arg(b));
  op.out.push_back(ValueId(a.index));
  return a;
}

Tensor ProgramWriter::divide_in_place(const Tensor& a, const Tensor& b) {
  Op& copy = begin("aten.clone.default", 1);  // autograd keeps what a was, for the gradient of b
  copy.args.push_back(arg(a));
  result(copy, a.sizes, like_strides(a), a.dtype);
  Op& op = begin("aten.div_.Tensor", 2);
  op.args.push_back(arg(a));
  op.args.push_back(arg(b));
  op.out.push_back(ValueId(a.index));
  return a;
}

Tensor ProgramWriter::index_put_in_place(const Tensor& x, const Tensor& index, const Tensor& values) {
  Op& op = begin("aten.index_put_.default", 3);
  op.args.push_back(arg(x));
  op.args.push_back(Arg{ArgList{arg(index)}});
  op.args.push_back(arg(values));
  op.out.push_back(ValueId(x.index));
  return x;
}

Tensor ProgramWriter::with_scalar(std::string_view name, const Tensor& x, Arg value, DType dtype) {
  Op& op = begin(name, 2);
  op.args.push_back(arg(x));
  op.args.push_back(std::move(value));
  return result(op, x.sizes, like_strides(x), dtype);
}

Tensor ProgramWriter::unary(std::string_view name, const Tensor& x) {
  Op& op = begin(name, 1);
  op.args.push_back(arg(x));
  return result(op, x.sizes, like_strides(x), x.dtype);
}

Tensor ProgramWriter::where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  const Dims sizes = broadcast_sizes(condition.sizes, broadcast_sizes(a.sizes, b.sizes));
  const Dims operands[] = {broadcast_strides(condition.layout(), sizes), broadcast_strides(a.layout(), sizes),
                           broadcast_strides(b.layout(), sizes)};
  Op& op = begin("aten.where.self", 3);
  for (const Tensor* x : {&condition, &a, &b}) op.args.push_back(arg(*x));
  return result(op, sizes, strides_by_operands(sizes, operands), promote(a, b));
}

// --- products, reductions, norms, losses ---

Tensor ProgramWriter::embedding(const Tensor& weight, const Tensor& ids, std::int64_t padding_index) {
  Op& op = begin("aten.embedding.default", 3);
  op.args.push_back(arg(weight));
  op.args.push_back(arg(ids));
  if (padding_index >= 0) put(op, std::int64_t{padding_index});  // -1 is the schema's default
  Dims sizes = ids.sizes;
  sizes.insert(-1, weight.sizes[1]);
  return result(op, sizes, contiguous_strides(sizes), weight.dtype);
}

Tensor ProgramWriter::mm(const Tensor& a, const Tensor& b) {
  Op& op = begin("aten.mm.default", 2);
  op.args.push_back(arg(a));
  op.args.push_back(arg(b));
  const Dims sizes{a.sizes[0], b.sizes[1]};
  return result(op, sizes, contiguous_strides(sizes), a.dtype);
}

Tensor ProgramWriter::bmm(const Tensor& a, const Tensor& b) {
  Op& op = begin("aten.bmm.default", 2);
  op.args.push_back(arg(a));
  op.args.push_back(arg(b));
  const Dims sizes{a.sizes[0], a.sizes[1], b.sizes[2]};
  return result(op, sizes, contiguous_strides(sizes), a.dtype);
}

Tensor ProgramWriter::addmm(const Tensor& bias, const Tensor& a, const Tensor& b) {
  Op& op = begin("aten.addmm.default", 3);
  for (const Tensor* x : {&bias, &a, &b}) op.args.push_back(arg(*x));
  const Dims sizes{a.sizes[0], b.sizes[1]};
  return result(op, sizes, contiguous_strides(sizes), a.dtype);
}

Tensor ProgramWriter::linear(const Tensor& x, ParamId weight, ParamId bias) {
  if (x.sizes.rank() == 2) {
    const Tensor transposed = t(param(weight));
    return bias.valid() ? addmm(param(bias), x, transposed) : mm(x, transposed);
  }
  const Dims rows{x.sizes.product() / x.sizes[-1], x.sizes[-1]};
  Dims sizes = x.sizes;
  if (bias.valid()) {  // contiguous input with bias: addmm on the flattened input, else matmul and add
    const Tensor flat = view(x, rows);
    const Tensor transposed = t(param(weight));
    const Tensor y = addmm(param(bias), flat, transposed);
    sizes[-1] = y.sizes[1];
    return view(y, sizes);
  }
  const Tensor transposed = t(param(weight));
  const Tensor y = mm(reshape_for_bmm(x, rows), transposed);
  sizes[-1] = y.sizes[1];
  return unsafe_view(y, sizes);
}

Tensor ProgramWriter::reshape_for_bmm(const Tensor& x, const Dims& sizes) {
  return can_view(x, sizes) ? view(x, sizes) : unsafe_view(clone(x), sizes);
}

Tensor ProgramWriter::matmul(const Tensor& a, const Tensor& b) {
  const std::int64_t batch = a.sizes[0] * a.sizes[1];
  const Tensor left = reshape_for_bmm(expand(a, a.sizes), {batch, a.sizes[2], a.sizes[3]});
  const Tensor right = reshape_for_bmm(expand(b, b.sizes), {batch, b.sizes[2], b.sizes[3]});
  return unsafe_view(bmm(left, right), {a.sizes[0], a.sizes[1], a.sizes[2], b.sizes[3]});
}

Tensor ProgramWriter::mean_last(const Tensor& x) {
  Dims sizes = x.sizes;
  sizes[-1] = 1;
  Op& op = begin("aten.mean.dim", 3);
  op.args.push_back(arg(x));
  op.args.push_back(arg(Dims{-1}));
  put(op, true);
  return result(op, sizes, contiguous_strides(sizes), x.dtype);
}

Tensor ProgramWriter::cumsum(const Tensor& x, int dim) {
  Op& op = begin("aten.cumsum.default", 2);
  op.args.push_back(arg(x));
  put(op, std::int64_t{dim});
  return result(op, x.sizes, like_strides(x), is_floating(x.dtype) ? x.dtype : DType::Int64);
}

Tensor ProgramWriter::all(const Tensor& x) {
  Op& op = begin("aten.all.default", 1);
  op.args.push_back(arg(x));
  return result(op, {}, {}, DType::Bool);
}

Tensor ProgramWriter::sum(const Tensor& x) {
  Op& op = begin("aten.sum.default", 1);
  op.args.push_back(arg(x));
  return result(op, {}, {}, x.dtype);
}

Tensor ProgramWriter::layer_norm(const Tensor& x, ParamId weight, ParamId bias, double eps) {
  Op& op = begin("aten.native_layer_norm.default", 5);
  op.args.push_back(arg(x));
  op.args.push_back(arg(Dims{x.sizes[-1]}));
  op.args.push_back(weight.valid() ? arg(param(weight)) : Arg{});
  op.args.push_back(bias.valid() ? arg(param(bias)) : Arg{});
  put(op, eps);
  Dims statistics = x.sizes;
  statistics[-1] = 1;
  const DType wide = kernels_.wide_norm_statistics ? DType::Float32 : x.dtype;
  const Tensor y = result(op, x.sizes, contiguous_strides(x.sizes), x.dtype);
  result(op, statistics, contiguous_strides(statistics), wide);
  result(op, statistics, contiguous_strides(statistics), wide);
  return y;
}

Tensor ProgramWriter::dropout(const Tensor& x, double p) {
  if (p <= 0.0) return x;  // at::native::dropout returns its input
  if (kernels_.fused_dropout && p < 1.0) {
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

Tensor ProgramWriter::softmax(std::string_view name, const Tensor& x, ArgList rest) {
  Op& op = begin(name, 1 + rest.size());
  op.args.push_back(arg(x));
  for (Arg& a : rest) op.args.push_back(std::move(a));
  return result(op, x.sizes, contiguous_strides(x.sizes), x.dtype);
}

Tensor ProgramWriter::nll_loss(const Tensor& log_probabilities, const Tensor& target, Reduction reduction) {
  Op& op = begin("aten.nll_loss_forward.default", 5);
  op.args.push_back(arg(log_probabilities));
  op.args.push_back(arg(target));
  op.args.emplace_back();
  put(op, static_cast<std::int64_t>(reduction));
  put(op, std::int64_t{-100});  // ignored label
  const Tensor loss = result(op, {}, {}, log_probabilities.dtype);
  result(op, {}, {}, log_probabilities.dtype);  // total weight
  return loss;
}

void ProgramWriter::read_to_host(const Tensor& x) {
  Op& op = begin("aten._local_scalar_dense.default", 1);
  op.args.push_back(arg(x));
  op.out.emplace_back();
}

}  // namespace foreshard::families
