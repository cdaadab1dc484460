// What verbs share on the way from a job to an answer; joining model, plan, lowering and profile is sim/prepare_job.h.
#pragma once

#include <string>

#include "core/job.h"
#include "core/plan.h"
#include "core/units.h"
#include "sim/prepare_job.h"
#include "sim/profile.h"

namespace foreshard::cli {

using foreshard::load_job_model;
using foreshard::lower_plan;
using foreshard::prepare;
using foreshard::Prepared;
using foreshard::simulate_options;

/// FNV-1a (64 bits, hex) of the plan's JSON: says whether two timelines stem from the same plan.
std::string plan_digest(const Plan& plan);

/// cluster.memory if given, else the profile's.
Bytes card_memory(const Job& job, const HardwareProfile& profile);

}  // namespace foreshard::cli
