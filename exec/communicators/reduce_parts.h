// The arithmetic of reductions on the host, shared by the communicators.
//
// Parts are added in the order of ranks, bf16 and fp16 in fp32 and rounded once: the same bits on every rank, whatever
// way the parts have come. A plain function, usable from any thread.
#pragma once

#include <cstddef>
#include <span>

#include "core/dtype.h"
#include "core/plan.h"

namespace foreshard::exec {

/// out[i] = sum, average or maximum of parts[r][i]. `out` may be one of the parts. Throws for other operations and for
/// types that are not reduced.
void reduce_parts(std::byte* out, std::span<const std::byte* const> parts, Numel numel, DType dtype, ReduceOp op);

}  // namespace foreshard::exec
