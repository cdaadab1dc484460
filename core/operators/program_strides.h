// Sizes and strides as PyTorch's kernels choose them: what an elementwise kernel gives its result, what broadcasting
// does, where a reshape is a view. Elements throughout; used by ProgramWriter and the rewrites of .pt2 operators.
#pragma once

#include <initializer_list>

#include "core/operators/program_writer.h"

namespace foreshard::families {

/// Strides of a new tensor whose elements lie in memory in the order that the operands' strides suggest
/// (TensorIterator: reorder_dimensions, then compatible strides). Operands are given with broadcast strides.
Dims strides_by_operands(const Dims& sizes, std::initializer_list<const Dims*> operands);

/// Strides of x as seen by an operator whose result has `sizes`: 0 where x is broadcast.
Dims broadcast_strides(const Tensor& x, const Dims& sizes);

Dims broadcast_sizes(const Dims& a, const Dims& b);

/// The strides of x seen with `sizes`, or false where only a copy would do (at::detail::computeStride).
bool view_strides(const Tensor& x, const Dims& sizes, Dims& strides);

}  // namespace foreshard::families
