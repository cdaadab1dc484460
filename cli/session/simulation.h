// What the report and the JSON of `simulate` are made from: views of the values that led to a prediction.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/units.h"
#include "sim/machine/profile.h"
#include "sim/search/explain.h"
#include "sim/search/ranks.h"
#include "sim/simulate.h"

namespace foreshard::cli {

/// A change of the job that makes it fit, tried by simulating it.
struct Remedy {
  std::string text;              // "checkpoint every block"
  std::vector<std::string> set;  // "checkpointing.policy=block", ready for --set
  Bytes peak_reserved = 0;
  double step_time_ns = 0;
};

struct Simulation {
  const Job& job;
  const Model& model;
  const Plan& plan;
  const HardwareProfile& profile;
  const Prediction& prediction;
  Bytes card_memory = 0;  // the profile's, or cluster.memory
  std::optional<Remedy> remedy;
  std::vector<std::string> tried;  // changes that did not help, if no remedy was found
  std::optional<Explanation> explanation = std::nullopt;
  std::optional<RanksPrediction> ranks = std::nullopt;  // where they are not all alike
};

/// The iteration that repeats; nullptr if none was simulated.
inline const IterationResult* steady_iteration(const Prediction& prediction) {
  return prediction.iterations.empty() ? nullptr : &prediction.iterations.back();
}

}  // namespace foreshard::cli
