// What of a training script is planned and simulated, and cannot be run. A pure function of the job.
#pragma once

#include "core/job.h"
#include "core/result.h"
#include "exec/backend/backend.h"

namespace foreshard::exec {

/// Unsupported for the first such key, with what works.
Result<void> check_script(const Job& job, DeviceKind device);

}  // namespace foreshard::exec
