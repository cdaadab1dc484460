#include "exec/cuda/emulated_cuda.h"

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "exec/cuda/cuda_check.h"
#include "exec/cuda/hold_stream.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

class EmulatedCuda final : public EmulatedDevice {
 public:
  EmulatedCuda(int device, int blocks) : device_(static_cast<c10::DeviceIndex>(device)), blocks_(blocks) {
    const c10::cuda::CUDAGuard guard(device_);
    check(cudaMalloc(&mark_, sizeof(std::uint64_t)),
          "cudaMalloc");  // outside the allocator: it must count the plan's only
  }
  ~EmulatedCuda() override { cudaFree(mark_); }

  void copy(void* to, const void* from, Bytes bytes) override {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream()),
          "cudaMemcpyAsync");
  }
  void scale(void* data, Numel numel, DType dtype, double factor) override {
    tensor_over(data, {numel}, dtype, c10::Device(c10::kCUDA, device_)).mul_(factor);
  }
  void begin() override { mark_stream_time(stream(), static_cast<std::uint64_t*>(mark_)); }
  void hold(std::int64_t duration) override {
    hold_stream(stream(), static_cast<const std::uint64_t*>(mark_), duration, blocks_);
    check(cudaPeekAtLastError(), "hold");
  }

 private:
  cudaStream_t stream() const { return c10::cuda::getCurrentCUDAStream(device_).stream(); }

  c10::DeviceIndex device_;
  int blocks_;
  void* mark_ = nullptr;
};

}  // namespace

std::unique_ptr<EmulatedDevice> emulated_cuda(int device, int blocks) {
  return std::make_unique<EmulatedCuda>(device, blocks);
}

}  // namespace foreshard::exec
