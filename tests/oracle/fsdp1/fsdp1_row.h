// One row of the fsdp1 recordings (schedules, layouts) as a model, a job and a script ("Model as data" of
// ../shared/oracle/fsdp1).
#pragma once

#include "core/job.h"
#include "core/model/model.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {

/// Throws std::runtime_error where the row says something unknown.
Model model_of_row(const Json& spec);
Job job_of_row(const Json& row);

}  // namespace foreshard::oracle
