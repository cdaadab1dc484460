// ViewWriter: the operators that only look at memory in another way, and those that copy it as it is.
//
// Strides decide where a reshape is a view and where PyTorch copies, so that the operators come out as PyTorch runs
// them.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "core/operators/operator_writer.h"

namespace foreshard::families {

/// Python's end of an open slice.
inline constexpr std::int64_t kSliceEnd = std::numeric_limits<std::int64_t>::max();

class ViewWriter : public OperatorWriter {
 public:
  using OperatorWriter::OperatorWriter;

  // Views
  Tensor view(const Tensor& x, const Dims& asked) { return view_as("aten.view.default", x, asked); }
  Tensor unsafe_view(const Tensor& x, const Dims& asked) { return view_as("aten._unsafe_view.default", x, asked); }
  Tensor expand(const Tensor& x, const Dims& asked);
  Tensor unsqueeze(const Tensor& x, int dim);
  Tensor transpose(const Tensor& x, int dim0, int dim1);
  Tensor permute(const Tensor& x, const Dims& order);
  Tensor t(const Tensor& x);
  Tensor slice(const Tensor& x, int dim, std::int64_t begin, std::int64_t end, std::int64_t step = 1);
  /// x[..., begin:end] of Python: an alias where nothing is left out.
  Tensor index_range(const Tensor& x, int dim, std::int64_t begin, std::int64_t end);
  Tensor select(const Tensor& x, int dim, std::int64_t index);
  Tensor alias(const Tensor& x);
  std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dim);
  static bool can_view(const Tensor& x, const Dims& sizes);

  // Copies
  Tensor to(const Tensor& x, DType dtype, bool layout = false);  // nothing if it has the dtype
  /// What autocast hands an operator of its list in low precision (AT_FORALL_LOWER_PRECISION_FP), of its list in
  /// float32 (AT_FORALL_FP32); x itself outside of autocast. C++ evaluates arguments from the last to the first.
  Tensor narrowed(const Tensor& x);
  Tensor widened(const Tensor& x);
  Tensor clone(const Tensor& x);  // contiguous
  Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : clone(x); }
  Tensor cat(const std::vector<Tensor>& parts, int dim);
  Tensor pad(const Tensor& x, const Dims& padding, double value);
  Tensor copy_in_place(const Tensor& into, const Tensor& from);

 private:
  Tensor view_as(std::string_view op, const Tensor& x, const Dims& asked);
};

}  // namespace foreshard::families
