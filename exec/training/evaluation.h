// Evaluations between training steps (train.eval): forwards in eval mode without grad, over the same data each time, by
// the plan that FSDP makes of them.
//
// Every rank evaluates its share of the batches. Nothing of it is left behind: no gradient, no gathered parameter, no
// number that training draws.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/result.h"
#include "exec/data/batch_source.h"
#include "exec/launch/launch.h"
#include "exec/run/plan_runner.h"
#include "exec/training/failure_text.h"

namespace foreshard::exec {

/// Which of the batches a rank takes: ranks of a mesh may share theirs.
struct DataShare {
  int rank = 0, ranks = 1;
};

/// What runs on this rank, and the model before a mesh cut it, which says what inputs may hold.
struct EvaluatedModel {
  const Model& own;
  const Model& whole;
};

class Evaluation {
 public:
  /// Null where the job asks for none. Errors: data that cannot be opened, a plan that is not run. Models outlive it.
  static Result<std::unique_ptr<Evaluation>> open(const EvaluatedModel& model, const Job& job, const DataShare& share);

  /// After `step` steps, of which the job has `train.steps`: every so many, and after the last.
  bool due(std::int64_t step) const;

  /// The mean loss of this rank's batches; `prepare` brings an input to where the model is. Unexpected: what
  /// failed, and where.
  using Prepare = std::function<at::Tensor(const at::Tensor&)>;
  tl::expected<double, FailureAccount> run(PlanRunner& runner, std::int64_t step, const Prepare& prepare);

  const Plan& plan() const { return plan_; }

 private:
  Evaluation(const Job& job, const DataShare& share) : job_(job), rank_(share.rank), ranks_(share.ranks) {}

  Job job_;
  int rank_, ranks_;
  std::int64_t rows_ = 1;
  Plan plan_;
  std::unique_ptr<BatchSource> data_;
};

}  // namespace foreshard::exec
