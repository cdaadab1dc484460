// How results that share a tensor's storage lie in it: strides, and where they begin (ATen: TensorShape.cpp, view
// functions). Internal to lowering.
#pragma once

#include <cstdint>
#include <vector>

#include "core/lowering/lowering_tape.h"
#include "core/lowering/op_rules.h"

namespace foreshard::lowering {

/// Strides of `from` spread over `sizes`: none where one element becomes several.
Dims expanded_strides(const Layout& from, const Dims& sizes);

/// Strides of the part of `in` that diagonal, unfold, as_strided, or select, slice and diagonal_scatter are about.
Dims part_strides(const Op& op, const Layout& in, const Dims& sizes);

/// Strides of a result of this form and size; contiguous where the form says nothing about it.
Dims strides_of_view(const Op& op, OpForm form, const Layout& in, const Layout& result);

/// Where in the storage result `i` begins, in its own elements, if the tensor that is looked at begins at `offset`.
std::int64_t view_offset(const Op& op, OpForm form, const Layout& in, const std::vector<Layout>& results, std::size_t i,
                         std::int64_t offset);

}  // namespace foreshard::lowering
