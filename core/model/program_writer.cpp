// Over 600 lines: one short function for each ATen operator that families write, alike in form and read as a list.
#include "core/model/program_writer.h"

#include <algorithm>

#include "core/result.h"

namespace foreshard::families {
namespace {

/// Appends a constant argument, built in place.
template <class T>
void put(Op& op, T value) {
  op.args.emplace_back().value.emplace<T>(value);
}

/// Strides of a new tensor whose elements lie in memory in the order that the operands' strides suggest
/// (TensorIterator: reorder_dimensions, then compatible strides). Operands are given with broadcast strides.
Dims strides_by_operands(const Dims& sizes, std::initializer_list<const Dims*> operands) {
  const int rank = sizes.rank();
  std::array<int, Dims::kMaxRank> order{};  // innermost first
  for (int i = 0; i < rank; ++i) order[static_cast<std::size_t>(i)] = rank - 1 - i;
  const auto compare = [&](int inner, int outer) {
    for (const Dims* strides : operands) {
      const std::int64_t a = (*strides)[inner], b = (*strides)[outer];
      if (a == 0 || b == 0) continue;
      if (a != b) return a < b ? -1 : 1;
      if (sizes[inner] > sizes[outer]) return 1;
    }
    return 0;
  };
  for (int i = 1; i < rank; ++i) {
    int outer = i;
    for (int inner = i - 1; inner >= 0; --inner) {
      const int verdict = compare(order[static_cast<std::size_t>(inner)], order[static_cast<std::size_t>(outer)]);
      if (verdict < 0) break;
      if (verdict > 0) {
        std::swap(order[static_cast<std::size_t>(inner)], order[static_cast<std::size_t>(outer)]);
        outer = inner;
      }
    }
  }
  Dims strides = sizes;
  std::int64_t step = 1;
  for (int i = 0; i < rank; ++i) {
    const int dim = order[static_cast<std::size_t>(i)];
    strides[dim] = step;
    step *= sizes[dim];
  }
  return strides;
}

/// Strides of x as seen by an operator whose result has `sizes`: 0 where x is broadcast.
Dims broadcast_strides(const Tensor& x, const Dims& sizes) {
  Dims strides = sizes;
  const int lead = sizes.rank() - x.sizes.rank();
  for (int i = 0; i < sizes.rank(); ++i) {
    const bool broadcast = i < lead || (x.sizes[i - lead] == 1 && sizes[i] != 1);
    strides[i] = broadcast ? 0 : x.strides[i - lead];
  }
  return strides;
}

Dims broadcast_sizes(const Dims& a, const Dims& b) {
  Dims sizes = a.rank() >= b.rank() ? a : b;
  const Dims& other = a.rank() >= b.rank() ? b : a;
  const int lead = sizes.rank() - other.rank();
  for (int i = 0; i < other.rank(); ++i) {
    if (sizes[i + lead] == 1) sizes[i + lead] = other[i];
  }
  return sizes;
}

/// The strides of x seen with `sizes`, or false where only a copy would do (at::detail::computeStride).
bool view_strides(const Tensor& x, const Dims& sizes, Dims& strides) {
  strides = sizes;
  int view = sizes.rank() - 1;
  std::int64_t chunk_base = x.sizes.rank() > 0 ? x.strides[-1] : 1;
  std::int64_t tensor_numel = 1, view_numel = 1;
  for (int dim = x.sizes.rank() - 1; dim >= 0; --dim) {
    tensor_numel *= x.sizes[dim];
    const bool chunk_ends = dim == 0 || (x.sizes[dim - 1] != 1 && x.strides[dim - 1] != tensor_numel * chunk_base);
    if (!chunk_ends) continue;
    while (view >= 0 && (view_numel < tensor_numel || sizes[view] == 1)) {
      strides[view] = view_numel * chunk_base;
      view_numel *= sizes[view];
      --view;
    }
    if (view_numel != tensor_numel) return false;
    if (dim > 0) {
      chunk_base = x.strides[dim - 1];
      tensor_numel = view_numel = 1;
    }
  }
  for (; view >= 0; --view) strides[view] = 1;  // only sizes of 1 are left
  return true;
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

Dims::Dims(std::initializer_list<std::int64_t> sizes) : rank_(static_cast<int>(sizes.size())) {
  std::copy(sizes.begin(), sizes.end(), at_.begin());
}

Dims Dims::of(const Shape& shape) {
  FORESHARD_CHECK(shape.size() <= static_cast<std::size_t>(kMaxRank),
                  "tensors of the families have at most six dimensions");
  Dims dims;
  dims.rank_ = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), dims.at_.begin());
  return dims;
}

void Dims::insert(int dim, std::int64_t size) {
  const int at = dim < 0 ? dim + rank_ + 1 : dim;
  FORESHARD_CHECK(rank_ < kMaxRank, "tensors of the families have at most six dimensions");
  for (int i = rank_; i > at; --i) at_[static_cast<std::size_t>(i)] = at_[static_cast<std::size_t>(i - 1)];
  at_[static_cast<std::size_t>(at)] = size;
  ++rank_;
}

void Dims::erase(int dim) {
  for (int i = wrap(dim); i + 1 < rank_; ++i) at_[static_cast<std::size_t>(i)] = at_[static_cast<std::size_t>(i + 1)];
  --rank_;
}

std::int64_t Dims::product() const {
  std::int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= at_[static_cast<std::size_t>(i)];
  return n;
}

bool Dims::operator==(const Dims& other) const {
  return rank_ == other.rank_ && std::equal(at_.begin(), at_.begin() + rank_, other.at_.begin());
}

bool Tensor::is_contiguous() const {
  std::int64_t step = 1;
  for (int i = sizes.rank() - 1; i >= 0; --i) {
    if (sizes[i] != 1 && strides[i] != step) return false;
    step *= sizes[i];
  }
  return true;
}

bool Tensor::is_dense() const {
  const int rank = sizes.rank();
  std::int64_t step = 1;
  std::uint32_t left = 0;  // dimensions of more than one element, as bits
  for (int i = 0; i < rank; ++i) left |= sizes[i] > 1 ? 1u << i : 0u;
  while (left != 0) {
    int next = -1;
    for (int i = 0; i < rank; ++i) {
      if ((left & (1u << i)) != 0 && strides[i] == step) next = i;
    }
    if (next < 0) return false;
    step *= sizes[next];
    left &= ~(1u << next);
  }
  return true;
}

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

Dims ProgramWriter::contiguous_strides(const Dims& sizes) {
  Dims strides = sizes;
  std::int64_t step = 1;
  for (int i = sizes.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<std::int64_t>(sizes[i], 1);
  }
  return strides;
}

Dims ProgramWriter::like_strides(const Tensor& x) {
  return x.is_dense() ? x.strides : strides_by_operands(x.sizes, {&x.strides});
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

Tensor ProgramWriter::input(std::string name, const Dims& sizes, DType dtype) {
  const auto index = static_cast<std::int32_t>(model_.values.size());
  model_.values.push_back({std::move(name), sizes.shape(), dtype, false});
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

// --- views
Tensor ProgramWriter::zeros(const Dims& sizes, DType dtype) {
  Op& op = begin("aten.zeros.default", 1);
  op.args.push_back(arg(sizes));
  op.kwargs.push_back({"dtype", Arg{dtype}});
  return result(op, sizes, contiguous_strides(sizes), dtype);
}

// ------------------------------------------------------------------------------------------------------------

bool ProgramWriter::can_view(const Tensor& x, const Dims& sizes) {
  Dims ignored;
  return view_strides(x, sizes, ignored);
}

Tensor ProgramWriter::view_as(std::string_view name, const Tensor& x, const Dims& asked) {
  const Dims sizes = resolve(asked, x.sizes.product());
  Dims strides;
  FORESHARD_CHECK(view_strides(x, sizes, strides), "a view was written where PyTorch would have to copy");
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

// --- element by element ---

Tensor ProgramWriter::binary(std::string_view name, const Tensor& a, const Tensor& b, DType dtype) {
  const Dims sizes = broadcast_sizes(a.sizes, b.sizes);
  const Dims left = broadcast_strides(a, sizes), right = broadcast_strides(b, sizes);
  const bool same = a.sizes == b.sizes && a.strides == b.strides && a.is_dense();
  const Dims strides = same ? a.strides : strides_by_operands(sizes, {&left, &right});
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
  const Dims first = broadcast_strides(condition, sizes), second = broadcast_strides(a, sizes),
             third = broadcast_strides(b, sizes);
  Op& op = begin("aten.where.self", 3);
  for (const Tensor* x : {&condition, &a, &b}) op.args.push_back(arg(*x));
  return result(op, sizes, strides_by_operands(sizes, {&first, &second, &third}), promote(a, b));
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
  const Tensor y = mm(view(x, rows), transposed);
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

Tensor ProgramWriter::nll_loss(const Tensor& log_probabilities, const Tensor& target) {
  Op& op = begin("aten.nll_loss_forward.default", 5);
  op.args.push_back(arg(log_probabilities));
  op.args.push_back(arg(target));
  op.args.emplace_back();
  put(op, std::int64_t{1});     // mean
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
