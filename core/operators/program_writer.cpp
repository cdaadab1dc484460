#include "core/operators/program_writer.h"

#include <algorithm>

#include "core/result.h"

namespace foreshard::families {
namespace {

/// Appends a constant argument, built in place.
template <class T>
void put(Op& op, T value) {
  op.args.emplace_back().value.emplace<T>(value);
}

Dims resolve(const Dims& asked, std::int64_t numel) {
  Dims sizes = asked;
  std::int64_t known = 1;
  int open = -1;
  for (int i = 0; i < sizes.rank(); ++i) {
    if (sizes[i] == -1) {
      open = i;
    } else {
      known *= sizes[i];
    }
  }
  if (open >= 0) sizes[open] = numel / known;
  return sizes;
}

}  // namespace

// --- plumbing ---

Arg ProgramWriter::arg(const Tensor& x) {
  switch (x.kind) {
    case Tensor::Kind::Param: return Arg{ParamRef{ParamId(x.index)}};
    case Tensor::Kind::Buffer: return Arg{BufferRef{x.index}};
    default: return Arg{ValueRef{ValueId(x.index)}};
  }
}

Arg ProgramWriter::arg(const Dims& sizes) {
  ArgList list;
  list.reserve(static_cast<std::size_t>(sizes.rank()));
  for (int i = 0; i < sizes.rank(); ++i) list.emplace_back().value = sizes[i];
  return Arg{std::move(list)};
}

Dims ProgramWriter::like_strides(const Tensor& x) {
  return x.is_dense() ? x.strides : strides_by_operands(x.sizes, {&x.strides, 1});
}

DType ProgramWriter::promote(const Tensor& a, const Tensor& b) {
  if (a.dtype == b.dtype) return a.dtype;
  if (is_floating(a.dtype) != is_floating(b.dtype)) return is_floating(a.dtype) ? a.dtype : b.dtype;
  if (itemsize(a.dtype) != itemsize(b.dtype)) return itemsize(a.dtype) > itemsize(b.dtype) ? a.dtype : b.dtype;
  return DType::Float32;  // bfloat16 with float16
}

Op& ProgramWriter::begin(std::string_view op, std::size_t args) {
  Op& row = model_.ops.emplace_back();
  row.name = op;
  row.module = module_;
  row.call = call_;
  row.region = region_;
  row.args.reserve(args);
  return row;
}

Tensor ProgramWriter::result(Op& op, const Dims& sizes, const Dims& strides, DType dtype) {
  const auto index = static_cast<std::int32_t>(model_.values.size());
  ValueInfo& value = model_.values.emplace_back();
  value.name = "v" + std::to_string(index);
  value.shape = sizes.shape();
  value.dtype = dtype;
  op.out.push_back(ValueId(index));
  return {Tensor::Kind::Value, dtype, index, sizes, strides};
}

std::vector<Tensor> ProgramWriter::emit(std::string_view op, ArgList args, std::vector<NamedArg> kwargs,
                                        const std::vector<Described>& results) {
  Op& row = begin(op, 0);
  row.args = std::move(args);
  row.kwargs = std::move(kwargs);
  std::vector<Tensor> tensors;
  for (const Described& r : results) {
    if (r.tensor) {
      tensors.push_back(result(row, r.sizes, r.strides, r.dtype));
    } else {
      row.out.emplace_back();
      tensors.emplace_back();
    }
  }
  return tensors;
}

void ProgramWriter::hold(const Tensor& x, Hold::Until until, ModuleId by) {
  if (x.kind == Tensor::Kind::Value) model_.values[static_cast<std::size_t>(x.index)].held = {until, -1, by};
}

void ProgramWriter::hold_until_here(const Tensor& x) {
  if (x.kind != Tensor::Kind::Value) return;
  const auto op = static_cast<std::int32_t>(model_.ops.size()) - 1;
  model_.values[static_cast<std::size_t>(x.index)].held = {Hold::Until::Op, op, {}};
}

void ProgramWriter::call(ModuleId module, std::initializer_list<const Tensor*> args) {
  ModuleCall& call = model_.module_calls.emplace_back();
  call.module = module;
  for (const Tensor* arg : args)
    if (arg != nullptr && arg->kind == Tensor::Kind::Value) call.args.emplace_back(arg->index);
}

Tensor ProgramWriter::input(std::string name, const Dims& sizes, DType dtype, const Tensor* same) {
  const auto index = static_cast<std::int32_t>(model_.values.size());
  model_.values.push_back({std::move(name), sizes.shape(), dtype, false});
  if (same != nullptr) model_.values.back().alias_of = ValueId(same->index);
  model_.inputs.push_back(ValueId(index));
  return {Tensor::Kind::Value, dtype, index, sizes, contiguous_strides(sizes)};
}

Tensor ProgramWriter::param(ParamId id) const {
  const Dims sizes = Dims::of(model_.params[id.index()].shape);
  return {Tensor::Kind::Param, dtype_, id.value, sizes, contiguous_strides(sizes)};
}

Tensor ProgramWriter::buffer(std::int32_t index) const {
  const BufferInfo& info = model_.buffers[static_cast<std::size_t>(index)];
  const Dims sizes = Dims::of(info.shape);
  return {Tensor::Kind::Buffer, info.dtype, index, sizes, contiguous_strides(sizes)};
}

// --- creation ---

Tensor ProgramWriter::arange(std::int64_t count) {
  Op& op = begin("aten.arange.default", 1);
  put(op, std::int64_t{count});
  return result(op, {count}, {1}, DType::Int64);
}

Tensor ProgramWriter::scalar(double value, DType dtype, bool layout) {
  Op& op = begin("aten.scalar_tensor.default", 1);
  put(op, value);
  op.kwargs.push_back({"dtype", Arg{dtype}});
  if (layout) op.kwargs.push_back({"layout", Arg{std::string("torch.strided")}});
  return result(op, {}, {}, dtype);
}

Tensor ProgramWriter::ones(const Dims& sizes, DType dtype) {
  Op& op = begin("aten.ones.default", 1);
  op.args.push_back(arg(sizes));
  op.kwargs.push_back({"dtype", Arg{dtype}});
  op.kwargs.push_back({"layout", Arg{std::string("torch.strided")}});
  return result(op, sizes, contiguous_strides(sizes), dtype);
}

Tensor ProgramWriter::zeros(const Dims& sizes, DType dtype) {
  Op& op = begin("aten.zeros.default", 1);
  op.args.push_back(arg(sizes));
  op.kwargs.push_back({"dtype", Arg{dtype}});
  return result(op, sizes, contiguous_strides(sizes), dtype);
}

// --- views ---

bool ProgramWriter::can_view(const Tensor& x, const Dims& sizes) {
  Dims ignored;
  return view_strides(x.layout(), sizes, ignored);
}

Tensor ProgramWriter::view_as(std::string_view name, const Tensor& x, const Dims& asked) {
  const Dims sizes = resolve(asked, x.sizes.product());
  Dims strides;
  FORESHARD_CHECK(view_strides(x.layout(), sizes, strides), "a view was written where PyTorch would have to copy");
  Op& op = begin(name, 2);
  op.args.push_back(arg(x));
  op.args.push_back(arg(asked));
  return result(op, sizes, strides, x.dtype);
}

Tensor ProgramWriter::expand(const Tensor& x, const Dims& asked) {
  Dims sizes = asked, strides = asked;
  const int lead = asked.rank() - x.sizes.rank();
  for (int i = asked.rank() - 1; i >= 0; --i) {
    const std::int64_t own = i < lead ? 1 : x.sizes[i - lead];
    sizes[i] = asked[i] == -1 ? own : asked[i];
    const std::int64_t step =
        i < lead ? (i + 1 < asked.rank() ? sizes[i + 1] * strides[i + 1] : 1) : x.strides[i - lead];
    strides[i] = own == 1 && sizes[i] != 1 ? 0 : step;
  }
  Op& op = begin("aten.expand.default", 2);
  op.args.push_back(arg(x));
  op.args.push_back(arg(asked));
  return result(op, sizes, strides, x.dtype);
}

Tensor ProgramWriter::unsqueeze(const Tensor& x, int dim) {
  Dims sizes = x.sizes, strides = x.strides;
  const int at = dim < 0 ? dim + x.sizes.rank() + 1 : dim;
  strides.insert(at, at < x.sizes.rank() ? x.sizes[at] * x.strides[at] : 1);
  sizes.insert(at, 1);
  Op& op = begin("aten.unsqueeze.default", 2);
  op.args.push_back(arg(x));
  put(op, std::int64_t{dim});
  return result(op, sizes, strides, x.dtype);
}

Tensor ProgramWriter::transpose(const Tensor& x, int dim0, int dim1) {
  Dims sizes = x.sizes, strides = x.strides;
  std::swap(sizes[dim0], sizes[dim1]);
  std::swap(strides[dim0], strides[dim1]);
  Op& op = begin("aten.transpose.int", 3);
  op.args.push_back(arg(x));
  put(op, std::int64_t{dim0});
  put(op, std::int64_t{dim1});
  return result(op, sizes, strides, x.dtype);
}

Tensor ProgramWriter::permute(const Tensor& x, const Dims& order) {
  Dims sizes = x.sizes, strides = x.strides;
  for (int i = 0; i < order.rank(); ++i) {
    sizes[i] = x.sizes[static_cast<int>(order[i])];
    strides[i] = x.strides[static_cast<int>(order[i])];
  }
  Op& op = begin("aten.permute.default", 2);
  op.args.push_back(arg(x));
  op.args.push_back(arg(order));
  return result(op, sizes, strides, x.dtype);
}

Tensor ProgramWriter::t(const Tensor& x) {
  Op& op = begin("aten.t.default", 1);
  op.args.push_back(arg(x));
  return result(op, {x.sizes[1], x.sizes[0]}, {x.strides[1], x.strides[0]}, x.dtype);
}

Tensor ProgramWriter::slice(const Tensor& x, int dim, std::int64_t begin_at, std::int64_t end) {
  Dims sizes = x.sizes;
  sizes[dim] = std::min(end, x.sizes[dim]) - begin_at;
  Op& op = begin("aten.slice.Tensor", 4);
  op.args.push_back(arg(x));
  for (const std::int64_t number : {static_cast<std::int64_t>(dim), begin_at, end}) put(op, std::int64_t{number});
  return result(op, sizes, x.strides, x.dtype);
}

Tensor ProgramWriter::index_range(const Tensor& x, int dim, std::int64_t begin_at, std::int64_t end) {
  return begin_at == 0 && end >= x.sizes[dim] ? alias(x) : slice(x, dim, begin_at, end);
}

Tensor ProgramWriter::select(const Tensor& x, int dim, std::int64_t index) {
  Dims sizes = x.sizes, strides = x.strides;
  sizes.erase(dim);
  strides.erase(dim);
  Op& op = begin("aten.select.int", 3);
  op.args.push_back(arg(x));
  put(op, std::int64_t{dim});
  put(op, std::int64_t{index});
  return result(op, sizes, strides, x.dtype);
}

Tensor ProgramWriter::alias(const Tensor& x) {
  Op& op = begin("aten.alias.default", 1);
  op.args.push_back(arg(x));
  return result(op, x.sizes, x.strides, x.dtype);
}

std::vector<Tensor> ProgramWriter::split(const Tensor& x, std::int64_t size, int dim) {
  Op& op = begin("aten.split.Tensor", 3);
  op.args.push_back(arg(x));
  put(op, std::int64_t{size});
  put(op, std::int64_t{dim});
  std::vector<Tensor> parts;
  Dims sizes = x.sizes;
  for (std::int64_t at = 0; at < x.sizes[dim]; at += size) {
    sizes[dim] = std::min(size, x.sizes[dim] - at);
    parts.push_back(result(op, sizes, x.strides, x.dtype));
  }
  return parts;
}

// --- copies ---

Tensor ProgramWriter::to(const Tensor& x, DType dtype, bool layout) {
  if (x.dtype == dtype) return x;
  Op& op = begin("aten._to_copy.default", 1);
  op.args.push_back(arg(x));
  op.kwargs.push_back({"dtype", Arg{dtype}});
  if (layout) op.kwargs.push_back({"layout", Arg{std::string("torch.strided")}});  // called from C++
  return result(op, x.sizes, like_strides(x), dtype);
}

Tensor ProgramWriter::clone(const Tensor& x) {
  Op& op = begin("aten.clone.default", 1);
  op.args.push_back(arg(x));
  op.kwargs.push_back({"memory_format", Arg{std::string("torch.contiguous_format")}});
  return result(op, x.sizes, contiguous_strides(x.sizes), x.dtype);
}

Tensor ProgramWriter::cat(const std::vector<Tensor>& parts, int dim) {
  Op& op = begin("aten.cat.default", 2);
  ArgList list;
  Dims sizes = parts.front().sizes;
  sizes[dim] = 0;
  for (const Tensor& part : parts) {
    list.push_back(arg(part));
    sizes[dim] += part.sizes[dim];
  }
  op.args.push_back(Arg{std::move(list)});
  put(op, std::int64_t{dim});
  return result(op, sizes, contiguous_strides(sizes), parts.front().dtype);
}

Tensor ProgramWriter::pad(const Tensor& x, const Dims& padding, double value) {
  Dims sizes = x.sizes;
  for (int i = 0; i < padding.rank(); i += 2) sizes[-1 - i / 2] += padding[i] + padding[i + 1];
  Op& op = begin("aten.constant_pad_nd.default", 3);
  op.args.push_back(arg(x));
  op.args.push_back(arg(padding));
  put(op, value);
  return result(op, sizes, contiguous_strides(sizes), x.dtype);
}

}  // namespace foreshard::families
