// What a job file can say and nothing plans yet. Private to core/job.
#pragma once

#include "core/job.h"
#include "core/result.h"

namespace foreshard {

/// Refuses a job that asks for such a thing, by its key: better than a plan that leaves it out.
Result<void> check_built(const Job& job);

}  // namespace foreshard
