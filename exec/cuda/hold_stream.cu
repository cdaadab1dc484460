#include <cuda_runtime_api.h>

#include "exec/cuda/hold_stream.h"

namespace foreshard::exec {
namespace {

constexpr int kThreads = 512;  // of one of NCCL's blocks

__device__ std::uint64_t device_time() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void mark_time(std::uint64_t* mark) { *mark = device_time(); }

__global__ void hold(const std::uint64_t* mark, std::uint64_t duration) {
  const std::uint64_t end = *mark + duration;
  while (device_time() < end) __nanosleep(200);
}

}  // namespace

void mark_stream_time(CUstream_st* stream, std::uint64_t* mark) { mark_time<<<1, 1, 0, stream>>>(mark); }

void hold_stream(CUstream_st* stream, const std::uint64_t* mark, std::int64_t duration, int blocks) {
  hold<<<blocks, kThreads, 0, stream>>>(mark, duration > 0 ? static_cast<std::uint64_t>(duration) : 0);
}

}  // namespace foreshard::exec
