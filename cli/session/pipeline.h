// What verbs share on the way from a job to an answer; joining model, plan, lowering and profile is
// sim/search/prepare_job.h.
#pragma once

#include "core/job.h"
#include "core/plan.h"
#include "core/plan/form/plan_json.h"
#include "core/units.h"
#include "sim/machine/profile.h"
#include "sim/search/prepare_job.h"

namespace foreshard::cli {

using foreshard::load_job_model;
using foreshard::lower_plan;
using foreshard::plan_digest;
using foreshard::prepare;
using foreshard::Prepared;
using foreshard::simulate_options;

/// cluster.memory if given, else the profile's.
Bytes card_memory(const Job& job, const HardwareProfile& profile);

}  // namespace foreshard::cli
