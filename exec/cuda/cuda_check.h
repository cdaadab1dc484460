// What the CUDA runtime says, as an error of ours.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <stdexcept>

namespace foreshard::exec {

/// Asynchronous errors are noticed late, and once.
inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // so that it is reported once
  throw std::runtime_error(fmt::format(
      "{}: {} ({}). CUDA reports errors late: an earlier instruction may be the cause; CUDA_LAUNCH_BLOCKING=1 finds it",
      call, cudaGetErrorString(status), cudaGetErrorName(status)));
}

}  // namespace foreshard::exec
