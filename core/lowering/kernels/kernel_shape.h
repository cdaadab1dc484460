// What of a kernel's operands decides how fast it runs beside its operations and bytes. Pure functions.
#pragma once

#include "core/lowering/lowering.h"
#include "core/lowering/lowering_autograd.h"

namespace foreshard::lowering {

/// Whether cuBLAS cannot read this matrix (of a batch, where it has three dimensions): it gets a copy in rows.
bool cublas_copies(const Layout& matrix);

/// Kernel::alignment of a product with a contiguous result of `columns` columns: of the distances between rows
/// (columns, where these are what lies together), and between batches.
std::int32_t product_alignment(const Layout& left, const Layout& right, std::int64_t columns);

/// The fields of Kernel that are of attention, for queries and keys [b, h, s, d]; nothing of others.
void describe_attention(Kernel& kernel, const Op& op, const Layout& queries, const Layout& keys, bool backward);

/// Bytes that a loss reads of its inputs, where these are not all of them, once.
Bytes loss_reads(OpFormula formula, const Layout& input, Bytes all);

}  // namespace foreshard::lowering
