// Section 10: unshard_params. Played by fsdp1's runtime; sizes as in init_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/actions/fixture.h"

namespace foreshard::actions_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> units_with(const Plan& plan, InstructionKind kind) {
  std::vector<std::string> units;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (i.kind == kind) units.push_back(plan.units[i.unit.index()].name);
  }
  return units;
}

TEST(Summon, GathersEveryShardedUnitOnceOnTheComputeStream) {  // U3
  const Plan plan = plan_of(chain(), "summon");
  EXPECT_EQ(count(plan.iterations[0], InstructionKind::AllGather), 4);
  for (const Instruction& i : plan.iterations[0].instructions) {
    EXPECT_TRUE(i.stream == Stream::D || i.stream == Stream::Host);
    EXPECT_EQ(i.phase, Phase::Summon);
  }
}

TEST(Summon, HoldsTheSumOfAllFullParameters) {  // U5: 3 blocks of 100 and a root of 40, fp32
  const ActionMemory memory = action_memory(plan_of(chain(), "summon").iterations[0]);
  EXPECT_EQ(memory.device_peak, 1360);
  EXPECT_EQ(memory.device_end, 0);
}

TEST(Summon, EntersUnitsInOrderAndLeavesThemInReverse) {  // U3
  const Plan plan = plan_of(chain(), "summon");
  EXPECT_THAT(units_with(plan, InstructionKind::AllGather), ElementsAre("", "B0", "B1", "B2"));
  EXPECT_THAT(units_with(plan, InstructionKind::LimiterPush), ElementsAre("B2", "B1", "B0", ""));
  EXPECT_EQ(plan.iterations[0].limiter_queue.size(), 4U);
}

TEST(Summon, WithoutRecursionOnlyTheRootIsGathered) {  // U1
  EXPECT_THAT(units_with(plan_of(chain(), "summon:no_recurse"), InstructionKind::AllGather), ElementsAre(""));
}

TEST(Summon, WritesItsOwnRangeBackUnlessToldNotTo) {  // U4
  EXPECT_THAT(units_with(plan_of(chain(), "summon"), InstructionKind::CopyOut), ElementsAre("B2", "B1", "B0", ""));
  EXPECT_THAT(units_with(plan_of(chain(), "summon:no_writeback"), InstructionKind::CopyOut), IsEmpty());
}

TEST(Summon, OtherRanksHoldNothingInsideUnderRank0Only) {  // U3
  Subject subject = chain();
  EXPECT_EQ(action_memory(plan_of(subject, "summon:rank0_only:no_writeback").iterations[0]).device_peak, 1360);
  subject.job.cluster.rank = 1;
  const Plan plan = plan_of(subject, "summon:rank0_only:no_writeback");
  EXPECT_EQ(action_memory(plan.iterations[0]).device_peak, 400);  // one unit at a time takes part
  EXPECT_EQ(count(plan.iterations[0], InstructionKind::AllGather), 4);
}

TEST(Summon, OffloadedParametersLeaveTheDeviceUnitByUnit) {  // U3
  const Plan plan = plan_of(chain(), "summon:offload:rank0_only:no_writeback");
  EXPECT_EQ(count(plan.iterations[0], InstructionKind::D2h), 4);
  EXPECT_EQ(action_memory(plan.iterations[0]).device_peak, 400);
  EXPECT_THAT(plan.warnings, IsEmpty());
  EXPECT_THAT(plan_of(chain(), "summon:offload").warnings, ElementsAre(HasSubstr("once per rank")));
}

TEST(Summon, RefusesWhatPyTorchRefuses) {  // U2
  Subject subject = chain();
  EXPECT_THAT(error_of(subject, "summon:rank0_only"), HasSubstr("NotImplementedError"));
  EXPECT_THAT(error_of(subject, "summon:with_grads"), HasSubstr("NotImplementedError"));
  subject.job.fsdp.use_orig_params = true;
  EXPECT_EQ(error_of(subject, "summon:with_grads"), "");
  EXPECT_THAT(error_of(subject, "summon:with_grads:offload:rank0_only:no_writeback"), HasSubstr("NotImplementedError"));
  subject.job.fsdp.strategy = Strategy::NoShard;
  EXPECT_THAT(error_of(subject, "summon:offload"), HasSubstr("NO_SHARD"));
  subject.job.fsdp.runtime = Runtime::Fsdp2;
  subject.job.fsdp.strategy = Strategy::FullShard;
  EXPECT_THAT(error_of(subject, "summon"), HasSubstr("belongs to fsdp1"));
}

TEST(Summon, GradientsAreGatheredAfterATrainingIteration) {  // U1, G8
  Subject subject = chain();
  subject.job.fsdp.use_orig_params = true;
  const Plan plan = plan_of(subject, "init,summon:with_grads");
  ASSERT_EQ(plan.iterations.size(), 3U);
  EXPECT_EQ(plan.iterations[2].actions, (std::vector<std::string>{"summon:with_grads"}));
  EXPECT_EQ(count(plan.iterations[2], InstructionKind::AllGather), 8);
  EXPECT_FALSE(plan.segments.empty());
}

TEST(Summon, ParametersComeInFullPrecision) {  // U3, M7
  Subject subject = chain();
  subject.job.fsdp.mixed_precision.param = DType::BFloat16;
  EXPECT_EQ(action_memory(plan_of(subject, "summon").iterations[0]).device_peak, 1360);
}

}  // namespace
}  // namespace foreshard::actions_test
