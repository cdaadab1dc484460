// What `run --action` has measured, beside what was predicted of the same plans: the values of one rank, their way to
// rank 0, and what rank 0 says of all. docs/formats/run.md. Bytes, nanoseconds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "exec/actions/action_run.h"

namespace foreshard::cli {

/// Of the device, by the same plan.
struct PredictedAction {
  Bytes peak = 0, end = 0;   // as asked for
  Bytes peak_allocated = 0;  // in the blocks of the caching allocator
};

struct ActionOnRank {
  exec::ActionReport measured;
  std::optional<PredictedAction> predicted;  // none where the card would be too small
};

std::string to_json_text(const std::vector<ActionOnRank>& actions);
std::vector<ActionOnRank> actions_from_json(const std::string& text);

/// All ranks, as rank 0 has heard of them.
struct MeasuredActions {
  const Job& job;
  const Model& model;
  const Plan& plan;
  std::vector<std::vector<ActionOnRank>> ranks;  // [rank][action]
};
std::string actions_json(const MeasuredActions& measured);
std::string actions_text(const MeasuredActions& measured);

}  // namespace foreshard::cli
