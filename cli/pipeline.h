// From a job to everything that its prediction needs: the one place where model, plan, lowering and profile are joined.
#pragma once

#include <string>

#include "core/job.h"
#include "core/model/lowering.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/result.h"
#include "sim/profile.h"
#include "sim/simulate.h"

namespace foreshard::cli {

/// The model of a job with its operator program in the dtype that the job computes in, for the profile's kind of
/// device.
Result<Model> load_job_model(const Job& job, const HardwareProfile& profile);

/// The plan's segments lowered to kernels. Empty if the model has no operators.
Result<LoweredProgram> lower_plan(const Model& model, const Plan& plan, const Job& job, const HardwareProfile& profile);

struct Prepared {
  HardwareProfile profile;
  Model model;
  Plan plan;
  LoweredProgram lowered;
};
Result<Prepared> prepare(const Job& job);

/// FNV-1a (64 bits, hex) of the plan's JSON: says whether two timelines stem from the same plan.
std::string plan_digest(const Plan& plan);

/// cluster.memory if given, else the profile's.
Bytes card_memory(const Job& job, const HardwareProfile& profile);

/// What of the job the simulator takes as options.
SimulateOptions simulate_options(const Job& job);

}  // namespace foreshard::cli
