// Operators that only arrange tensors, and small composites of one or two parts (TensorShape.cpp,
// TensorTransformations.cpp, Linear.cpp of PyTorch 2.11).
#include <algorithm>

#include "core/model/pt2/composites/composite_call.h"

namespace foreshard::pt2 {
namespace {

using families::Dims;
using families::ProgramWriter;
using families::Tensor;

CompositeResults itself(const Call& c) {
  const Tensor* x = c.tensor("self");
  if (x == nullptr || is_complex(x->dtype)) return std::nullopt;
  return {{*x}};
}

CompositeResults broadcast_to(const Call& c) {
  const Tensor* x = c.tensor("self");
  if (x == nullptr) return std::nullopt;
  return {{c.writer.expand(*x, c.described.sizes)}};
}

CompositeResults reshaped(const Call& c) {
  const Tensor* x = c.tensor("self");
  if (x == nullptr || x->sizes.product() == 0) return std::nullopt;
  return {{c.reshape(*x, c.described.sizes)}};
}

CompositeResults turned(const Call& c) {
  const Tensor* x = c.tensor("self");
  if (x == nullptr || x->sizes.rank() < 2 || is_complex(x->dtype)) return std::nullopt;
  return {{c.writer.transpose(*x, x->sizes.rank() - 2, x->sizes.rank() - 1)}};
}

CompositeResults movedim(const Call& c) {
  const Tensor* x = c.tensor("self");
  const auto from = c.list("source"), to = c.list("destination");
  if (x == nullptr || from.size() != to.size()) return std::nullopt;
  const int rank = x->sizes.rank();
  std::vector<std::int64_t> order(static_cast<std::size_t>(rank), -1);
  std::vector<bool> used(static_cast<std::size_t>(rank), false);
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto source = static_cast<std::size_t>(from[i] < 0 ? from[i] + rank : from[i]);
    const auto target = static_cast<std::size_t>(to[i] < 0 ? to[i] + rank : to[i]);
    if (source >= used.size() || target >= used.size()) return std::nullopt;
    order[target] = static_cast<std::int64_t>(source);
    used[source] = true;
  }
  std::size_t next = 0;
  Dims dims;
  for (std::int64_t& place : order) {
    while (place < 0 && used[next]) ++next;
    if (place < 0) place = static_cast<std::int64_t>(next++);
    dims.insert(dims.rank(), place);
  }
  return {{c.writer.permute(*x, dims)}};
}

/// As many dimensions as asked for, ones added as NumPy does.
Tensor at_least(const Call& c, const Tensor& x, int rank) {
  const int own = x.sizes.rank();
  if (own >= rank) return x;
  if (own == 0) return c.reshape(x, rank == 1 ? Dims{1} : rank == 2 ? Dims{1, 1} : Dims{1, 1, 1});
  Tensor made = own == 1 ? c.writer.unsqueeze(x, 0) : x;
  if (rank == 3) made = c.writer.unsqueeze(made, made.sizes.rank());
  return made;
}

template <int kRank>
CompositeResults at_least_one(const Call& c) {
  const Tensor* x = c.tensor("self");
  if (x == nullptr) return std::nullopt;
  return {{at_least(c, *x, kRank)}};
}

template <int kRank>
CompositeResults at_least_each(const Call& c) {
  auto all = c.tensors("tensors");
  if (!all) return std::nullopt;
  for (Tensor& x : *all) x = at_least(c, x, kRank);
  return all;
}

/// hstack, vstack, dstack: dimensions added, then side by side.
template <int kRank>
CompositeResults stacked(const Call& c) {
  auto all = c.tensors("tensors");
  if (!all || all->empty()) return std::nullopt;
  for (Tensor& x : *all) x = at_least(c, x, kRank);
  const int dim = kRank == 1 ? std::min((*all)[0].sizes.rank() - 1, 1) : kRank == 2 ? 0 : 2;
  return {{c.writer.cat(*all, dim)}};
}

CompositeResults column_stack(const Call& c) {
  auto all = c.tensors("tensors");
  if (!all || all->empty()) return std::nullopt;
  for (Tensor& x : *all)
    if (x.sizes.rank() <= 1) x = c.reshape(x, {x.sizes.product(), 1});
  return {{c.writer.cat(*all, 1)}};
}

std::vector<Tensor> grids(const Call& c, std::vector<Tensor> all, bool swapped) {
  if (swapped && all.size() > 1) std::swap(all[0], all[1]);
  Dims shape;
  for (const Tensor& x : all) shape.insert(shape.rank(), x.sizes.product());
  std::vector<Tensor> out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    Dims own = shape;
    for (int d = 0; d < own.rank(); ++d) own[d] = d == static_cast<int>(i) ? shape[d] : 1;
    out.push_back(c.writer.expand(c.reshape(all[i], own), shape));
  }
  if (swapped && all.size() > 1) {
    for (Tensor& x : out) x = c.writer.transpose(x, 0, 1);
    std::swap(out[0], out[1]);
  }
  return out;
}

CompositeResults meshgrid(const Call& c) {
  const auto all = c.tensors("tensors");
  const Pt2Arg* indexing = c.input("indexing");
  if (!all || all->empty() || all->size() > static_cast<std::size_t>(Dims::kMaxRank)) return std::nullopt;
  return grids(c, *all, indexing != nullptr && indexing->text == "xy");
}

CompositeResults cartesian_prod(const Call& c) {
  const auto all = c.tensors("tensors");
  if (!all || all->empty() || all->size() > static_cast<std::size_t>(Dims::kMaxRank)) return std::nullopt;
  if (all->size() == 1) return *all;
  std::vector<Tensor> columns = grids(c, *all, false);
  ArgList list;
  for (Tensor& x : columns) list.push_back(ProgramWriter::arg(x = c.reshape(x, {x.sizes.product()})));
  const Tensor made = c.made("aten.stack.default", {Arg{std::move(list)}, Arg{std::int64_t{1}}},
                             {{c.described.sizes, columns[0].dtype}})[0];
  for (const Tensor& x : columns) c.writer.hold_until_here(x);
  return {{made}};
}

CompositeResults diag(const Call& c) {
  const Tensor* x = c.tensor("self");
  if (x == nullptr || x->sizes.rank() < 1 || x->sizes.rank() > 2) return std::nullopt;
  return {c.made(x->sizes.rank() == 1 ? "aten.diag_embed.default" : "aten.diagonal_copy.default",
                 {ProgramWriter::arg(*x), Arg{c.integer("diagonal", 0)}}, {{c.described.sizes, x->dtype}})};
}

CompositeResults linalg_diagonal(const Call& c) {
  const Tensor* x = c.tensor("A");
  if (x == nullptr || x->sizes.rank() < 2) return std::nullopt;
  const std::int64_t one = c.integer("dim1", -2), two = c.integer("dim2", -1);
  return {c.made("aten.diagonal.default", {ProgramWriter::arg(*x), Arg{c.integer("offset", 0)}, Arg{one}, Arg{two}},
                 {{c.described.sizes, x->dtype}})};
}

/// tensor_split and its kin: every part is a slice.
CompositeResults split_at(const Call& c, const Tensor* x, int dim) {
  if (x == nullptr || dim >= x->sizes.rank()) return std::nullopt;
  std::vector<Tensor> out;
  std::int64_t begin = 0;
  for (const Tensor& part : c.results) {
    const std::int64_t size = part.sizes[dim];
    out.push_back(c.writer.slice(*x, dim, begin, begin + size));
    begin += size;
  }
  const auto cuts = c.list("indices");
  return !cuts.empty() && !std::is_sorted(cuts.begin(), cuts.end()) ? std::nullopt : CompositeResults(std::move(out));
}
CompositeResults tensor_split(const Call& c) {
  const Tensor* x = c.tensor("self");
  return x == nullptr ? std::nullopt : split_at(c, x, c.dim("dim", 0, x->sizes.rank()));
}
CompositeResults hsplit(const Call& c) {
  const Tensor* x = c.tensor("self");
  return x == nullptr ? std::nullopt : split_at(c, x, x->sizes.rank() == 1 ? 0 : 1);
}
CompositeResults vsplit(const Call& c) { return split_at(c, c.tensor("self"), 0); }
CompositeResults dsplit(const Call& c) { return split_at(c, c.tensor("self"), 2); }

CompositeResults flipped(const Call& c, const Dims& dims) {
  const Tensor* x = c.tensor("self");
  if (x == nullptr) return std::nullopt;
  return {{c.writer.emit("aten.flip.default", {ProgramWriter::arg(*x), ProgramWriter::arg(dims)}, {},
                         {{x->sizes, ProgramWriter::like_strides(*x), x->dtype}})[0]}};
}
CompositeResults fliplr(const Call& c) { return flipped(c, Dims{1}); }
CompositeResults flipud(const Call& c) { return flipped(c, Dims{0}); }

CompositeResults sum_to_size(const Call& c) {
  const Tensor* x = c.tensor("self");
  if (x == nullptr) return std::nullopt;
  const Dims& to = c.described.sizes;
  const int lead = x->sizes.rank() - to.rank();
  Dims dims;
  for (int i = 0; i < x->sizes.rank(); ++i)
    if (i < lead || (to[i - lead] == 1 && x->sizes[i] != 1)) dims.insert(dims.rank(), i);
  if (lead < 0) return std::nullopt;
  if (dims.rank() == 0) return {{*x}};
  const Tensor made = c.reduced("aten.sum.dim_IntList", *x, dims, true);
  return {{lead > 0 ? c.writer.view(made, to) : made}};
}

/// One half of every complex number; a real tensor is its own real part.
CompositeResults half(const Call& c, std::int64_t which) {
  const Tensor* x = c.tensor("self");
  if (x == nullptr) return std::nullopt;
  if (!is_complex(x->dtype)) return which == 0 ? CompositeResults({*x}) : std::nullopt;
  Dims sizes = x->sizes, strides = x->strides;
  if (sizes.rank() >= Dims::kMaxRank) return std::nullopt;
  for (int i = 0; i < strides.rank(); ++i) strides[i] *= 2;
  sizes.insert(sizes.rank(), 2);
  strides.insert(strides.rank(), 1);
  const Tensor pairs = c.writer.emit("aten.view_as_real.default", {ProgramWriter::arg(*x)}, {},
                                     {{sizes, strides, c.described.dtype}})[0];
  return {{c.writer.select(pairs, sizes.rank() - 1, which)}};
}
CompositeResults real(const Call& c) { return half(c, 0); }
CompositeResults imag(const Call& c) { return half(c, 1); }

CompositeResults take_along_dim(const Call& c) {
  const Tensor *x = c.tensor("self"), *index = c.tensor("indices");
  if (x == nullptr || index == nullptr) return std::nullopt;
  if (c.none("dim")) {
    const Tensor flat = c.reshape(*x, {x->sizes.product()}), places = c.reshape(*index, {index->sizes.product()});
    return {c.made("aten.gather.default", {ProgramWriter::arg(flat), Arg{std::int64_t{0}}, ProgramWriter::arg(places)},
                   {{places.sizes, x->dtype}})};
  }
  if (x->sizes.rank() != index->sizes.rank()) return std::nullopt;
  const int dim = c.dim("dim", 0, x->sizes.rank());
  Dims from = x->sizes, at = index->sizes;
  for (int i = 0; i < from.rank(); ++i)
    if (i != dim) from[i] = at[i] = std::max(from[i], at[i]);
  return {c.made("aten.gather.default",
                 {ProgramWriter::arg(c.broadcast(*x, from)), Arg{static_cast<std::int64_t>(dim)},
                  ProgramWriter::arg(c.broadcast(*index, at))},
                 {{at, x->dtype}})};
}

CompositeResults outer(const Call& c) {
  const Tensor *a = c.tensor("self"), *b = c.tensor("vec2");
  if (a == nullptr || b == nullptr || a->sizes.rank() != 1) return std::nullopt;
  return {{c.two("aten.mul.Tensor", c.reshape(*a, {a->sizes[0], 1}), *b)}};
}

CompositeResults vecdot(const Call& c) {
  const Tensor *a = c.tensor("x"), *b = c.tensor("y");
  if (a == nullptr || b == nullptr || is_complex(a->dtype) || is_complex(b->dtype)) return std::nullopt;
  if (a->sizes.rank() <= 1 && b->sizes.rank() <= 1) return std::nullopt;
  const Tensor product = c.two("aten.mul.Tensor", *a, *b);
  return {{c.reduced("aten.sum.dim_IntList", product, Dims{c.dim("dim", -1, product.sizes.rank())}, false)}};
}

CompositeResults cross(const Call& c) {
  const Tensor *a = c.tensor("self"), *b = c.tensor("other");
  if (a == nullptr || b == nullptr) return std::nullopt;
  return {{c.two("aten.linalg_cross.default", *a, *b)}};
}

/// Every free dimension of one side in front of the shared ones, and behind them those of the other.
CompositeResults tensordot(const Call& c) {
  const Tensor *a = c.tensor("self"), *b = c.tensor("other");
  const auto left = c.list("dims_self"), right = c.list("dims_other");
  if (a == nullptr || b == nullptr || a->dtype != b->dtype || left.size() != right.size()) return std::nullopt;
  if (a->sizes.product() == 0 || b->sizes.product() == 0) return std::nullopt;
  Dims shared_a, shared_b, free_a, free_b;
  std::int64_t inner = 1, rows = 1, columns = 1;
  for (std::size_t i = 0; i < left.size(); ++i) {
    const std::int64_t one = left[i] < 0 ? left[i] + a->sizes.rank() : left[i];
    const std::int64_t two = right[i] < 0 ? right[i] + b->sizes.rank() : right[i];
    if (a->sizes[static_cast<int>(one)] != b->sizes[static_cast<int>(two)]) return std::nullopt;
    inner *= a->sizes[static_cast<int>(one)];
    shared_a.insert(shared_a.rank(), one);
    shared_b.insert(shared_b.rank(), two);
  }
  const auto has = [](const Dims& dims, std::int64_t x) {
    for (int i = 0; i < dims.rank(); ++i)
      if (dims[i] == x) return true;
    return false;
  };
  for (int i = 0; i < a->sizes.rank(); ++i)
    if (!has(shared_a, i)) free_a.insert(free_a.rank(), i), rows *= a->sizes[i];
  for (int i = 0; i < b->sizes.rank(); ++i)
    if (!has(shared_b, i)) free_b.insert(free_b.rank(), i), columns *= b->sizes[i];
  const auto joined = [](Dims first, const Dims& second) {
    for (int i = 0; i < second.rank(); ++i) first.insert(first.rank(), second[i]);
    return first;
  };
  const Tensor one = c.reshape(c.writer.permute(*a, joined(free_a, shared_a)), {rows, inner});
  const Tensor two = c.reshape(c.writer.permute(*b, joined(shared_b, free_b)), {inner, columns});
  return {{c.reshape(c.writer.mm(one, two), c.described.sizes)}};
}

CompositeResults msort(const Call& c) {
  const Tensor* x = c.tensor("self");
  if (x == nullptr) return std::nullopt;
  return {{c.made("aten.sort.default", {ProgramWriter::arg(*x), Arg{std::int64_t{0}}, Arg{false}},
                  {{x->sizes, x->dtype}, {x->sizes, DType::Int64}})[0]}};
}

/// native_layer_norm over the last few dimensions.
CompositeResults layer_norm(const Call& c) {
  const Tensor *x = c.tensor("input"), *weight = c.tensor("weight"), *bias = c.tensor("bias");
  const auto shape = c.list("normalized_shape");
  const auto normed = static_cast<int>(shape.size());
  if (x == nullptr || normed < 1 || normed > x->sizes.rank() || !c.on_gpu()) return std::nullopt;
  if ((weight == nullptr && !c.none("weight")) || (bias == nullptr && !c.none("bias"))) return std::nullopt;
  Dims statistics = x->sizes;
  for (int i = 0; i < normed; ++i) statistics[x->sizes.rank() - 1 - i] = 1;
  return {{c.made("aten.native_layer_norm.default",
                  {ProgramWriter::arg(*x), ProgramWriter::arg(c.sizes("normalized_shape", 1, normed)),
                   weight != nullptr ? ProgramWriter::arg(*weight) : Arg{},
                   bias != nullptr ? ProgramWriter::arg(*bias) : Arg{}, Arg{c.number("eps", 1e-5)}},
                  {{x->sizes, x->dtype}, {statistics, DType::Float32}, {statistics, DType::Float32}})[0]}};
}

constexpr CompositeRow kShapesRows[] = {
    {"aten.positive.default", &itself},
    {"aten.resolve_conj.default", &itself},
    {"aten.resolve_neg.default", &itself},
    {"aten.broadcast_to.default", &broadcast_to},
    {"aten.view_as.default", &reshaped},
    {"aten.reshape_as.default", &reshaped},
    {"aten.ravel.default", &reshaped},
    {"aten.mT.default", &turned},
    {"aten.mH.default", &turned},
    {"aten.matrix_H.default", &turned},
    {"aten.movedim.intlist", &movedim},
    {"aten.movedim.int", &movedim},
    {"aten.atleast_1d.default", &at_least_one<1>},
    {"aten.atleast_2d.default", &at_least_one<2>},
    {"aten.atleast_3d.default", &at_least_one<3>},
    {"aten.atleast_1d.Sequence", &at_least_each<1>},
    {"aten.atleast_2d.Sequence", &at_least_each<2>},
    {"aten.atleast_3d.Sequence", &at_least_each<3>},
    {"aten.hstack.default", &stacked<1>},
    {"aten.vstack.default", &stacked<2>},
    {"aten.dstack.default", &stacked<3>},
    {"aten.column_stack.default", &column_stack},
    {"aten.meshgrid.default", &meshgrid},
    {"aten.meshgrid.indexing", &meshgrid},
    {"aten.cartesian_prod.default", &cartesian_prod},
    {"aten.diag.default", &diag},
    {"aten.linalg_diagonal.default", &linalg_diagonal},
    {"aten.tensor_split.sections", &tensor_split},
    {"aten.tensor_split.indices", &tensor_split},
    {"aten.hsplit.int", &hsplit},
    {"aten.hsplit.array", &hsplit},
    {"aten.vsplit.int", &vsplit},
    {"aten.vsplit.array", &vsplit},
    {"aten.dsplit.int", &dsplit},
    {"aten.dsplit.array", &dsplit},
    {"aten.fliplr.default", &fliplr},
    {"aten.flipud.default", &flipud},
    {"aten.sum_to_size.default", &sum_to_size},
    {"aten.real.default", &real},
    {"aten.imag.default", &imag},
    {"aten.take_along_dim.default", &take_along_dim},
    {"aten.outer.default", &outer},
    {"aten.linalg_vecdot.default", &vecdot},
    {"aten.cross.default", &cross},
    {"aten.tensordot.default", &tensordot},
    {"aten.msort.default", &msort},
    {"aten.layer_norm.default", &layer_norm},
};

}  // namespace

std::span<const CompositeRow> shape_composites() { return kShapesRows; }

}  // namespace foreshard::pt2
