// What must hold whatever the numbers are: schedules change none (V10), state moves between layouts, frozen parameters
// stand still, evaluation leaves no trace.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "exec/run/plan_runner.h"
#include "tests/exec/tiny_llama.h"
#include "tests/exec/tiny_ranks.h"

namespace foreshard::exec {
namespace {

const std::vector<double> kRates(8, 2e-3);

Job fsdp1(int world) {
  Job job = tiny_llama_job(world);
  job.fsdp.runtime = Runtime::Fsdp1;
  job.train.clip_grad_norm = 1.0;
  return job;
}

std::vector<RankTrace> trained(const Job& job, int steps = 4) {
  auto traces = TinyRanks(job).train(steps, kRates);
  for (const RankTrace& trace : traces) EXPECT_EQ(trace.failure, "");
  return traces;
}

void expect_equal_bits(const std::vector<RankTrace>& a, const std::vector<RankTrace>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t rank = 0; rank < a.size(); ++rank) {
    for (std::size_t step = 0; step < a[rank].steps.size(); ++step) {
      EXPECT_EQ(a[rank].steps[step].loss, b[rank].steps.at(step).loss) << what << ", step " << step;
    }
    for (const auto& [fqn, shard] : a[rank].shards) {
      EXPECT_TRUE(shard.equal(b[rank].shards.at(fqn))) << what << ", " << fqn;
    }
  }
}

void expect_close(const Model& model, const std::vector<RankTrace>& a, const std::vector<RankTrace>& b,
                  const std::string& what) {
  const auto left = whole_parameters(model, a), right = whole_parameters(model, b);
  for (const auto& [fqn, parameter] : left) {
    EXPECT_TRUE(at::allclose(parameter, right.at(fqn), 1e-4, 1e-6)) << what << ", " << fqn;
  }
}

TEST(Schedules, PrefetchLimiterAndKeepingChangeNoBit) {
  for (const int world : {2, 4}) {
    const auto plain = trained(fsdp1(world));
    for (const BackwardPrefetch prefetch : {BackwardPrefetch::Post, BackwardPrefetch::None}) {
      Job job = fsdp1(world);
      job.fsdp.backward_prefetch = prefetch;
      expect_equal_bits(plain, trained(job), std::string(backward_prefetch_name(prefetch)));
    }
    Job job = fsdp1(world);
    job.fsdp.forward_prefetch = true;
    expect_equal_bits(plain, trained(job), "forward prefetch");
    job.fsdp.limit_all_gathers = false;
    expect_equal_bits(plain, trained(job), "forward prefetch without limiter");
    job = fsdp1(world);
    job.fsdp.strategy = Strategy::ShardGradOp;
    expect_equal_bits(plain, trained(job), "SHARD_GRAD_OP");
    job = fsdp1(world);
    job.checkpointing.policy = CheckpointPolicy::Block;
    expect_equal_bits(plain, trained(job), "recomputation");
  }
}

TEST(Schedules, WrappingChangesSumsOnlyByTheirOrder) {
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2}) {
    Job job = fsdp1(2);
    job.fsdp.runtime = runtime;
    TinyRanks ranks(job);
    const auto blocks = ranks.train(4, kRates);
    job.fsdp.wrap.policy = WrapPolicyKind::None;
    expect_close(ranks.model(), blocks, trained(job), "one unit");
  }
}

TEST(FrozenParameters, StandStillAndTheRestTrainsAlike) {
  std::vector<std::vector<RankTrace>> all;
  Job job = fsdp1(2);
  job.fsdp.frozen = {"*embed_tokens*", "model.layers.0*"};
  TinyRanks ranks(job);
  all.push_back(ranks.train(3, kRates));
  job.fsdp.strategy = Strategy::NoShard;
  all.push_back(trained(job, 3));
  job.fsdp.strategy = Strategy::FullShard;
  job.fsdp.runtime = Runtime::Fsdp2;
  all.push_back(trained(job, 3));
  job.fsdp.runtime = Runtime::None;
  all.push_back(trained(job, 3));
  const NamedTensors start = tiny_llama_weights();
  for (const auto& traces : all) {
    ASSERT_EQ(traces[0].failure, "");
    expect_close(ranks.model(), all[0], traces, "frozen");
    for (const auto& [fqn, parameter] : whole_parameters(ranks.model(), traces)) {
      const bool frozen = fqn.find("embed_tokens") != fqn.npos || fqn.starts_with("model.layers.0");
      EXPECT_EQ(parameter.equal(start.at(fqn).to(at::kFloat)), frozen) << fqn;
    }
  }
}

TEST(State, MovesBetweenLayoutsInTheMiddleOfARun) {
  const auto straight = trained(fsdp1(2), 6);
  std::mutex mutex;
  std::map<std::string, at::Tensor> whole;  // "fqn/slot"
  std::int64_t steps = 0;
  TinyRanks ranks(fsdp1(2));
  ranks.train({0, 3, kRates, {}, [&](int, PlanRunner& runner) {
                 const TrainState state = runner.state().value();
                 const std::lock_guard lock(mutex);
                 steps = state.optimizer_steps;
                 for (const StateTensor& tensor : state.tensors) {
                   at::Tensor& to = whole[tensor.fqn + "/" + tensor.slot];
                   if (!to.defined()) to = at::zeros({numel_of(tensor.shape)});
                   for (const StatePiece& piece : tensor.pieces) {
                     to.narrow(0, piece.global_offset, piece.numel)
                         .copy_(tensor.local.reshape({-1}).narrow(0, piece.local_offset, piece.numel));
                   }
                 }
               }});
  EXPECT_EQ(steps, 3);
  const auto load = [&](int, PlanRunner& runner) {
    TrainState state = runner.state().value();
    for (StateTensor& tensor : state.tensors) {
      const at::Tensor flat = tensor.local.view({-1});
      for (const StatePiece& piece : tensor.pieces) {
        flat.narrow(0, piece.local_offset, piece.numel)
            .copy_(whole.at(tensor.fqn + "/" + tensor.slot).narrow(0, piece.global_offset, piece.numel));
      }
    }
    runner.set_optimizer_steps(steps);
  };
  std::vector<Job> others(4, fsdp1(2));
  others[1].fsdp.use_orig_params = false;
  others[1].fsdp.strategy = Strategy::NoShard;
  others[2].fsdp.runtime = Runtime::Fsdp2;
  others[3].fsdp.runtime = Runtime::None;
  for (const Job& job : others) {
    const auto resumed = TinyRanks(job).train({3, 3, kRates, load, {}});
    for (const RankTrace& trace : resumed) ASSERT_EQ(trace.failure, "");
    expect_close(ranks.model(), straight, resumed, std::string(runtime_name(job.fsdp.runtime)));
  }
}

TEST(Evaluation, GivesTheNextLossAndLeavesNoTrace) {
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2, Runtime::None}) {
    Job job = fsdp1(2);
    job.fsdp.runtime = runtime;
    const auto plain = trained(job, 3);
    Job forward_only = job;
    forward_only.train.script = {{"eval", "nograd_fwd", "train"}};
    TinyRanks ranks(job);
    std::vector<Plan> plans = {ranks.plan(forward_only, 0), ranks.plan(forward_only, 1)};
    std::vector<double> losses(2);
    std::vector<double> after(2);
    const auto traces = ranks.train({0, 2, kRates, {}, [&](int rank, PlanRunner& runner) {
                                       const auto at = static_cast<std::size_t>(rank);
                                       losses[at] = runner.evaluate(plans[at], ranks.inputs(2, rank)).value().loss;
                                       after[at] = runner.step(ranks.inputs(2, rank), kRates[2]).value().loss;
                                     }});
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(traces[rank].failure, "");
      EXPECT_EQ(losses[rank], plain[rank].steps[2].loss);
      EXPECT_EQ(after[rank], plain[rank].steps[2].loss);
    }
    expect_close(ranks.model(), plain, traces, "after an evaluation");
  }
}

TEST(Schedules, GradientsThatStayAsZerosChangeNoBit) {
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2}) {
    for (const bool offload : {false, true}) {
      Job job = fsdp1(2);
      job.fsdp.runtime = runtime;
      job.fsdp.cpu_offload = offload;
      const auto dropped = trained(job);
      job.train.zero_grad = "zero";
      expect_equal_bits(dropped, trained(job), std::string(runtime_name(runtime)) + (offload ? ", offload" : ""));
    }
  }
}

TEST(Runner, WhatIsNotRunIsRefusedByInstruction) {
  Job job = fsdp1(2);
  job.train.script = {{"zero", "summon{", "}", "fwd", "bwd", "step"}};
  EXPECT_THAT(TinyRanks(job).train(1, kRates)[0].failure, ::testing::HasSubstr("instruction "));
  job.train.script = {{"zero", "fwd", "fwd", "bwd_all", "step"}};
  EXPECT_THAT(TinyRanks(job).train(1, kRates)[0].failure, ::testing::HasSubstr("second forward"));
}

}  // namespace
}  // namespace foreshard::exec
