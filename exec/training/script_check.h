// What of a training script is planned and simulated, and cannot be run. Pure functions of job and model.
#pragma once

#include "core/job.h"
#include "core/model/model.h"
#include "core/result.h"
#include "exec/backend/backend.h"

namespace foreshard::exec {

/// Unsupported for the first such key, with what works.
Result<void> check_script(const Job& job, DeviceKind device);

/// What hooks of the model's own keep on the host (docs/formats/model.md, `saved_on_host`): on CPU ranks it lies there
/// already. Errors: a CUDA device, where it is planned and simulated only.
Result<void> check_saves(const Model& model, DeviceKind device);

}  // namespace foreshard::exec
