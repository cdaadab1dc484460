#include "exec/cuda/cuda_device.h"

#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdlib>
#include <utility>

namespace foreshard::exec {
namespace {

Error no_device(cudaError_t status, std::string hint) {
  return Error{.code = ErrorCode::Unsupported,
               .message = fmt::format("no CUDA device can be used: {}", cudaGetErrorString(status)),
               .place = "--backend cuda",
               .expected = "a driver that serves this program's CUDA, and a card",
               .hint = std::move(hint)};
}

/// " (CUDA_VISIBLE_DEVICES is \"7\")", if it is set.
std::string visible() {
  const char* shown = std::getenv("CUDA_VISIBLE_DEVICES");
  return shown == nullptr ? "" : fmt::format(" (CUDA_VISIBLE_DEVICES is \"{}\")", shown);
}

std::string why_none(int driver) {
  if (std::getenv("CUDA_VISIBLE_DEVICES") != nullptr) {
    return "CUDA_VISIBLE_DEVICES may name no card of this machine: `nvidia-smi -L` lists them, unset it to see all" +
           visible();
  }
  if (driver == 0) {
    return "the NVIDIA driver is not loaded: nvidia-smi tells why (in a container: was it started with --gpus?); "
           "--backend host runs without a GPU";
  }
  return "there is a driver, but no card: nvidia-smi -L; --backend host runs without a GPU";
}

}  // namespace

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

Result<CudaDevice> cuda_device(int index) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (status == cudaErrorInsufficientDriver && driver > 0) {
    return fail(
        no_device(status, fmt::format("the driver serves CUDA {}.{}, this program wants {}.{}: update the NVIDIA "
                                      "driver, or run with --backend host",
                                      driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10)));
  }
  if (driver == 0) return fail(no_device(cudaErrorNoDevice, why_none(driver)));  // whatever the runtime calls it
  if (status != cudaSuccess || count == 0) {
    return fail(no_device(status == cudaSuccess ? cudaErrorNoDevice : status, why_none(driver)));
  }
  if (index < 0 || index >= count) {
    return fail(Error{
        .code = ErrorCode::OutOfRange,
        .message = fmt::format("there is no CUDA device {}", index),
        .place = "--backend cuda",
        .expected = fmt::format("0 to {}", count - 1),
        .got = std::to_string(index),
        .hint = "each rank takes the card of its local rank: start as many ranks as there are cards" + visible()});
  }
  CudaDevice device;
  cudaDeviceProp properties{};
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  std::size_t free = 0, total = 0;
  if (const cudaError_t asked = cudaGetDeviceProperties(&properties, index); asked != cudaSuccess) {
    return fail(no_device(asked, "nvidia-smi tells the state of the card"));
  }
  if (const cudaError_t asked = cudaMemGetInfo(&free, &total); asked != cudaSuccess) {
    return fail(no_device(asked, "another process may hold the card exclusively: nvidia-smi"));
  }
  device.driver_version = driver;
  device.runtime_version = runtime;
  device.name = properties.name;
  device.major = properties.major;
  device.minor = properties.minor;
  device.multiprocessors = properties.multiProcessorCount;
  device.total_memory = static_cast<Bytes>(total);
  device.free_memory = static_cast<Bytes>(free);
  return device;
}

}  // namespace foreshard::exec
