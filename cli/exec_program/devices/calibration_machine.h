// What `calibrate` measures: this host, or its CUDA devices. The second is foreshard-exec-cuda's (cuda_calibration.cpp,
// no_cuda_device.cpp).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/result.h"
#include "exec/calibrate/calibration_device.h"
#include "exec/communicators/communicator.h"
#include "exec/launch/rendezvous.h"

namespace foreshard::cli {

struct CalibrationMachine {
  std::unique_ptr<exec::CalibrationDevice> device;  // null: the host
  /// Of all `ranks` that this process stands for as threads; unset: Gloo, or threads.
  std::function<Result<std::shared_ptr<exec::Communicator>>(exec::Rendezvous&)> connect;
  std::string fingerprint;  // card, driver, clocks and power; empty: the processor
};

/// Errors: this program has no CUDA; those of cuda_device, for each rank's card.
Result<CalibrationMachine> open_cuda_calibration(int ranks);

}  // namespace foreshard::cli
