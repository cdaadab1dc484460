// Communication hooks, run (G5): PyTorch's two against hooks written out by hand, and a user's own.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "exec/units/comm_hook.h"
#include "tests/exec/tiny_ranks.h"

namespace foreshard::exec {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 4;

Job job_with(const std::string& hook, Strategy strategy, int world) {
  Job job = tiny_llama_job(world);
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.strategy = strategy;
  job.fsdp.comm_hook = hook;
  return job;
}

std::vector<RankTrace> trained(const Job& job, CommHook hook = {}) {
  TinyRanks ranks(job);
  TinyRanks::Run run{0, kSteps, std::vector<double>(kSteps, 1e-3), {}, {}, std::move(hook)};
  auto traces = ranks.train(run);
  for (const RankTrace& trace : traces) EXPECT_EQ(trace.failure, "");
  return traces;
}

void expect_same(const std::vector<RankTrace>& a, const std::vector<RankTrace>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t rank = 0; rank < a.size(); ++rank) {
    ASSERT_EQ(a[rank].steps.size(), static_cast<std::size_t>(kSteps));
    ASSERT_EQ(b[rank].steps.size(), static_cast<std::size_t>(kSteps));
    for (std::size_t s = 0; s < kSteps; ++s) EXPECT_EQ(a[rank].steps[s].loss, b[rank].steps[s].loss) << "step " << s;
    for (const auto& [fqn, shard] : a[rank].shards) EXPECT_TRUE(shard.equal(b[rank].shards.at(fqn))) << fqn;
  }
}

/// The division before and behind the reduction (G4).
std::pair<double, double> factors(int ranks) {
  double pre = 1;
  while (std::fmod(ranks, pre) == 0 && ranks / pre > pre) pre *= 2;
  return {pre, ranks / pre};
}

/// What default_hooks.py does, in one piece of code.
CommHook compressing(DType dtype, at::ScalarType type) {
  return [dtype, type](const CommHookCall& call) {
    const auto [pre, post] = factors(call.ranks);
    at::Tensor compressed = call.gradient.to(type, /*non_blocking=*/false, /*copy=*/true);
    if (pre > 1) compressed.div_(pre);
    if (!call.output.defined()) {
      call.group->all_reduce(compressed.data_ptr(), compressed.numel(), dtype, ReduceOp::Sum);
      if (post > 1) compressed.div_(post);
      call.gradient.copy_(compressed);
      return;
    }
    at::Tensor mine = at::empty({call.output.numel()}, at::dtype(type));
    call.group->reduce_scatter(mine.data_ptr(), compressed.data_ptr(), mine.numel(), dtype, ReduceOp::Sum);
    if (post > 1) mine.div_(post);
    call.output.copy_(mine);
  };
}

TEST(CommHook, Bf16CompressionEqualsTheHookWrittenOut) {
  const CommHook by_hand = compressing(DType::BFloat16, at::kBFloat16);
  for (const Strategy strategy : {Strategy::FullShard, Strategy::ShardGradOp, Strategy::NoShard}) {
    for (const int world : {2, 4}) {
      expect_same(trained(job_with("bf16_compress", strategy, world)),
                  trained(job_with("own:by_hand", strategy, world), by_hand));
    }
  }
}

TEST(CommHook, Fp16CompressionOfPaddedFlatParameters) {
  Job job = job_with("fp16_compress", Strategy::FullShard, 4);
  job.fsdp.use_orig_params = false;
  Job own = job;
  own.fsdp.comm_hook = "own:by_hand";
  expect_same(trained(job), trained(own, compressing(DType::Float16, at::kHalf)));
}

TEST(CommHook, CompressesHeldGradientsAndThoseOfBf16Units) {
  Job job = job_with("fp16_compress", Strategy::FullShard, 2);
  job.train.micro_batches = 2;
  job.train.no_sync = true;
  job.train.clip_grad_norm = 1.0;
  Job own = job;
  own.fsdp.comm_hook = "own:by_hand";
  expect_same(trained(job), trained(own, compressing(DType::Float16, at::kHalf)));
  for (const bool no_sync : {true, false}) {
    job.train.no_sync = own.train.no_sync = no_sync;
    job.fsdp.mixed_precision = {DType::BFloat16, DType::Float32, {}, {}, false, {}};
    own.fsdp.mixed_precision = {DType::BFloat16, DType::BFloat16, {}, {}, false, {}};
    job.fsdp.comm_hook = "bf16_compress";  // nothing is cast: the gradient has that type
    expect_same(trained(job), trained(own, compressing(DType::BFloat16, at::kBFloat16)));
  }
}

TEST(CommHook, OffloadTakesTheReducedGradientToTheHost) {
  Job job = job_with("bf16_compress", Strategy::FullShard, 2);
  Job offloaded = job;
  offloaded.fsdp.cpu_offload = true;
  expect_same(trained(job), trained(offloaded));
}

TEST(CommHook, CompressionIsNotNothing) {
  const auto none = trained(job_with("none", Strategy::FullShard, 2));
  const auto some = trained(job_with("bf16_compress", Strategy::FullShard, 2));
  EXPECT_NE(none[0].steps.back().loss, some[0].steps.back().loss);
  EXPECT_NEAR(none[0].steps.back().loss, some[0].steps.back().loss, 1e-2);
}

TEST(CommHook, APlainMeanOfAUsersOwnIsFsdpsReduction) {
  const CommHook mean = [](const CommHookCall& call) {
    const auto [pre, post] = factors(call.ranks);
    if (pre > 1) call.gradient.div_(pre);
    const at::Tensor& to = call.output.defined() ? call.output : call.gradient;
    if (call.output.defined()) {
      call.group->reduce_scatter(to.data_ptr(), call.gradient.data_ptr(), to.numel(), DType::Float32, ReduceOp::Sum);
    } else if (call.group != nullptr) {
      call.group->all_reduce(to.data_ptr(), to.numel(), DType::Float32, ReduceOp::Sum);
    }
    if (post > 1) to.div_(post);
  };
  for (const Strategy strategy : {Strategy::FullShard, Strategy::NoShard}) {
    for (const int world : {1, 2, 4}) {
      expect_same(trained(job_with("none", strategy, world)), trained(job_with("own:mean", strategy, world), mean));
    }
  }
}

TEST(CommHook, OneThatNobodyBroughtIsToldBeforeAnythingRuns) {
  TinyRanks ranks(job_with("own:mine", Strategy::FullShard, 2));
  for (const RankTrace& trace : ranks.train(1, {1e-3})) {
    EXPECT_THAT(trace.failure, HasSubstr("calls a communication hook of your own"));
  }
}

TEST(CommHook, WhatAHookThrowsEndsTheStepAtItsInstruction) {
  TinyRanks ranks(job_with("own:mine", Strategy::FullShard, 2));
  const CommHook broken = [](const CommHookCall&) { throw std::runtime_error("no such compression"); };
  for (const RankTrace& trace : ranks.train({0, 1, {1e-3}, {}, {}, broken})) {
    EXPECT_THAT(trace.failure, HasSubstr("no such compression"));
    EXPECT_THAT(trace.failure, HasSubstr("on G"));
  }
}

}  // namespace
}  // namespace foreshard::exec
