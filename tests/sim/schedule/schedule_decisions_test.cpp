// What the search may decide, where: blocks that are no units, one rank, smaller units on a full card.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "sim/schedule/schedule_words.h"
#include "tests/sim/schedule/schedule_fixture.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

TEST_F(ScheduleSearchTest, BlocksAreDecidedWhateverTheUnits) {
  job.fsdp.wrap.policy = WrapPolicyKind::Always;  // linear layers, and blocks without parameters of their own
  job.checkpointing.policy = CheckpointPolicy::EveryK;
  job.checkpointing.k = 2;
  const FoundSchedule schedule = found();
  EXPECT_EQ(schedule.job.checkpointing.policy, CheckpointPolicy::None);  // there is room
  EXPECT_LT(schedule.gap(), 0.05) << schedule.text;
  for (const ScheduledUnit& unit : schedule.units) EXPECT_EQ(unit.decided.activations, "keep") << unit.decided.module;
}

TEST_F(ScheduleSearchTest, OneRankKeepsWhatItWouldCopyAgain) {
  job.cluster.world_size = job.cluster.ranks_per_node = 1;
  const FoundSchedule schedule = found();
  EXPECT_LT(schedule.gap(), 0.01) << schedule.text;
  for (const ScheduledUnit& unit : schedule.units) {
    EXPECT_EQ(unit.decided.keep, "keep") << unit.decided.module;
    EXPECT_THAT(unit.why, HasSubstr("saves a copy"));
  }
}

TEST_F(ScheduleSearchTest, DepthsOfPrefetchingAreSaidOfAnyUnits) {
  job.fsdp.wrap.policy = WrapPolicyKind::None;
  job.fsdp.prefetch.forward_depth = 2;
  EXPECT_GT(found().units.size(), 2U);
  job.fsdp.prefetch.forward_depth = 0;
  job.fsdp.prefetch.forward[""] = {""};  // named: of these units alone
  EXPECT_EQ(found().units.size(), 1U);
}

TEST_F(ScheduleSearchTest, AFullCardIsToldAndGetsSmallerUnits) {
  std::string wide = kScheduleConfig;
  for (const auto& [from, to] : {std::pair("512", "2048"), std::pair("1408", "8192"),
                                 std::pair("\"num_hidden_layers\": 6", "\"num_hidden_layers\": 3")})
    wide.replace(wide.find(from), std::string(from).size(), to);
  std::ofstream(job.model.source) << wide;
  job.model.batch = 1;
  job.model.seq = 64;
  const auto in_parts = [](const FoundSchedule& schedule) {
    return std::any_of(schedule.units.begin(), schedule.units.end(),
                       [](const ScheduledUnit& unit) { return unit.decided.module.find(".mlp") != std::string::npos; });
  };
  const FoundSchedule roomy = found();
  EXPECT_FALSE(in_parts(roomy)) << roomy.text;
  EXPECT_EQ(roomy.alloc_retries, 0);
  job.schedule.budget = 64 * kMiB;
  const Bytes least = found().least_budget;
  ASSERT_GT(least, job.schedule.budget);
  job.schedule.budget = least;
  const FoundSchedule full = found();
  EXPECT_TRUE(in_parts(full)) << full.text;
  ASSERT_GT(full.alloc_retries, 0);
  EXPECT_THAT(room_advice_of(full), HasSubstr("the card is full"));
  Job more = full.job;
  more.schedule.budget = full.roomy.reserved;
  EXPECT_EQ(predicted(more).step_time_ns.value, full.roomy.step_ns);
  EXPECT_LT(full.roomy.step_ns, full.step_ns);
}

TEST_F(ScheduleSearchTest, WithNothingDecidedItIsFsdp2) {
  job.model = {};
  job.model.source = FORESHARD_TEST_DATA "/archives/convnext.pt2";
  job.fsdp.wrap.policy = WrapPolicyKind::None;
  job.checkpointing.reentrant = true;  // parameters without gradients, which have no state
  job.schedule.objective = "given";
  const Prediction planned = predicted(job);
  job.fsdp.runtime = Runtime::Fsdp2;
  const Prediction fsdp2 = predicted(job);
  EXPECT_EQ(planned.step_time_ns.value, fsdp2.step_time_ns.value);
  EXPECT_EQ(planned.memory.allocated, fsdp2.memory.allocated);
  EXPECT_EQ(planned.memory.reserved, fsdp2.memory.reserved);
}

/// Nothing inside of a reentrant region is trained where no input requires a gradient: the first block of an image
/// model. A schedule trains what the job trains.
TEST_F(ScheduleSearchTest, WhatIsTrainedIsNoDecision) {
  job.model = {};
  job.model.source = FORESHARD_TEST_DATA "/archives/convnext.pt2";
  job.fsdp.wrap.policy = WrapPolicyKind::None;
  job.checkpointing.reentrant = true;
  const auto backwards = [](const Job& of) {
    const auto prepared = prepare(of);
    const std::vector<Instruction>& last = prepared.value().plan.iterations.back().instructions;
    return std::count_if(last.begin(), last.end(),
                         [](const Instruction& i) { return i.kind == InstructionKind::Backward; });
  };
  for (const CheckpointPolicy policy : {CheckpointPolicy::None, CheckpointPolicy::Block}) {
    job.checkpointing.policy = policy;
    Job plain = job;
    plain.fsdp.runtime = Runtime::Fsdp2;
    const FoundSchedule schedule = found();
    if (schedule.job.fsdp.wrap == job.fsdp.wrap) EXPECT_EQ(backwards(schedule.job), backwards(plain));
    EXPECT_GE(schedule.step_ns, schedule.bound.ns);
  }
}

}  // namespace
}  // namespace foreshard
