// Matrices that torchao gathers in 8 bits. What PyTorch 2.11 with torchao 0.18 was seen to do is `oracle.float8`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "core/plan/checks/checks.h"
#include "tests/core/fsdp2/chain.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

/// The chain, whose middle block's matrix [6, 5] travels in 8 bits.
Model narrow_chain(const std::string& name = "b1.weight") {
  Model model = chain_model();
  model.params[model.find_param(name).index()].gathered = DType::Float8E4M3;
  return model;
}

Job float8_job(const std::string& scales, std::int64_t world = 2) {
  Job job = chain_job(world);
  job.model.float8 = "tensorwise";
  job.fsdp.float8_all_gather = scales;
  return job;
}

std::vector<Instruction> where(const PlanIteration& iteration, InstructionKind kind, const UnitId* unit = nullptr) {
  std::vector<Instruction> found;
  for (const Instruction& i : iteration.instructions)
    if (i.kind == kind && (unit == nullptr || i.unit == *unit)) found.push_back(i);
  return found;
}

UnitId unit_named(const Plan& plan, const std::string& name) {
  const auto at =
      std::find_if(plan.units.begin(), plan.units.end(), [&](const PlanUnit& unit) { return unit.name == name; });
  return UnitId(static_cast<std::size_t>(at - plan.units.begin()));
}

TEST(NarrowShards, TravelAsBytesBesideWhatIsWide) {
  const Plan plan = plan_chain(float8_job("precomputed"), narrow_chain()).value();
  const UnitId unit = unit_named(plan, "b1");
  const auto gathers = where(plan.iterations[1], InstructionKind::AllGather, &unit);
  ASSERT_FALSE(gathers.empty());
  EXPECT_EQ(gathers[0].dtype, DType::UInt8);
  EXPECT_EQ(gathers[0].bytes, 2 * (15 * 1 + 3 * 4));  // of two ranks: [3, 5] in 8 bits, three biases in float32
  const auto full = where(plan.iterations[1], InstructionKind::Resize);
  EXPECT_TRUE(std::any_of(full.begin(), full.end(), [](const Instruction& i) { return i.bytes == 30; }));
}

TEST(NarrowShards, ScalesAreMadeBehindEachStepFromTheFirstOn) {
  const Plan plan = plan_chain(float8_job("precomputed"), narrow_chain()).value();
  const auto first = where(plan.iterations[0], InstructionKind::AllReduce);
  ASSERT_EQ(first.size(), 3U) << "forward's and backward's gather find no scale yet";
  EXPECT_EQ(first[0].reduce_op, ReduceOp::Max);
  EXPECT_EQ(first[0].stream, Stream::M);
  for (std::size_t k = 1; k < plan.iterations.size(); ++k)
    EXPECT_EQ(where(plan.iterations[k], InstructionKind::AllReduce).size(), 1U);
  EXPECT_EQ(plan.iterations[1].instructions.size(), plan.iterations[2].instructions.size()) << "every step is the same";
}

TEST(NarrowShards, ScalesOfTheMomentTakeAnAllReduceEach) {
  const Plan plan = plan_chain(float8_job("dynamic"), narrow_chain()).value();
  for (const PlanIteration& iteration : plan.iterations)
    EXPECT_EQ(where(iteration, InstructionKind::AllReduce).size(), 2U);
  const Plan alone = plan_chain(float8_job("dynamic", 1), narrow_chain()).value();
  EXPECT_TRUE(where(alone.iterations[1], InstructionKind::AllReduce).empty());
}

TEST(NarrowShards, TheChecksOfAPlanHold) {
  for (const std::string scales : {"precomputed", "dynamic"}) {
    Plan plan = plan_chain(float8_job(scales), narrow_chain()).value();
    for (const PlanCheck& check : run_checks(plan))
      EXPECT_NE(check.status, CheckStatus::Fail) << check.name << check.text;
  }
}

TEST(NarrowShards, UnevenShardsAreRefusedAsPyTorchFails) {
  const auto uneven = plan_chain(float8_job("precomputed"), narrow_chain("b0.weight"));  // five rows
  ASSERT_FALSE(uneven);
  EXPECT_THAT(uneven.error().message, HasSubstr("RuntimeError: setStorage"));
  EXPECT_THAT(uneven.error().hint, HasSubstr("fsdp.float8_all_gather"));
}

TEST(NarrowShards, PartialReshardsAreRefusedAsPyTorchFails) {
  Job job = float8_job("precomputed", 6);
  job.fsdp.reshard_after_forward = {ReshardAfterForward::Kind::GroupSize, 2};
  const auto partial = plan_chain(job, narrow_chain());
  ASSERT_FALSE(partial);
  EXPECT_THAT(partial.error().message, HasSubstr("NotImplementedError"));
}

TEST(NarrowShards, AutoLeavesOutWhatCannotBeGatheredSo) {
  Job job = float8_job("auto");
  EXPECT_TRUE(gathers_float8(job));
  job.fsdp.reshard_after_forward = {ReshardAfterForward::Kind::GroupSize, 2};
  EXPECT_FALSE(gathers_float8(job));
  job.fsdp.float8_all_gather = "precomputed";
  EXPECT_TRUE(gathers_float8(job)) << "what was asked for is refused, not left out";
  job.fsdp.runtime = Runtime::Fsdp1;
  EXPECT_FALSE(gathers_float8(job));
  job = float8_job("auto");
  job.model.float8 = "rowwise";
  EXPECT_FALSE(gathers_float8(job));
}

}  // namespace
}  // namespace foreshard
