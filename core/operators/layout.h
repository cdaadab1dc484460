// Sizes and strides as PyTorch's kernels choose them: what an elementwise kernel gives its result, what broadcasting
// does, where a reshape is a view. The one layout algebra: the writer of programs and the lowering both use it.
// Elements throughout, plain values, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "core/dtype.h"
#include "core/model/model.h"

namespace foreshard {

/// Of a tensor, and one for what a rule adds. Windows of videos in einops have eight.
inline constexpr std::size_t kMaxDims = 12;

/// Sizes or strides of one tensor, outermost first.
struct Dims {
  static constexpr int kMaxRank = 10;  // of what programs are written with; lowering takes on two more

  std::array<std::int64_t, kMaxDims> v{};
  std::int32_t n = 0;

  Dims() = default;
  Dims(std::initializer_list<std::int64_t> sizes) {
    for (const std::int64_t size : sizes) push(size);
  }
  /// REQUIRES at most kMaxRank sizes.
  static Dims of(const Shape& shape);

  int rank() const { return n; }
  /// Negative dimensions count from the end.
  std::int64_t operator[](std::int32_t i) const { return v[static_cast<std::size_t>(i < 0 ? i + n : i)]; }
  std::int64_t& operator[](std::int32_t i) { return v[static_cast<std::size_t>(i < 0 ? i + n : i)]; }
  void push(std::int64_t x) { v[static_cast<std::size_t>(n++)] = x; }
  void insert(int dim, std::int64_t size);
  void erase(int dim);
  std::int64_t product() const;
  Shape shape() const { return {v.begin(), v.begin() + n}; }
  bool operator==(const Dims& other) const;
};

/// Sizes, strides (in elements) and type: all of a tensor but its storage.
struct Layout {
  Dims sizes, strides;
  DType dtype = DType::Float32;

  std::int64_t numel() const { return sizes.product(); }
  Bytes bytes() const { return numel() * itemsize(dtype); }
  bool contiguous() const;
  bool dense() const;                          // non-overlapping and dense, in any order of the dimensions
  bool same_steps(const Layout& other) const;  // equal strides wherever there is more than one element
};

/// The first kMaxDims of them.
Dims dims_of(const Shape& shape);
Dims contiguous_strides(const Dims& sizes);
Layout contiguous_layout(const Dims& sizes, DType dtype);
std::int32_t wrap_dim(std::int64_t dim, std::int32_t n);

Dims broadcast_sizes(const Dims& a, const Dims& b);
/// Strides of `x` as seen by an operator whose result has `sizes`: 0 where x is broadcast.
Dims broadcast_strides(const Layout& x, const Dims& sizes);

/// Strides of a new tensor whose elements lie in memory in the order that the operands' strides suggest
/// (TensorIterator: reorder_dimensions, then compatible strides). Operands are given with broadcast strides.
Dims strides_by_operands(const Dims& sizes, std::span<const Dims> operands);
/// The layout that an elementwise kernel gives its result.
Layout elementwise_layout(std::span<const Layout* const> inputs, const Dims& sizes, DType dtype);

/// Strides of a view of `from` with these sizes, or false where only a copy would do (at::detail::computeStride).
bool view_strides(const Layout& from, const Dims& sizes, Dims& strides);

}  // namespace foreshard
