// What oneDNN keeps beside the gradient of a convolution's filters where the processor has tiles (AMX): part of the CPU
// device kind's operator rules. Pure functions, bytes.
//
// Source: oneDNN 3.10.2 (LibTorch 2.11's), src/cpu/x64/jit_brgemm_conv_utils.cpp: images and gradients are turned so
// that a row of positions lies together, padded to whole tiles, and the filters' gradient is summed in float before it
// is narrowed. Without tiles its buffers are small beside the tensors and are left out.
#pragma once

#include <cstdint>
#include <vector>

#include "core/units.h"

namespace foreshard {

/// Two-dimensional, one group, bfloat16. Per dimension: [height, width].
struct CpuConvolution {
  std::int64_t images = 1, channels = 0, filters = 0;
  std::int64_t in[2] = {0, 0}, out[2] = {0, 0}, filter[2] = {1, 1}, stride[2] = {1, 1}, padding[2] = {0, 0};
  bool bias = false;
};

/// Allocations of the gradient of the filters: first what is freed before its result is made, then the filters'
/// gradient as oneDNN lays it out, which lives until it is copied into the result. `threads` inside the operator,
/// `l2_bytes` a core.
struct CpuConvolutionBuffers {
  std::vector<Bytes> before_result;
  Bytes beside_result = 0;
};
CpuConvolutionBuffers cpu_filter_gradient_buffers(const CpuConvolution& convolution, std::int64_t threads,
                                                  Bytes l2_bytes);

}  // namespace foreshard
