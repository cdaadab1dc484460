#include "exec/training/evaluation.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "core/plan/build_plan.h"
#include "core/plan/graph/script.h"
#include "exec/training/failure_text.h"

namespace foreshard::exec {
namespace {

Error two_precisions() {
  Error error;
  error.code = ErrorCode::Unsupported;
  error.place = "fsdp.full_precision_in_eval";
  error.message = "the executor has one program, in the type of training";
  error.expected = "false, or fsdp.mixed_precision.param = \"none\"";
  error.got = "true";
  error.hint = "train.eval.every = 0 trains without evaluations";
  return error;
}

}  // namespace

Result<std::unique_ptr<Evaluation>> Evaluation::open(const EvaluatedModel& model, const Job& job,
                                                     const DataShare& share) {
  std::unique_ptr<Evaluation> made;
  if (job.train.eval.every <= 0) return made;
  const bool casts = job.fsdp.mixed_precision.param.has_value();
  if (job.fsdp.runtime == Runtime::Fsdp1 && job.fsdp.full_precision_in_eval && casts) return fail(two_precisions());
  made.reset(new Evaluation(job, share));
  auto data = open_evaluation_source(model.whole, job);
  if (!data) return fail(data.error());
  made->data_ = std::move(*data);
  auto plan = build_plan(model.own, evaluation_job(job, /*after_training=*/false));
  if (!plan) return fail(plan.error());
  made->plan_ = std::move(*plan);
  const Shape& shape = model.own.values[model.own.inputs.front().index()].shape;
  if (!shape.empty()) made->rows_ = shape.front();
  return made;
}

bool Evaluation::due(std::int64_t step) const { return step % job_.train.eval.every == 0 || step == job_.train.steps; }

tl::expected<double, FailureAccount> Evaluation::run(PlanRunner& runner, std::int64_t step, const Prepare& prepare) {
  std::vector<MicroBatch> batches;
  for (std::int64_t b = 0; b < job_.train.eval.batches; ++b) {
    auto batch = data_->batch((b * ranks_ + rank_) * rows_);
    if (!batch) return tl::unexpected(account_between(plan_, step, false, "reading the batch", to_text(batch.error())));
    for (at::Tensor& input : *batch) input = prepare(input);
    batches.push_back(std::move(*batch));
  }
  const auto result = runner.evaluate(plan_, batches);
  if (result) return result->loss;
  FailureAccount account = account_of(plan_, step, result.error());
  account.text = "evaluation: " + account.text;
  return tl::unexpected(std::move(account));
}

}  // namespace foreshard::exec
