#include "core/operators/layout.h"

#include <algorithm>
#include <vector>

#include "core/result.h"

namespace foreshard {

Dims Dims::of(const Shape& shape) {
  FORESHARD_CHECK(shape.size() <= static_cast<std::size_t>(kMaxRank),
                  "tensors of the families have at most ten dimensions");
  return dims_of(shape);
}

void Dims::insert(int dim, std::int64_t size) {
  const int at = dim < 0 ? dim + n + 1 : dim;
  FORESHARD_CHECK(n < static_cast<int>(kMaxDims), "a tensor has at most twelve dimensions");
  for (int i = n; i > at; --i) v[static_cast<std::size_t>(i)] = v[static_cast<std::size_t>(i - 1)];
  v[static_cast<std::size_t>(at)] = size;
  ++n;
}

void Dims::erase(int dim) {
  for (int i = dim < 0 ? dim + n : dim; i + 1 < n; ++i)
    v[static_cast<std::size_t>(i)] = v[static_cast<std::size_t>(i + 1)];
  --n;
}

std::int64_t Dims::product() const {
  std::int64_t all = 1;
  for (std::int32_t i = 0; i < n; ++i) all *= v[static_cast<std::size_t>(i)];
  return all;
}

bool Dims::operator==(const Dims& other) const {
  return n == other.n && std::equal(v.begin(), v.begin() + n, other.v.begin());
}

bool Layout::contiguous() const {
  std::int64_t expected = 1;
  for (std::int32_t i = sizes.n - 1; i >= 0; --i) {
    if (sizes[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

bool Layout::dense() const {
  std::array<std::int32_t, kMaxDims> order{};
  std::int32_t count = 0;
  for (std::int32_t i = 0; i < sizes.n; ++i)
    if (sizes[i] != 1) order[static_cast<std::size_t>(count++)] = i;
  std::sort(order.begin(), order.begin() + count,
            [&](std::int32_t a, std::int32_t b) { return strides[a] < strides[b]; });
  std::int64_t expected = 1;
  for (std::int32_t k = 0; k < count; ++k) {
    const std::int32_t dim = order[static_cast<std::size_t>(k)];
    if (strides[dim] != expected) return false;
    expected *= sizes[dim];
  }
  return true;
}

bool Layout::same_steps(const Layout& other) const {
  if (sizes.n != other.sizes.n) return false;
  for (std::int32_t i = 0; i < sizes.n; ++i)
    if (sizes[i] > 1 && strides[i] != other.strides[i]) return false;
  return true;
}

Dims dims_of(const Shape& shape) {
  Dims dims;
  for (const std::int64_t size : shape)
    if (dims.n < static_cast<std::int32_t>(kMaxDims)) dims.push(size);
  return dims;
}

Dims contiguous_strides(const Dims& sizes) {
  Dims strides;
  strides.n = sizes.n;
  std::int64_t step = 1;
  for (std::int32_t i = sizes.n - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<std::int64_t>(sizes[i], 1);
  }
  return strides;
}

Layout contiguous_layout(const Dims& sizes, DType dtype) { return {sizes, contiguous_strides(sizes), dtype}; }

std::int32_t wrap_dim(std::int64_t dim, std::int32_t n) {
  const std::int64_t wrapped = dim < 0 ? dim + std::max(n, 1) : dim;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(wrapped, 0, std::max(n - 1, 0)));
}

Dims broadcast_sizes(const Dims& a, const Dims& b) {
  Dims sizes = a.n >= b.n ? a : b;
  const Dims& other = a.n >= b.n ? b : a;
  const std::int32_t lead = sizes.n - other.n;
  for (std::int32_t i = 0; i < other.n; ++i)
    if (sizes[i + lead] == 1) sizes[i + lead] = other[i];
  return sizes;
}

Dims broadcast_strides(const Layout& x, const Dims& sizes) {
  Dims strides;
  strides.n = sizes.n;
  const std::int32_t lead = sizes.n - x.sizes.n;
  for (std::int32_t i = 0; i < sizes.n; ++i) {
    const bool broadcast = i < lead || (x.sizes[i - lead] == 1 && sizes[i] != 1);
    strides[i] = broadcast ? 0 : x.strides[i - lead];
  }
  return strides;
}

Dims strides_by_operands(const Dims& sizes, std::span<const Dims> operands) {
  std::array<std::int32_t, kMaxDims> order{};  // innermost first
  for (std::int32_t i = 0; i < sizes.n; ++i) order[static_cast<std::size_t>(i)] = sizes.n - 1 - i;
  const auto swaps = [&](std::int32_t inner, std::int32_t outer) {  // > 0: they change places, < 0: never
    for (const Dims& strides : operands) {
      const std::int64_t a = strides[inner], b = strides[outer];
      if (a == 0 || b == 0) continue;
      if (a != b) return a < b ? -1 : 1;
      if (sizes[inner] > sizes[outer]) return 1;
    }
    return 0;
  };
  for (std::int32_t i = 1; i < sizes.n; ++i) {  // insertion sort with an ambiguous comparison
    std::int32_t at = i;
    for (std::int32_t j = i - 1; j >= 0; --j) {
      const int verdict = swaps(order[static_cast<std::size_t>(j)], order[static_cast<std::size_t>(at)]);
      if (verdict < 0) break;
      if (verdict > 0) {
        std::swap(order[static_cast<std::size_t>(j)], order[static_cast<std::size_t>(at)]);
        at = j;
      }
    }
  }
  Dims strides;
  strides.n = sizes.n;
  std::int64_t step = 1;
  for (std::int32_t k = 0; k < sizes.n; ++k) {
    const std::int32_t dim = order[static_cast<std::size_t>(k)];
    strides[dim] = step;
    step *= std::max<std::int64_t>(sizes[dim], 1);
  }
  return strides;
}

Layout elementwise_layout(std::span<const Layout* const> inputs, const Dims& sizes, DType dtype) {
  constexpr std::size_t kFew = 4;
  std::array<Dims, kFew> few;
  std::vector<Dims> many;
  if (inputs.size() > kFew) many.resize(inputs.size());
  Dims* const operands = inputs.size() > kFew ? many.data() : few.data();
  for (std::size_t i = 0; i < inputs.size(); ++i) operands[i] = broadcast_strides(*inputs[i], sizes);
  return {sizes, strides_by_operands(sizes, {operands, inputs.size()}), dtype};
}

bool view_strides(const Layout& from, const Dims& sizes, Dims& strides) {
  strides = Dims{};
  strides.n = sizes.n;
  if (from.sizes.n == 0 || from.numel() == 0) {
    strides = contiguous_strides(sizes);
    return true;
  }
  std::int32_t view_dim = sizes.n - 1;
  std::int64_t chunk_stride = from.strides[from.sizes.n - 1];
  std::int64_t from_numel = 1, view_numel = 1;
  for (std::int32_t dim = from.sizes.n - 1; dim >= 0; --dim) {
    from_numel *= from.sizes[dim];
    const bool ends = dim == 0 || (from.sizes[dim - 1] != 1 && from.strides[dim - 1] != from_numel * chunk_stride);
    if (!ends) continue;
    while (view_dim >= 0 && (view_numel < from_numel || sizes[view_dim] == 1)) {
      strides[view_dim] = view_numel * chunk_stride;
      view_numel *= sizes[view_dim];
      --view_dim;
    }
    if (view_numel != from_numel) return false;
    if (dim > 0) {
      chunk_stride = from.strides[dim - 1];
      from_numel = 1;
      view_numel = 1;
    }
  }
  return view_dim == -1;
}

}  // namespace foreshard
