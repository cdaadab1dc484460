#include "exec/cuda/card_state.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

namespace foreshard::exec {
namespace {

// NVML's interface, as its documentation gives it; the library is the driver's and may be absent.
using Device = struct NvmlDevice*;
constexpr int kSuccess = 0, kClockSm = 1, kTemperatureGpu = 0;

class Nvml {
 public:
  Nvml() {
    // LibTorch, or a test, may have brought it already.
    library_ = dlsym(RTLD_DEFAULT, "nvmlInit_v2") != nullptr ? dlopen(nullptr, RTLD_NOW)
                                                             : dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*init)() = nullptr;
    ready_ = find(init, "nvmlInit_v2") && init() == kSuccess;
  }

  bool ready() const { return ready_; }

  template <class F>
  bool find(F& function, const char* name) const {
    function = library_ == nullptr ? nullptr : reinterpret_cast<F>(dlsym(library_, name));
    return function != nullptr;
  }

  /// One number of a card, or 0.
  template <class... Which>
  unsigned number(const char* name, Device device, Which... which) const {
    int (*get)(Device, Which..., unsigned*) = nullptr;
    unsigned value = 0;
    return find(get, name) && get(device, which..., &value) == kSuccess ? value : 0;
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
  int (*handle)(const char*, Device*) = nullptr;
  Device device = nullptr;
  if (!nvml.find(handle, "nvmlDeviceGetHandleByPciBusId_v2") || handle(address.data(), &device) != kSuccess) {
    return fmt::format("unknown: NVML knows no card at {}", address.data());
  }
  std::array<char, 96> driver{};
  int (*driver_version)(char*, unsigned) = nullptr;
  if (nvml.find(driver_version, "nvmlSystemGetDriverVersion")) {
    driver_version(driver.data(), static_cast<unsigned>(driver.size()));
  }
  return fmt::format(
      "SM {} of {} MHz, {} of {} W, {} C, driver {}", nvml.number("nvmlDeviceGetClockInfo", device, kClockSm),
      nvml.number("nvmlDeviceGetMaxClockInfo", device, kClockSm), nvml.number("nvmlDeviceGetPowerUsage", device) / 1000,
      nvml.number("nvmlDeviceGetEnforcedPowerLimit", device) / 1000,
      nvml.number("nvmlDeviceGetTemperature", device, kTemperatureGpu), driver.data());
}

}  // namespace foreshard::exec
