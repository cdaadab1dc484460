// fakegpu - PyTorch's caching allocator in the log. LibTorch tells its profiler of every allocation through this
// function of libc10; being preloaded, ours is found first. With another signature it has another name, and is not
// called.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>

#include "shadow/device/fakegpu.h"

namespace c10 {

struct Device {
  std::int8_t type, index;
};

__attribute__((visibility("default"))) void reportMemoryUsageToProfiler(void* block, std::int64_t bytes,
                                                                        std::size_t allocated, std::size_t reserved,
                                                                        Device device) {
  constexpr std::int8_t kCuda = 1;
  using Report = void (*)(void*, std::int64_t, std::size_t, std::size_t, Device);
  static const auto inner = [] {
    void* own =
        dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);  // loaded for its library alone: RTLD_NEXT does not see it
    return own ? reinterpret_cast<Report>(dlsym(own, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"))
               : nullptr;
  }();
  if (inner && inner != &reportMemoryUsageToProfiler) inner(block, bytes, allocated, reserved, device);
  static const bool wanted = getenv("FAKEGPU_LOG_ALLOCATOR") && atoi(getenv("FAKEGPU_LOG_ALLOCATOR")) != 0;
  if (!wanted || device.type != kCuda) return;
  const std::lock_guard<std::recursive_mutex> guard(fakegpu::lock());
  fakegpu::Line("allocator")
      .n("bytes", bytes)
      .n("allocated", static_cast<long long>(allocated))
      .n("reserved", static_cast<long long>(reserved));
}

}  // namespace c10
