// Calibration on CUDA devices (exec/calibrate/calibration_device.h): rank r is the visible card r, work is timed by
// events behind a stream that stands still until the host is ahead.
#pragma once

#include <memory>
#include <string>

#include "core/result.h"
#include "exec/calibrate/calibration_device.h"

namespace foreshard::exec {

/// For `ranks` cards. Errors: those of cuda_device.
Result<std::unique_ptr<CalibrationDevice>> cuda_calibration_device(int ranks);

}  // namespace foreshard::exec
