#include "exec/plan_runner.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <stdexcept>
#include <thread>

#include "core/plan/build_plan.h"
#include "exec/host_backend.h"
#include "exec/in_process_communicator.h"
#include "tests/exec/tiny_llama.h"

namespace foreshard::exec {
namespace {

/// What one rank reports of its training.
struct RankTrace {
  std::vector<StepResult> steps;
  std::map<std::string, at::Tensor> shards;
  MemoryReport memory;
  std::string failure;
};

using Communicators = std::map<Stream, std::vector<std::shared_ptr<Communicator>>>;

/// Trains ranks as threads: each with its own plan, backend and communicators (one per stream with collectives).
class TinyRanks {
 public:
  explicit TinyRanks(Job job) : job_(std::move(job)), world_(static_cast<int>(job_.cluster.world_size)) {
    for (const Stream stream : {Stream::A, Stream::S, Stream::D}) {
      communicators_[stream] = in_process_communicators(world_, std::chrono::seconds(60));
    }
  }

  std::vector<RankTrace> train(int steps, const std::vector<double>& lr) {
    std::vector<RankTrace> traces(static_cast<std::size_t>(world_));
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < world_; ++rank) {
      ranks.emplace_back([&, rank] {
        RankTrace& trace = traces[static_cast<std::size_t>(rank)];
        try {
          run(rank, steps, lr, trace);
        } catch (const std::exception& error) {
          trace.failure = error.what();
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    return traces;
  }

  const Model& model() const { return model_; }

 private:
  void run(int rank, int steps, const std::vector<double>& lr, RankTrace& trace) {
    Job job = job_;
    job.cluster.rank = rank;
    const Plan plan = build_plan(model_, job).value();
    const auto backend = make_host_backend({.rank = rank, .intra_op_threads = 1});
    std::map<Stream, std::shared_ptr<Communicator>> own;
    for (const auto& [stream, group] : communicators_) own[stream] = group[static_cast<std::size_t>(rank)];
    auto runner =
        PlanRunner::create({model_, plan, interpreter_, *backend, own, job.train.optimizer, tiny_llama_buffers(model_)},
                           [&](ParamId id) { return weights_.at(model_.params[id.index()].fqn); });
    if (!runner) throw std::runtime_error(to_text(runner.error()));
    for (int step = 0; step < steps; ++step) {
      std::vector<std::vector<at::Tensor>> micro_batches;
      for (int m = 0; m < job.train.micro_batches; ++m) {
        micro_batches.push_back(tiny_llama_inputs(data_, step, rank, world_, m));
      }
      const auto result = (*runner)->step(micro_batches, lr[static_cast<std::size_t>(step)]);
      if (!result) throw std::runtime_error(result.error().stream + ": " + result.error().text);
      trace.steps.push_back(*result);
    }
    for (std::size_t p = 0; p < model_.params.size(); ++p) {
      trace.shards[model_.params[p].fqn] = (*runner)->shard(ParamId(p)).clone();
    }
    trace.memory = backend->memory();
  }

  Job job_;
  int world_;
  Model model_ = tiny_llama(job_);
  OperatorInterpreter interpreter_ = OperatorInterpreter::create(model_).value();
  NamedTensors weights_ = tiny_llama_weights();
  NamedTensors data_ = tiny_llama_data();
  Communicators communicators_;
};

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
  const auto traces = TinyRanks(job).train(kTinySteps, recorded.lr);
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
  for (const auto& [fqn, sum] : recorded.final_abs_sum) {
    double got = 0;
    for (const RankTrace& trace : traces) got += trace.shards.at(fqn).to(at::kDouble).abs().sum().item<double>();
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
  for (const RankTrace& trace : traces) {
    ASSERT_EQ(trace.failure, "");
    EXPECT_EQ(trace.memory.total.allocated, 2 * shards);  // parameters, and gradients until the next zero
    EXPECT_EQ(trace.memory.total.resident, 2 * shards);
    EXPECT_GT(trace.memory.total.peak_resident, 2 * shards);
  }
}

TEST(PlanRunner, WhatIsNotRunYetIsRefusedByInstruction) {
  Job job = tiny_llama_job(2);
  job.fsdp.runtime = Runtime::Fsdp1;
  EXPECT_THAT(TinyRanks(job).train(1, {1e-3})[0].failure, ::testing::HasSubstr("fsdp1"));
  job = tiny_llama_job(2);
  job.fsdp.cpu_offload = true;
  EXPECT_THAT(TinyRanks(job).train(1, {1e-3})[0].failure, ::testing::HasSubstr("instruction "));
}

}  // namespace
}  // namespace foreshard::exec
