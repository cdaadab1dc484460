// See views.h.
#include "core/lowering/views/views.h"

#include <algorithm>
#include <utility>

#include "core/lowering/lowering_autograd.h"

namespace foreshard::lowering {
namespace {

/// `otherwise` where a permutation names too few dimensions.
Dims transposed_strides(const Op& op, const Layout& in, const Dims& otherwise) {
  const std::int32_t n = in.sizes.n;
  if (op.name != "aten.permute.default") {
    const bool named = op.name != "aten.t.default" && op.name != "aten.numpy_T.default";
    Dims strides = in.strides;
    if (n >= 2)
      std::swap(strides[wrap_dim(named ? int_arg(op, 1, "dim0", 0) : 0, n)],
                strides[wrap_dim(named ? int_arg(op, 2, "dim1", 1) : 1, n)]);
    return strides;
  }
  Dims strides = otherwise;
  const auto order = list_arg(op, 1, "dims");
  for (std::int32_t i = 0; i < n && static_cast<std::size_t>(i) < order.size(); ++i)
    strides[i] = in.strides[wrap_dim(order[static_cast<std::size_t>(i)], n)];
  return strides;
}

}  // namespace

/// inferExpandGeometry: a dimension of one that is put in front has a step, except before a number.
Dims expanded_strides(const Layout& from, const Dims& sizes) {
  Dims strides = broadcast_strides(from, sizes);
  if (from.sizes.n == 0) return strides;
  for (std::int32_t i = sizes.n - from.sizes.n - 1; i >= 0; --i)
    if (sizes[i] == 1) strides[i] = sizes[i + 1] * strides[i + 1];
  return strides;
}

Dims part_strides(const Op& op, const Layout& in, const Dims& sizes) {
  const std::int32_t n = in.sizes.n;
  const bool scatter =
      op.name.find("_scatter") != std::string::npos;  // whose second argument is the part's new content
  const std::size_t first = scatter ? 2 : 1;
  Dims strides = contiguous_strides(sizes);
  if (op.name.starts_with("aten.as_strided")) {
    const auto given = list_arg(op, 2, "stride");
    for (std::int32_t i = 0; i < strides.n && static_cast<std::size_t>(i) < given.size(); ++i)
      strides[i] = given[static_cast<std::size_t>(i)];
    return strides;
  }
  if (n == 0) return strides;
  Dims made;
  if (op.name.starts_with("aten.diag")) {
    const bool embed = op.name.starts_with("aten.diag_embed");
    const std::int32_t one = wrap_dim(int_arg(op, first + 1, "dim1", embed ? -2 : 0), n);
    const std::int32_t two = wrap_dim(int_arg(op, first + 2, "dim2", embed ? -1 : 1), n);
    for (std::int32_t i = 0; i < n; ++i)
      if (i != one && i != two) made.push(in.strides[i]);
    made.push(in.strides[one] + in.strides[two]);
  } else {
    const std::int32_t dim = wrap_dim(int_arg(op, first, "dim", int_arg(op, first, "dimension", 0)), n);
    const bool select = op.name.starts_with("aten.select"), unfold = op.name.starts_with("aten.unfold");
    const std::int64_t step = int_arg(op, unfold ? 3 : 5, "step", 1);
    for (std::int32_t i = 0; i < n; ++i)
      if (i != dim || !select) made.push(in.strides[i] * (i == dim ? std::max<std::int64_t>(step, 1) : 1));
    if (unfold && made.n < static_cast<std::int32_t>(kMaxDims)) made.push(in.strides[dim]);
  }
  return made.n == sizes.n ? made : strides;
}

Dims strides_of_view(const Op& op, OpForm form, const Layout& in, const Layout& result) {
  Dims strides = contiguous_strides(result.sizes);
  const std::int32_t n = in.sizes.n;
  switch (form) {
    case OpForm::Alias:
      if (result.sizes.n == n) strides = in.strides;
      break;
    case OpForm::View:
    case OpForm::Reshape:
      if (!view_strides(in, result.sizes, strides)) strides = contiguous_strides(result.sizes);
      break;
    case OpForm::Transpose:
      if (result.sizes.n == n && n > 0) strides = transposed_strides(op, in, strides);
      break;
    case OpForm::Unsqueeze: {
      if (result.sizes.n != n + 1) break;
      const std::int32_t dim = wrap_dim(int_arg(op, 1, "dim", 0), n + 1);
      for (std::int32_t i = 0; i <= n; ++i) {
        if (i == dim)
          strides[i] = i < n ? in.sizes[i] * in.strides[i] : 1;
        else
          strides[i] = in.strides[i < dim ? i : i - 1];
      }
      break;
    }
    case OpForm::Squeeze: {
      std::int32_t at = 0;
      for (std::int32_t i = 0; i < n && at < result.sizes.n; ++i)
        if (in.sizes[i] == result.sizes[at] && !(in.sizes[i] == 1 && n - i > result.sizes.n - at))
          strides[at++] = in.strides[i];
      break;
    }
    case OpForm::AsComplex:
      for (std::int32_t i = 0; i < result.sizes.n && i < n; ++i) strides[i] = in.strides[i] / 2;
      break;
    case OpForm::AsReal:
      for (std::int32_t i = 0; i < n && i < result.sizes.n; ++i) strides[i] = in.strides[i] * 2;
      break;
    case OpForm::Expand:
    case OpForm::ExpandEach: strides = expanded_strides(in, result.sizes); break;
    case OpForm::Slice:
      if (result.sizes.n != n) break;
      strides = in.strides;
      if (n > 0 && op.name == "aten.slice.Tensor")
        strides[wrap_dim(int_arg(op, 1, "dim", 0), n)] *= std::max<std::int64_t>(1, int_arg(op, 4, "step", 1));
      break;
    case OpForm::Part: strides = part_strides(op, in, result.sizes); break;
    case OpForm::Select: {
      if (result.sizes.n != n - 1) break;
      const std::int32_t dim = wrap_dim(int_arg(op, 1, "dim", 0), n);
      for (std::int32_t i = 0; i + 1 < n; ++i) strides[i] = in.strides[i < dim ? i : i + 1];
      break;
    }
    default: break;
  }
  return strides;
}

std::int64_t view_offset(const Op& op, OpForm form, const Layout& in, const std::vector<Layout>& results, std::size_t i,
                         std::int64_t offset) {
  const std::int32_t n = in.sizes.n;
  const auto along = [&](std::int64_t dim, std::int64_t steps) {
    return n > 0 ? offset + steps * in.strides[wrap_dim(dim, n)] : offset;
  };
  const auto place = [&](std::int64_t dim, std::int64_t given) {
    if (n == 0) return given;
    const std::int64_t size = in.sizes[wrap_dim(dim, n)];
    return std::clamp<std::int64_t>(given < 0 ? given + size : given, 0, size);
  };
  switch (form) {
    case OpForm::AsComplex: return offset / 2;
    case OpForm::AsReal: return offset * 2;
    case OpForm::Select: {
      const std::int64_t dim = int_arg(op, 1, "dim", 0);
      if (op.name == "aten.unbind.int") return along(dim, static_cast<std::int64_t>(i));
      return along(dim, place(dim, int_arg(op, 2, "index", 0)));
    }
    case OpForm::Slice: {
      const bool one = op.name == "aten.slice.Tensor" || op.name == "aten.narrow.default";
      const std::int64_t dim = one ? int_arg(op, 1, "dim", 0) : int_arg(op, 2, "dim", 0);
      if (one) return along(dim, place(dim, int_arg(op, 2, "start", 0)));
      std::int64_t before = 0;
      for (std::size_t k = 0; k < i && n > 0; ++k) before += results[k].sizes[wrap_dim(dim, n)];
      return along(dim, before);
    }
    case OpForm::Part: {
      if (op.name == "aten.as_strided.default") return int_arg(op, 3, "storage_offset", offset);
      if (op.name != "aten.diagonal.default") return offset;
      const std::int64_t off = int_arg(op, 1, "offset", 0);
      return off >= 0 ? along(int_arg(op, 3, "dim2", 1), off) : along(int_arg(op, 2, "dim1", 0), -off);
    }
    default: return offset;
  }
}

}  // namespace foreshard::lowering
