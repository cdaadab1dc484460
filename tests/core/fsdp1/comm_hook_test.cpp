// Communication hooks in plans (G5), as PyTorch's own default_hooks.py runs them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Job job_of(const std::string& hook) {
  Job job;
  job.model.source = std::string(FORESHARD_SOURCE_DIR) + "/examples/toy/model.json";
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.wrap.classes = {"Linear"};
  job.fsdp.mixed_precision = MixedPrecision::none();
  job.fsdp.use_orig_params = false;  // flat parameters of 16250 elements are padded only when they are reduced
  job.fsdp.comm_hook = hook;
  job.cluster.world_size = job.cluster.ranks_per_node = 4;
  return job;
}

Result<Plan> plan_of(const Job& job) {
  const auto model = load_model(job.model);
  if (!model) return fail(model.error());
  return build_plan(*model, job);
}

/// What the reduction of unit "up" does in the steady iteration: "kind what dtype", factors and names behind.
std::vector<std::string> reduction(const Plan& plan) {
  std::vector<std::string> out;
  const UnitId up = plan.find_unit("up");
  bool reducing = false;  // from the wait for the backward on
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (i.phase != Phase::PostBackward || (i.unit.valid() && i.unit != up)) {
      reducing = false;
      continue;
    }
    if (i.kind == InstructionKind::WaitStream) reducing = i.stream == Stream::G;
    if (!reducing || i.unit != up || i.kind == InstructionKind::NoteUse || i.kind == InstructionKind::Mark) continue;
    std::string text = fmt::format("{} {}", instruction_kind_name(i.kind), buffer_what_name(i.buffer.what));
    if (i.kind != InstructionKind::Free) text += fmt::format(" {} {}", i.numel, dtype_name(i.dtype));
    if (i.factor != 0) text += fmt::format(" /{}", i.factor);
    if (i.name.valid()) text += fmt::format(" {}", plan.name_of(i.name));
    out.push_back(text);
  }
  return out;
}

void expect_checked(const Plan& plan) {
  for (const PlanCheck& check : plan.checks) EXPECT_NE(check.status, CheckStatus::Fail) << check.name << check.text;
}

TEST(CommHook, CompressionReplacesGradientAndOutputAndDividesInBetween) {
  const auto plan = plan_of(job_of("fp16_compress"));
  ASSERT_TRUE(plan) << to_text(plan.error());
  EXPECT_THAT(
      reduction(*plan),
      ElementsAre("alloc grad_padded 16252 float32", "pad grad_padded 16252 float32", "alloc reduce_out 4063 float32",
                  "alloc compressed_grad 16252 float16", "cast compressed_grad 16252 float16", "free grad_padded",
                  "alloc compressed_out 4063 float16", "cast compressed_out 4063 float16", "free reduce_out",
                  "divide none 16252 float16 /2", "reduce_scatter compressed_out 16252 float16",
                  "divide none 4063 float16 /2", "alloc shard_grad 4063 float32", "cast shard_grad 4063 float32",
                  "free compressed_out", "free compressed_grad", "free grad"));
  for (const Instruction& i : plan->iterations.back().instructions) {
    if (i.kind == InstructionKind::ReduceScatter) {
      EXPECT_EQ(i.bytes, 2 * i.numel);
    }
  }
  expect_checked(*plan);
}

TEST(CommHook, WhatIsInTheHooksTypeAlreadyIsNotCast) {
  Job job = job_of("bf16_compress");
  job.fsdp.use_orig_params = true;
  job.fsdp.mixed_precision.param = DType::BFloat16;
  job.fsdp.mixed_precision.reduce = DType::Float32;
  const auto plan = plan_of(job);
  ASSERT_TRUE(plan) << to_text(plan.error());
  EXPECT_THAT(reduction(*plan), ElementsAre("alloc reduce_out 4063 bfloat16", "divide none 16252 bfloat16 /2",
                                            "reduce_scatter reduce_out 16252 bfloat16", "divide none 4063 bfloat16 /2",
                                            "alloc shard_grad 4063 float32", "cast shard_grad 4063 float32",
                                            "free reduce_out", "free grad"))
      << "the runtime's own cast to the reduce type is left out";
  expect_checked(*plan);
}

TEST(CommHook, UnderNoShardTheGradientItselfIsReplaced) {
  Job job = job_of("fp16_compress");
  job.fsdp.strategy = Strategy::NoShard;
  const auto plan = plan_of(job);
  ASSERT_TRUE(plan) << to_text(plan.error());
  EXPECT_THAT(reduction(*plan), ElementsAre("alloc compressed_grad 16250 float16", "cast compressed_grad 16250 float16",
                                            "divide none 16250 float16 /2", "all_reduce compressed_grad 16250 float16",
                                            "divide none 16250 float16 /2", "alloc shard_grad 16250 float32",
                                            "cast shard_grad 16250 float32", "free compressed_grad", "free grad"));
  expect_checked(*plan);
}

TEST(CommHook, AUsersOwnStandsForTheCollectiveAndDividesItself) {
  Job job = job_of("own:mine");
  job.fsdp.use_orig_params = true;
  auto plan = plan_of(job);
  ASSERT_TRUE(plan) << to_text(plan.error());
  EXPECT_THAT(reduction(*plan), ElementsAre("alloc shard_grad 4063 float32",
                                            "reduce_scatter shard_grad 16252 float32 comm_hook", "free grad"));
  job.fsdp.strategy = Strategy::NoShard;
  plan = plan_of(job);
  ASSERT_TRUE(plan) << to_text(plan.error());
  EXPECT_THAT(reduction(*plan), ElementsAre("all_reduce grad 16252 float32 comm_hook"));
  expect_checked(*plan);
}

TEST(CommHook, HybridUnitsHaveNone) {
  Job job = job_of("fp16_compress");
  job.fsdp.strategy = Strategy::HybridShard;
  job.cluster.shard_group = 2;
  const auto refused = plan_of(job);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::Refused);
  EXPECT_THAT(to_text(refused.error()), HasSubstr("no communication hooks (G5)"));
}

TEST(CommHook, NoneIsThePlanWithout) {
  Job job = job_of("none");
  const auto plan = plan_of(job);
  ASSERT_TRUE(plan);
  for (const std::string& line : reduction(*plan)) EXPECT_THAT(line, Not(HasSubstr("compressed"))) << line;
}

}  // namespace
}  // namespace foreshard
