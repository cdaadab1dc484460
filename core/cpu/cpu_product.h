// What oneDNN keeps beside the result of a product of bfloat16 matrices, by the processor's instructions: the CPU
// device kind's part of the operator rules. Pure functions, bytes.
//
// Source: oneDNN 3.10.2 (LibTorch 2.11's), src/cpu/x64/matmul/brgemm_matmul_utils.cpp and amx_blocking_heuristics.cpp:
// which blocks a product is cut into decides what each thread copies, packs and sums up. The blocks follow from the
// sizes, the number of threads and the second cache; tests/core/cpu/cpu_product_test.cpp holds them against
// recorded allocations.
#pragma once

#include <cstdint>

#include "core/cpu/cpu_isa.h"
#include "core/units.h"

namespace foreshard {

/// [batch, m, k] x [batch, k, n], all bfloat16.
struct CpuProduct {
  std::int64_t batch = 1, m = 0, n = 0, k = 0;
  bool left_transposed = false;  // columns of the left matrix lie together
};

/// One allocation, gone when the product is done; 0: none. `threads` inside the operator, `l2_bytes` a core.
Bytes cpu_product_bytes(const CpuProduct& product, CpuIsa isa, std::int64_t threads, Bytes l2_bytes);

}  // namespace foreshard
