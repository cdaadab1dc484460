// Gradient scalers in float16 on two ranks: steps that are left out, scales and parameters are those that PyTorch 2.11
// has, recorded in tests/data/exec/grad_scaler.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/exec/run/recorded_ranks.h"

namespace foreshard::exec {
namespace {

constexpr int kSteps = 8;

/// One rank's input is large once, so that only its own gradients overflow.
at::Tensor input_of(int rank, int step) {
  const at::Tensor input = toy::usual_input(rank, step);
  return rank == 1 && step == 4 ? input * 16 : input;
}

Job job_of(Runtime runtime, OptimizerImpl impl, double clip) {
  MixedPrecision half = MixedPrecision::none();
  half.param = half.reduce = DType::Float16;
  Job job = toy::job(runtime, half, toy::kRanks);
  job.train.optimizer = OptimizerOptions{};
  job.train.optimizer.impl = impl;
  job.train.clip_grad_norm = clip;
  job.train.grad_scaler.enabled = true;
  job.train.grad_scaler.init_scale = 8192;
  job.train.grad_scaler.growth_interval = 2;
  return job;
}

nlohmann::json recorded(const std::string& name) {
  std::ifstream file(toy::kFolder + "grad_scaler/recorded.json");
  return nlohmann::json::parse(file).at(name);
}

void expect_recorded(const std::string& name, const Job& job) {
  SCOPED_TRACE(name);
  const nlohmann::json expected = recorded(name);
  toy::TwoRanks ranks(job, kSteps, input_of);
  ranks.train();
  double scale = job.train.grad_scaler.init_scale;
  for (std::size_t s = 0; s < kSteps; ++s) {
    const double next = expected["scales"][s].get<double>();
    EXPECT_EQ(ranks.steps[s].loss_scale, next) << "step " << s;
    EXPECT_EQ(ranks.steps[s].skipped, next < scale) << "step " << s;
    scale = next;
    for (std::size_t rank = 0; rank < toy::kRanks; ++rank) {
      const double loss = expected["losses"][rank][s].get<double>();
      EXPECT_NEAR(ranks.losses[rank][s], loss, 2e-3 * std::abs(loss)) << rank << ", step " << s;
    }
  }
  EXPECT_EQ(ranks.scaler, (ScalerState{scale, expected["growth_tracker"].get<std::int64_t>()}));
  for (std::size_t p = 0; p < ranks.whole.size(); ++p) {
    const auto params = expected["params"][p].get<std::vector<double>>();
    for (std::size_t i = 0; i < params.size(); ++i) ASSERT_NEAR(ranks.whole[p][i], params[i], 1e-3) << p << "," << i;
  }
}

TEST(RecordedScaler, ShardedGradScalerOfFsdp1) {
  expect_recorded("fsdp1 foreach", job_of(Runtime::Fsdp1, OptimizerImpl::Foreach, 0));
  expect_recorded("fsdp1 foreach clipped", job_of(Runtime::Fsdp1, OptimizerImpl::Foreach, 0.5));
}

TEST(RecordedScaler, GradScalerOverShardedGradientsOfFsdp2) {
  expect_recorded("fsdp2 foreach", job_of(Runtime::Fsdp2, OptimizerImpl::Foreach, 0));
}

TEST(RecordedScaler, AFusedStepIsLeftOutOnTheDevice) {
  expect_recorded("fsdp2 fused clipped", job_of(Runtime::Fsdp2, OptimizerImpl::Fused, 0.5));
}

/// What is unscaled on the host are the same numbers; the scale stays where the loss is.
TEST(RecordedScaler, OffloadedGradientsAreUnscaledOnTheHost) {
  for (auto [name, job] : {std::pair{"fsdp1 foreach clipped", job_of(Runtime::Fsdp1, OptimizerImpl::Foreach, 0.5)},
                           std::pair{"fsdp2 foreach", job_of(Runtime::Fsdp2, OptimizerImpl::Foreach, 0)},
                           std::pair{"fsdp2 fused clipped", job_of(Runtime::Fsdp2, OptimizerImpl::Fused, 0.5)}}) {
    job.fsdp.cpu_offload = true;
    expect_recorded(name, job);
  }
}

/// Two ranks' ones summed are no 1 to PyTorch's fused kernels: they would take the step (docs/differences.md).
TEST(RecordedScaler, AFusedStepIsLeftOutAlsoWhereSeveralRanksOverflow) {
  const Job fused = job_of(Runtime::Fsdp1, OptimizerImpl::Fused, 0.5);
  expect_recorded("fsdp1 foreach clipped", fused);
}

}  // namespace
}  // namespace foreshard::exec
