#include "exec/run/plan_runner.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/exec/tiny_llama.h"
#include "tests/exec/tiny_ranks.h"

namespace foreshard::exec {
namespace {

void expect_near_relative(double got, double expected, double tolerance, const std::string& what) {
  EXPECT_NEAR(got, expected, tolerance * std::abs(expected)) << what;
}

/// Relative tolerances: max(1e-5, three times the spread between recordings of PyTorch itself).
struct Tolerance {
  double loss = 1e-5, norm = 1e-5, parameter = 1e-5;
};
constexpr Tolerance kBf16 = {6e-4, 6e-3, 3e-4};

void expect_recorded(const Job& job, const std::string& run, bool norms, const Tolerance& tolerance = {}) {
  const int world = static_cast<int>(job.cluster.world_size);
  const RecordedRun recorded = recorded_run(run);
  TinyRanks ranks(job);
  const auto traces = ranks.train(kTinySteps, recorded.lr);
  for (const RankTrace& trace : traces) ASSERT_EQ(trace.failure, "");
  for (std::size_t step = 0; step < recorded.loss.size(); ++step) {
    double loss = 0;
    for (const RankTrace& trace : traces) loss += trace.steps[step].loss / world;
    expect_near_relative(loss, recorded.loss[step], tolerance.loss, run + " loss of step " + std::to_string(step));
    for (const RankTrace& trace : traces) {
      if (norms)
        expect_near_relative(trace.steps[step].grad_norm.value(), recorded.grad_norm[step], tolerance.norm,
                             run + " norm");
    }
  }
  const auto parameters = whole_parameters(ranks.model(), traces);
  for (const auto& [fqn, sum] : recorded.final_abs_sum) {
    const double got = parameters.at(fqn).to(at::kDouble).abs().sum().item<double>();
    expect_near_relative(got, sum, tolerance.parameter, fqn);
  }
}

TEST(PlanRunner, TwoRanksOfFsdp2GiveTheRecordedRun) {
  expect_recorded(tiny_llama_job(2), "fp32-adamw/fsdp2-w2", false);
}

TEST(PlanRunner, ClippingByTheNormOfAllRanksGivesTheRecordedRun) {
  Job job = tiny_llama_job(2);
  job.train.clip_grad_norm = 1.0;
  expect_recorded(job, "fp32-adamw-cosine-clip/fsdp2-w2", true);
}

TEST(PlanRunner, SgdWithMomentumGivesTheRecordedRun) {
  Job job = tiny_llama_job(2);
  job.train.optimizer.name = OptimizerKind::Sgd;
  job.train.optimizer.momentum = 0.9;
  job.train.optimizer.weight_decay = 0.0;
  expect_recorded(job, "fp32-sgd-momentum/fsdp2-w2", false);
}

TEST(PlanRunner, OneAndFourRanksTrainAsTheUnshardedModelDoes) {
  expect_recorded(tiny_llama_job(1), "fp32-adamw/single-w1", false);
  expect_recorded(tiny_llama_job(4), "fp32-adamw/single-w1", false);
}

TEST(PlanRunner, AccumulatedMicroBatchesGiveTheRecordedRuns) {
  Job job = tiny_llama_job(2);
  job.train.micro_batches = 2;
  job.train.clip_grad_norm = 0.5;
  expect_recorded(job, "fp32-adamw-accumulate-sync/fsdp2-w2", true);
  job.train.no_sync = true;
  job.train.clip_grad_norm = 1.0;
  expect_recorded(job, "fp32-adamw-accumulate-nosync-cosine/fsdp2-w2", true);
}

TEST(PlanRunner, Bf16WithFp32ReductionGivesTheRecordedRuns) {
  Job job = tiny_llama_job(2);
  job.fsdp.mixed_precision.param = DType::BFloat16;
  job.fsdp.mixed_precision.reduce = DType::Float32;
  job.train.clip_grad_norm = 1.0;
  expect_recorded(job, "bf16-adamw-cosine-clip/fsdp2-w2", true, kBf16);
  job.train.micro_batches = 2;
  job.train.no_sync = true;
  expect_recorded(job, "bf16-adamw-accumulate-nosync/fsdp2-w2", true, kBf16);
  job.train.no_sync = false;
  job.train.clip_grad_norm = 0.0;
  expect_recorded(job, "bf16-adamw-accumulate-sync/fsdp2-w2", false, kBf16);
}

// V10: prefetching and resharding change when things are there, never a number.
TEST(PlanRunner, PrefetchAndReshardingChangeNoNumber) {
  const std::vector<double> lr(4, 2e-3);
  const auto plain = TinyRanks(tiny_llama_job(2)).train(4, lr);
  Job job = tiny_llama_job(2);
  job.fsdp.reshard_after_forward.kind = ReshardAfterForward::Kind::False;
  const auto kept = TinyRanks(job).train(4, lr);
  job = tiny_llama_job(2);
  job.fsdp.prefetch.forward_depth = 1;
  job.fsdp.prefetch.backward_depth = 2;
  const auto prefetched = TinyRanks(job).train(4, lr);
  for (const auto* other : {&kept, &prefetched}) {
    for (std::size_t rank = 0; rank < plain.size(); ++rank) {
      ASSERT_EQ((*other)[rank].failure, "");
      for (const auto& [fqn, shard] : plain[rank].shards) {
        EXPECT_TRUE(shard.equal((*other)[rank].shards.at(fqn))) << fqn;
      }
    }
  }
}

TEST(PlanRunner, BetweenStepsOnlyShardsAndReducedGradientsAreHeld) {
  TinyRanks ranks(tiny_llama_job(2));
  const auto traces = ranks.train(2, {1e-3, 1e-3});
  Bytes shards = 0;  // evenly divided here: no padding
  for (const ParamInfo& param : ranks.model().params) shards += numel_of(param.shape) * 4 / 2;
  Bytes buffers = 0;
  for (const BufferInfo& buffer : ranks.model().buffers) buffers += numel_of(buffer.shape) * itemsize(buffer.dtype);
  for (const RankTrace& trace : traces) {
    ASSERT_EQ(trace.failure, "");
    // Parameters, two moments, and gradients until the next zero; the model's buffers always.
    EXPECT_EQ(trace.memory.total.allocated, 4 * shards + buffers);
    EXPECT_EQ(trace.memory.total.resident, 4 * shards + buffers);
    EXPECT_GT(trace.memory.total.peak_resident, 4 * shards + buffers);
  }
}

}  // namespace
}  // namespace foreshard::exec
