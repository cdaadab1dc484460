// From a job to everything that its prediction needs: the one place where model, plan, lowering and profile are joined.
//
// Functions without state; sim/search/shared_parts.h is the same for many jobs that have parts in common.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/lowering/lowering.h"
#include "core/model/model.h"
#include "core/model/sources/load_model.h"
#include "core/plan.h"
#include "core/plan/units/units.h"
#include "core/result.h"
#include "sim/machine/profile.h"
#include "sim/simulate.h"

namespace foreshard {

/// The program that the job's model is written as, for the profile's kind of device.
ProgramOptions job_program(const Job& job, const HardwareProfile& profile);

/// Whether the job's machine can do what is asked of it: products in 8 bits, the groups of a mesh.
/// Errors: wrong_value of model.float8; check_mesh's.
Result<void> check_card(const Job& job, const HardwareProfile& profile);

/// The model of a job with its operator program in the dtype that the job computes in, for the profile's kind of
/// device.
Result<Model> load_job_model(const Job& job, const HardwareProfile& profile);

/// What lowering must know of the plan's segments. Segments inside one checkpointed module are recomputed together (K):
/// they share the number of that module.
std::vector<SegmentRange> segment_ranges(const Model& model, const Plan& plan,
                                         const std::vector<CheckpointKind>& checkpointed);
LoweringOptions lowering_options(const HardwareProfile& profile, const Job& job);

/// The plan's segments lowered to kernels. Empty if the model has no operators.
Result<LoweredProgram> lower_plan(const Model& model, const Plan& plan, const Job& job, const HardwareProfile& profile);

struct Prepared {
  HardwareProfile profile;
  Model model;
  Plan plan;
  LoweredProgram lowered;
};
Result<Prepared> prepare(const Job& job);

/// What of the job the simulator takes as options.
SimulateOptions simulate_options(const Job& job);

}  // namespace foreshard
