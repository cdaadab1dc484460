#include "core/operators/view_writer.h"

#include <algorithm>
#include <utility>

#include "core/result.h"

namespace foreshard::families {
namespace {

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

bool ViewWriter::can_view(const Tensor& x, const Dims& sizes) {
  Dims ignored;
  return view_strides(x.layout(), sizes, ignored);
}

Tensor ViewWriter::view_as(std::string_view name, const Tensor& x, const Dims& asked) {
  const Dims sizes = resolve(asked, x.sizes.product());
  Dims strides;
  FORESHARD_CHECK(view_strides(x.layout(), sizes, strides), "a view was written where PyTorch would have to copy");
  Op& op = begin(name, 2);
  op.args.push_back(arg(x));
  op.args.push_back(arg(asked));
  return result(op, sizes, strides, x.dtype);
}

Tensor ViewWriter::expand(const Tensor& x, const Dims& asked) {
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

Tensor ViewWriter::unsqueeze(const Tensor& x, int dim) {
  Dims sizes = x.sizes, strides = x.strides;
  const int at = dim < 0 ? dim + x.sizes.rank() + 1 : dim;
  strides.insert(at, at < x.sizes.rank() ? x.sizes[at] * x.strides[at] : 1);
  sizes.insert(at, 1);
  Op& op = begin("aten.unsqueeze.default", 2);
  op.args.push_back(arg(x));
  put(op, std::int64_t{dim});
  return result(op, sizes, strides, x.dtype);
}

Tensor ViewWriter::transpose(const Tensor& x, int dim0, int dim1) {
  Dims sizes = x.sizes, strides = x.strides;
  std::swap(sizes[dim0], sizes[dim1]);
  std::swap(strides[dim0], strides[dim1]);
  Op& op = begin("aten.transpose.int", 3);
  op.args.push_back(arg(x));
  put(op, std::int64_t{dim0});
  put(op, std::int64_t{dim1});
  return result(op, sizes, strides, x.dtype);
}

Tensor ViewWriter::permute(const Tensor& x, const Dims& order) {
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

Tensor ViewWriter::t(const Tensor& x) {
  Op& op = begin("aten.t.default", 1);
  op.args.push_back(arg(x));
  return result(op, {x.sizes[1], x.sizes[0]}, {x.strides[1], x.strides[0]}, x.dtype);
}

Tensor ViewWriter::slice(const Tensor& x, int dim, std::int64_t begin_at, std::int64_t end, std::int64_t step) {
  Dims sizes = x.sizes, strides = x.strides;
  sizes[dim] = (std::min(end, x.sizes[dim]) - begin_at + step - 1) / step;
  strides[dim] *= step;
  Op& op = begin("aten.slice.Tensor", 5);
  op.args.push_back(arg(x));
  for (const std::int64_t number : {static_cast<std::int64_t>(dim), begin_at, end}) put(op, std::int64_t{number});
  if (step != 1) put(op, std::int64_t{step});  // 1 is the schema's default
  return result(op, sizes, strides, x.dtype);
}

Tensor ViewWriter::index_range(const Tensor& x, int dim, std::int64_t begin_at, std::int64_t end) {
  return begin_at == 0 && end >= x.sizes[dim] ? alias(x) : slice(x, dim, begin_at, end);
}

Tensor ViewWriter::select(const Tensor& x, int dim, std::int64_t index) {
  Dims sizes = x.sizes, strides = x.strides;
  sizes.erase(dim);
  strides.erase(dim);
  Op& op = begin("aten.select.int", 3);
  op.args.push_back(arg(x));
  put(op, std::int64_t{dim});
  put(op, std::int64_t{index});
  return result(op, sizes, strides, x.dtype);
}

Tensor ViewWriter::alias(const Tensor& x) {
  Op& op = begin("aten.alias.default", 1);
  op.args.push_back(arg(x));
  return result(op, x.sizes, x.strides, x.dtype);
}

std::vector<Tensor> ViewWriter::split(const Tensor& x, std::int64_t size, int dim) {
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

Tensor ViewWriter::to(const Tensor& x, DType dtype, bool layout) {
  if (x.dtype == dtype) return x;
  Op& op = begin("aten._to_copy.default", 1);
  op.args.push_back(arg(x));
  op.kwargs.push_back({"dtype", Arg{dtype}});
  if (layout) op.kwargs.push_back({"layout", Arg{std::string("torch.strided")}});  // called from C++
  return result(op, x.sizes, like_strides(x), dtype);
}

Tensor ViewWriter::narrowed(const Tensor& x) {
  const std::optional<DType> low = kernels().autocast;
  if (!low || !is_floating(x.dtype) || x.dtype == DType::Float64) return x;
  const Tensor cast = to(x, *low);
  if (x.kind == Tensor::Kind::Param && x.dtype == DType::Float32) hold_for_autocast(cast);
  return cast;
}

Tensor ViewWriter::widened(const Tensor& x) {
  if (!kernels().autocast || !is_floating(x.dtype) || x.dtype == DType::Float64) return x;
  return to(x, DType::Float32);
}

Tensor ViewWriter::clone(const Tensor& x) {
  Op& op = begin("aten.clone.default", 1);
  op.args.push_back(arg(x));
  op.kwargs.push_back({"memory_format", Arg{std::string("torch.contiguous_format")}});
  return result(op, x.sizes, contiguous_strides(x.sizes), x.dtype);
}

Tensor ViewWriter::cat(const std::vector<Tensor>& parts, int dim) {
  Op& op = begin("aten.cat.default", 2);
  ArgList list;
  Dims sizes = parts.front().sizes;
  sizes[dim] = 0;
  DType dtype = parts.front().dtype;
  for (const Tensor& part : parts) {
    list.push_back(arg(part));
    sizes[dim] += part.sizes[dim];
    if (itemsize(part.dtype) > itemsize(dtype)) dtype = part.dtype;
  }
  op.args.push_back(Arg{std::move(list)});
  put(op, std::int64_t{dim});
  return result(op, sizes, contiguous_strides(sizes), dtype);
}

Tensor ViewWriter::pad(const Tensor& x, const Dims& padding, double value) {
  Dims sizes = x.sizes;
  for (int i = 0; i < padding.rank(); i += 2) sizes[-1 - i / 2] += padding[i] + padding[i + 1];
  Op& op = begin("aten.constant_pad_nd.default", 3);
  op.args.push_back(arg(x));
  op.args.push_back(arg(padding));
  put(op, value);
  return result(op, sizes, contiguous_strides(sizes), x.dtype);
}

Tensor ViewWriter::copy_in_place(const Tensor& into, const Tensor& from) {
  Op& op = begin("aten.copy_.default", 2);
  op.args.push_back(arg(into));
  op.args.push_back(arg(from));
  op.out.push_back(ValueId(into.index));
  return into;
}

}  // namespace foreshard::families
