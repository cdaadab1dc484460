#include "exec/cuda/card_state.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

#include "exec/cuda/nvml_calls.h"

namespace foreshard::exec {
namespace {

// Deprecated since CUDA 13, whose drivers still have it; older ones have nothing else.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
using GetTemperature = decltype(&nvmlDeviceGetTemperature);
#pragma GCC diagnostic pop

class Nvml {
 public:
  Nvml() {
    // LibTorch, or a test, may have brought it already.
    library_ = dlsym(RTLD_DEFAULT, "nvmlInit_v2") != nullptr ? dlopen(nullptr, RTLD_NOW)
                                                             : dlopen("libnvidia-ml.so.1", RTLD_NOW);
    const auto init = find<decltype(&nvmlInit_v2)>("nvmlInit_v2");
    ready_ = init != nullptr && init() == NVML_SUCCESS;
  }

  bool ready() const { return ready_; }

  /// A function of that type; null: this driver has none.
  template <class F>
  F find(const char* name) const {
    return library_ == nullptr ? nullptr : reinterpret_cast<F>(dlsym(library_, name));
  }

  /// One number of a card, or 0.
  template <class F, class... Which>
  unsigned number(const char* name, nvmlDevice_t device, Which... which) const {
    const F get = find<F>(name);
    unsigned value = 0;
    return get != nullptr && get(device, which..., &value) == NVML_SUCCESS ? value : 0;
  }

 private:
  void* library_ = nullptr;
  bool ready_ = false;
};

}  // namespace

std::string card_state(int index) {
  static const Nvml nvml;
  if (!nvml.ready()) return "unknown: NVIDIA's management library (libnvidia-ml.so.1) is not there";
  std::array<char, 32> address{};
  if (cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), index) != cudaSuccess) {
    cudaGetLastError();
    return fmt::format("unknown: CUDA shows no card {}", index);
  }
  const auto handle = nvml.find<decltype(&nvmlDeviceGetHandleByPciBusId_v2)>("nvmlDeviceGetHandleByPciBusId_v2");
  nvmlDevice_t device = nullptr;
  if (handle == nullptr || handle(address.data(), &device) != NVML_SUCCESS) {
    return fmt::format("unknown: NVML knows no card at {}", address.data());
  }
  std::array<char, 96> driver{};
  const auto driver_version = nvml.find<decltype(&nvmlSystemGetDriverVersion)>("nvmlSystemGetDriverVersion");
  if (driver_version != nullptr) driver_version(driver.data(), static_cast<unsigned>(driver.size()));
  const auto clock = nvml.number<decltype(&nvmlDeviceGetClockInfo)>("nvmlDeviceGetClockInfo", device, NVML_CLOCK_SM);
  const auto most =
      nvml.number<decltype(&nvmlDeviceGetMaxClockInfo)>("nvmlDeviceGetMaxClockInfo", device, NVML_CLOCK_SM);
  const auto power = nvml.number<decltype(&nvmlDeviceGetPowerUsage)>("nvmlDeviceGetPowerUsage", device);
  const auto limit = nvml.number<decltype(&nvmlDeviceGetEnforcedPowerLimit)>("nvmlDeviceGetEnforcedPowerLimit", device);
  const auto celsius = nvml.number<GetTemperature>("nvmlDeviceGetTemperature", device, NVML_TEMPERATURE_GPU);
  return fmt::format("SM {} of {} MHz, {} of {} W, {} C, driver {}", clock, most, power / 1000, limit / 1000, celsius,
                     driver.data());
}

}  // namespace foreshard::exec
