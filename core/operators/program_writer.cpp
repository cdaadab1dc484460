#include "core/operators/program_writer.h"

#include <utility>

namespace foreshard::families {

Tensor ProgramWriter::embedding(const Tensor& weight, const Tensor& ids, std::int64_t padding_index) {
  Op& op = begin("aten.embedding.default", 3);
  op.args.push_back(arg(weight));
  op.args.push_back(arg(ids));
  if (padding_index >= 0) put(op, std::int64_t{padding_index});  // -1 is the schema's default
  Dims sizes = ids.sizes;
  sizes.insert(-1, weight.sizes[1]);
  return result(op, sizes, contiguous_strides(sizes), weight.dtype);
}

Tensor ProgramWriter::mm(const Tensor& left, const Tensor& right) {
  const Tensor b = narrowed(right), a = narrowed(left);
  Op& op = begin("aten.mm.default", 2);
  op.args.push_back(arg(a));
  op.args.push_back(arg(b));
  const Dims sizes{a.sizes[0], b.sizes[1]};
  return result(op, sizes, contiguous_strides(sizes), a.dtype);
}

Tensor ProgramWriter::bmm(const Tensor& left, const Tensor& right) {
  const Tensor b = narrowed(right), a = narrowed(left);
  Op& op = begin("aten.bmm.default", 2);
  op.args.push_back(arg(a));
  op.args.push_back(arg(b));
  const Dims sizes{a.sizes[0], a.sizes[1], b.sizes[2]};
  return result(op, sizes, contiguous_strides(sizes), a.dtype);
}

Tensor ProgramWriter::addmm(const Tensor& offset, const Tensor& left, const Tensor& right) {
  const Tensor b = narrowed(right), a = narrowed(left), bias = narrowed(offset);
  Op& op = begin("aten.addmm.default", 3);
  for (const Tensor* x : {&bias, &a, &b}) op.args.push_back(arg(*x));
  const Dims sizes{a.sizes[0], b.sizes[1]};
  return result(op, sizes, contiguous_strides(sizes), a.dtype);
}

/// torch._scaled_mm wants both dimensions to be multiples of 16; converters leave other layers alone.
bool ProgramWriter::multiplies_in_float8(const Tensor& matrix) const {
  return kernels().float8 != Float8::None && matrix.sizes.rank() == 2 && matrix.sizes[0] % 16 == 0 &&
         matrix.sizes[1] % 16 == 0;
}

std::string_view ProgramWriter::name_of(Float8 recipe) {
  switch (recipe) {
    case Float8::Rowwise: return "torchao.matmul_float8_rowwise.default";
    case Float8::RowwiseWideGradient: return "torchao.matmul_float8_rowwise_with_gw_hp.default";
    default: return "torchao.matmul_float8_tensorwise.default";
  }
}

/// torchao's Float8Linear: a function of its own, then the bias.
Tensor ProgramWriter::linear(const Tensor& given, ParamId weight, ParamId bias) {
  const Tensor matrix = param(weight);
  if (!multiplies_in_float8(matrix)) return linear_as_stored(given, weight, bias);
  const Tensor x = narrowed(given);
  Dims sizes = x.sizes;
  sizes[-1] = matrix.sizes[0];
  const bool gathered = kernels().gathers_float8 > 0 && matrix.sizes[0] % kernels().gathers_float8 == 0;
  if (gathered) gather_in(weight, DType::Float8E4M3);
  const Tensor y = emit(gathered ? "torchao.matmul_float8_gathered.default" : name_of(kernels().float8),
                        {arg(x), arg(matrix)}, {}, {{sizes, contiguous_strides(sizes), x.dtype}})[0];
  return bias.valid() ? add(y, to(param(bias), y.dtype)) : y;
}

Tensor ProgramWriter::linear_as_stored(const Tensor& given, ParamId weight, ParamId bias) {
  if (!bias.valid()) return product_with(given, param(weight));
  const Tensor offset = narrowed(param(bias));
  const Tensor matrix = narrowed(param(weight)), x = narrowed(given);
  if (x.sizes.rank() == 2) return addmm(offset, x, t(matrix));
  const Dims rows{x.sizes.product() / x.sizes[-1], x.sizes[-1]};
  Dims sizes = x.sizes;
  const Tensor flat = view(x, rows);  // contiguous input: addmm on the flattened one, else matmul and add
  const Tensor transposed = t(matrix);
  const Tensor y = addmm(offset, flat, transposed);
  sizes[-1] = y.sizes[1];
  return view(y, sizes);
}

Tensor ProgramWriter::product_with(const Tensor& given, const Tensor& whole) {
  const Tensor matrix = narrowed(whole), x = narrowed(given);
  if (x.sizes.rank() == 2) return mm(x, t(matrix));
  const Dims rows{x.sizes.product() / x.sizes[-1], x.sizes[-1]};
  Dims sizes = x.sizes;
  const Tensor transposed = t(matrix);
  const Tensor y = mm(reshape_for_bmm(x, rows), transposed);
  sizes[-1] = y.sizes[1];
  return unsafe_view(y, sizes);
}

Tensor ProgramWriter::reshape_for_bmm(const Tensor& x, const Dims& sizes) {
  return can_view(x, sizes) ? view(x, sizes) : unsafe_view(clone(x), sizes);
}

Tensor ProgramWriter::matmul(const Tensor& first, const Tensor& second) {
  const Tensor b = narrowed(second), a = narrowed(first);
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

Tensor ProgramWriter::layer_norm(const Tensor& given, ParamId weight, ParamId bias, double eps) {
  const auto wide_if = [this](const Tensor& one) { return kernels().wide_autocast ? widened(one) : one; };
  const Arg shift = bias.valid() ? arg(wide_if(param(bias))) : Arg{};
  const Arg scale = weight.valid() ? arg(wide_if(param(weight))) : Arg{};
  const Tensor x = wide_if(given);
  Op& op = begin("aten.native_layer_norm.default", 5);
  op.args.push_back(arg(x));
  op.args.push_back(arg(Dims{x.sizes[-1]}));
  op.args.push_back(scale);
  op.args.push_back(shift);
  put(op, eps);
  Dims statistics = x.sizes;
  statistics[-1] = 1;
  const DType wide = kernels().wide_norm_statistics ? DType::Float32 : x.dtype;
  const Tensor y = result(op, x.sizes, contiguous_strides(x.sizes), x.dtype);
  result(op, statistics, contiguous_strides(statistics), wide);
  result(op, statistics, contiguous_strides(statistics), wide);
  return y;
}

Tensor ProgramWriter::softmax(std::string_view name, const Tensor& given, ArgList rest) {
  const bool wide = kernels().autocast && kernels().wide_autocast && name == "aten._softmax.default";
  const bool fused = wide && given.dtype == DType::Float16;  // the kernel widens
  const Tensor x = wide && !fused && is_floating(given.dtype) ? to(given, DType::Float32, true) : given;
  if (fused) rest.back() = Arg{true};
  Op& op = begin(name, 1 + rest.size());
  op.args.push_back(arg(x));
  for (Arg& a : rest) op.args.push_back(std::move(a));
  return result(op, x.sizes, contiguous_strides(x.sizes), fused ? DType::Float32 : x.dtype);
}

Tensor ProgramWriter::nll_loss(const Tensor& given, const Tensor& target, Reduction reduction) {
  const Tensor log_probabilities = widened(given);
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
