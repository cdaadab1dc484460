// The face of sim: a plan, its lowered program and a machine in; a prediction and a timeline out.
//
// Deterministic: same input, same bytes out. Out of memory and deadlock are answers (Prediction::oom, ::deadlock), not
// errors.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/lowering/lowering.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/result.h"
#include "sim/machine/profile.h"
#include "sim/play/prediction.h"

namespace foreshard {

/// `model` and `lowered` may be empty of operators: then memory and communication are predicted, compute takes no time.
Result<Prediction> simulate(const Plan& plan, const Model& model, const LoweredProgram& lowered, const Job& job,
                            const HardwareProfile& profile, const SimulateOptions& options);

/// One of several ranks that are simulated together. What it refers to outlives the call.
struct RankRequest {
  const Plan& plan;
  const Model& model;
  const LoweredProgram& lowered;
  const Job& job;
  const HardwareProfile& profile;
  RankSpeed speed;
  /// By CommunicatorId of the plan: places in the list of ranks of those that it meets, its own included.
  std::vector<std::vector<std::size_t>> peers;
};

/// A collective starts when all its ranks are there and takes as long as on the slowest of them. Ranks that share a
/// group issue the same collectives in the same order. In the order of `ranks`.
Result<std::vector<Prediction>> simulate_together(const std::vector<RankRequest>& ranks,
                                                  const SimulateOptions& options);

}  // namespace foreshard
