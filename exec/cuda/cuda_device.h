// The CUDA devices of this machine, as this process sees them (CUDA_VISIBLE_DEVICES).
#pragma once

#include <string>

#include "core/result.h"
#include "core/units.h"

namespace foreshard::exec {

/// What is there to run on.
struct CudaDevice {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  Bytes total_memory = 0, free_memory = 0;
  int driver_version = 0, runtime_version = 0;  // 13000 = 13.0
};

/// Visible ones; 0 where none can be used, whatever the reason: cuda_device(0) tells it.
int cuda_device_count();

/// Errors say what is wrong and what to do: no driver, a driver older than the runtime, no visible device, an index
/// beyond them, a card that another process holds.
Result<CudaDevice> cuda_device(int index);

}  // namespace foreshard::exec
