// What LibTorch's CPU kernels allocate beside their results, by operator: the cpu device kind's part of the operator
// rules. Bytes, one entry an allocation, all of them gone when the kernel is done. Pure functions.
//
// Source: PyTorch 2.11, ATen/native/cpu (FlashAttentionKernel.cpp, layer_norm_kernel.cpp), and the allocations that our
// executor counts (tests/exec/operators/host_memory_test.cpp holds both together).
#pragma once

#include <cstdint>
#include <vector>

#include "core/lowering/lowering_tape.h"

namespace foreshard::lowering {

/// Fused attention of q [b, h, s, d] on k [b, hk, t, d] by `threads`.
std::vector<Bytes> cpu_attention_workspace(const Layout& q, const Layout& k, std::int64_t threads);
std::vector<Bytes> cpu_attention_backward_workspace(const Layout& q, const Layout& k, std::int64_t threads);

/// A product (Kernel::m, n, k, batch) of bfloat16 matrices: what oneDNN keeps beside it (core/cpu/cpu_product.h).
/// Nothing for small products and other types.
std::vector<Bytes> cpu_product_workspace(const Kernel& product, const Layout& left, const Layout& right,
                                         const LoweringOptions& machine);

/// Workspace of these sizes: one slot each, until the reference goes.
std::vector<Ref> held(Tape& tape, const std::vector<Bytes>& all);

}  // namespace foreshard::lowering
