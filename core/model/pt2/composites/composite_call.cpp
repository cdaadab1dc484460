#include "core/model/pt2/composites/composite_call.h"

#include <algorithm>

namespace foreshard::pt2 {

using families::Dims;
using families::ProgramWriter;
using families::Tensor;

// --- arguments ---

const Pt2Arg* Call::input(std::string_view name) const {
  for (const Pt2Input& in : node.inputs) {
    if (in.name == name) return &in.arg;
  }
  return nullptr;
}

const Tensor* Call::tensor(std::string_view name) const {
  const Pt2Arg* arg = input(name);
  if (arg == nullptr || arg->kind != Pt2Arg::Kind::Tensor) return nullptr;
  const auto found = names.find(arg->text);
  return found == names.end() || !found->second.exact ? nullptr : &found->second.tensor;
}

std::optional<std::vector<Tensor>> Call::tensors(std::string_view name) const {
  const Pt2Arg* arg = input(name);
  if (arg == nullptr || arg->kind != Pt2Arg::Kind::List) return std::nullopt;
  std::vector<Tensor> out;
  for (const Pt2Arg& item : arg->items) {
    const auto found = item.kind == Pt2Arg::Kind::Tensor ? names.find(item.text) : names.end();
    if (found == names.end() || !found->second.exact) return std::nullopt;
    out.push_back(found->second.tensor);
  }
  return out;
}

bool Call::none(std::string_view name) const {
  const Pt2Arg* arg = input(name);
  return arg == nullptr || arg->kind == Pt2Arg::Kind::None;
}

double Call::number(std::string_view name, double otherwise) const {
  const Pt2Arg* arg = input(name);
  if (arg == nullptr || arg->kind == Pt2Arg::Kind::None) return otherwise;
  return arg->kind == Pt2Arg::Kind::Float ? arg->real : static_cast<double>(arg->integer);
}

std::int64_t Call::integer(std::string_view name, std::int64_t otherwise) const {
  const Pt2Arg* arg = input(name);
  return arg == nullptr || arg->kind != Pt2Arg::Kind::Int ? otherwise : arg->integer;
}

Dims Call::sizes(std::string_view name, std::int64_t otherwise, int rank) const {
  Dims out;
  const Pt2Arg* arg = input(name);
  for (int i = 0; i < rank; ++i) {
    std::int64_t size = otherwise;
    if (arg != nullptr && !arg->items.empty())
      size = arg->items[std::min<std::size_t>(static_cast<std::size_t>(i), arg->items.size() - 1)].integer;
    out.insert(i, size);
  }
  return out;
}

std::vector<std::int64_t> Call::list(std::string_view name) const {
  std::vector<std::int64_t> out;
  const Pt2Arg* arg = input(name);
  if (arg == nullptr) return out;
  if (arg->kind == Pt2Arg::Kind::Int) out.push_back(arg->integer);
  for (const Pt2Arg& item : arg->items) out.push_back(item.integer);
  return out;
}

int Call::dim(std::string_view name, std::int64_t otherwise, int rank) const {
  const std::int64_t asked = integer(name, otherwise);
  return static_cast<int>(std::clamp<std::int64_t>(asked < 0 ? asked + rank : asked, 0, std::max(rank - 1, 0)));
}

// --- parts ---

Tensor Call::two(std::string_view op, const Tensor& a, const Tensor& b) const {
  DType dtype = a.dtype;
  if (a.dtype != b.dtype) {
    const bool wider = itemsize(b.dtype) > itemsize(a.dtype);
    if (is_floating(a.dtype) != is_floating(b.dtype))
      dtype = is_floating(a.dtype) ? a.dtype : b.dtype;
    else if (itemsize(a.dtype) == itemsize(b.dtype) && is_floating(a.dtype))
      dtype = DType::Float32;
    else
      dtype = wider ? b.dtype : a.dtype;
  }
  return writer.binary(op, a, b, dtype);
}

Tensor Call::test(std::string_view op, const Tensor& x, double value) const {
  return writer.with_scalar(op, x, Arg{value}, DType::Bool);
}

Tensor Call::num(std::string_view op, const Tensor& x, double value) const {
  return writer.with_scalar(op, x, Arg{value});
}

Tensor Call::in_place(std::string_view op, const Tensor& x, ArgList rest) const {
  ArgList args{ProgramWriter::arg(x)};
  for (Arg& arg : rest) args.push_back(std::move(arg));
  writer.emit(op, std::move(args), {}, {{x.sizes, x.strides, x.dtype, false}});
  model.ops.back().out = {ValueId(x.index)};
  return x;
}

Tensor Call::reduced(std::string_view op, const Tensor& x) const {
  return writer.emit(op, {ProgramWriter::arg(x)}, {}, {{{}, {}, x.dtype}})[0];
}

Tensor Call::reduced(std::string_view op, const Tensor& x, const Dims& dims, bool keep, ArgList rest) const {
  Dims sizes;
  for (int i = 0; i < x.sizes.rank(); ++i) {
    bool gone = dims.rank() == 0;
    for (int d = 0; d < dims.rank(); ++d) gone = gone || dims[d] == i || dims[d] == i - x.sizes.rank();
    if (!gone)
      sizes.insert(sizes.rank(), x.sizes[i]);
    else if (keep)
      sizes.insert(sizes.rank(), 1);
  }
  ArgList args{ProgramWriter::arg(x)};
  for (Arg& arg : rest) args.push_back(std::move(arg));
  args.push_back(ProgramWriter::arg(dims));
  args.push_back(Arg{keep});
  return writer.emit(op, std::move(args), {}, {{sizes, ProgramWriter::contiguous_strides(sizes), x.dtype}})[0];
}

Tensor Call::loss(const Tensor& elements) const {
  const std::int64_t kind = integer("reduction", 1);
  return kind == 0 ? elements : reduced(kind == 2 ? "aten.sum.default" : "aten.mean.default", elements);
}

Tensor Call::reshape(const Tensor& x, const Dims& sizes) const {
  if (x.sizes == sizes) return x;
  return ProgramWriter::can_view(x, sizes) ? writer.view(x, sizes) : writer.unsafe_view(writer.clone(x), sizes);
}

Tensor Call::squeeze(const Tensor& x, int dim) const {
  Dims sizes = x.sizes, strides = x.strides;
  const int at = dim < 0 ? dim + sizes.rank() : dim;
  sizes.erase(at);
  strides.erase(at);
  return writer.emit("aten.squeeze.dim", {ProgramWriter::arg(x), Arg{std::int64_t{at}}}, {},
                     {{sizes, strides, x.dtype}})[0];
}

std::vector<Tensor> Call::made(std::string_view op, ArgList args,
                               std::initializer_list<std::pair<Dims, DType>> shapes) const {
  std::vector<ProgramWriter::Described> all;
  for (const auto& [shape, dtype] : shapes) all.push_back({shape, ProgramWriter::contiguous_strides(shape), dtype});
  return writer.emit(op, std::move(args), {}, all);
}

}  // namespace foreshard::pt2
