// What `run --action` has measured, beside what was predicted of the same plans: the values of one rank, their way to
// rank 0, and what rank 0 says of all. docs/formats/run.md. Bytes, nanoseconds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/result.h"

namespace foreshard::cli {

/// A tensor that an action has made, shown or read, as one rank has it.
struct ActionTensor {
  std::string name;
  std::string dtype;
  Shape shape;                // of the whole
  Numel first_at = 0;         // its first element in the flattened whole: ranks that replicate say the same
  Bytes bytes = 0;            // on this rank
  double squares = 0;         // the sum over this rank's elements
  std::vector<double> first;  // a few elements from first_at on
};
ActionTensor action_tensor(std::string name, DType dtype, Shape whole, Numel first_at, const at::Tensor& local);

/// Of the device, by the same plan.
struct PredictedAction {
  Bytes peak = 0, end = 0;   // as asked for
  Bytes peak_allocated = 0;  // in the blocks of the caching allocator
};

struct ActionOnRank {
  std::int64_t time_ns = 0;
  Bytes before = 0, peak = 0, end = 0;
  std::optional<PredictedAction> predicted;  // none where the card would be too small
  std::vector<ActionTensor> tensors;
};

std::string to_json_text(const std::vector<ActionOnRank>& actions);
std::vector<ActionOnRank> actions_from_json(const std::string& text);

/// All ranks, as rank 0 has heard of them.
struct MeasuredActions {
  const Job& job;
  const Model& model;
  const Plan& plan;
  std::vector<std::string> from;                 // by action: where its values come from
  std::vector<std::vector<ActionOnRank>> ranks;  // [rank][action]
};
std::string actions_json(const MeasuredActions& measured);
std::string actions_text(const MeasuredActions& measured);

}  // namespace foreshard::cli
