// What the search may decide, where: blocks that are no units, one rank, smaller units on a full card.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "sim/schedule/schedule_file.h"
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

/// What the job sends to the host may stay where there is room. Where it goes, the bound counts its copies, but for
/// those of blocks that could recompute.
TEST_F(ScheduleSearchTest, ActivationsStayOnTheDeviceWhereThereIsRoom) {
  job.model.batch = 8;
  job.checkpointing.policy = CheckpointPolicy::None;
  job.checkpointing.offload_activations = true;
  const FoundSchedule roomy = found();
  EXPECT_TRUE(roomy.stays_on_device);
  EXPECT_FALSE(roomy.job.checkpointing.offload_activations);
  EXPECT_LT(roomy.step_ns, 0.9 * roomy.fsdp2.step_ns);
  EXPECT_LT(roomy.gap(), 0.05) << roomy.text;
  const std::string text = schedule_json(roomy, model(), /*seconds=*/false);
  EXPECT_EQ(apply_schedule_file(text, "plan.json", job, model()).value(), [&] {
    Job given = roomy.job;
    given.schedule.budget = roomy.budget;
    return given;
  }());
  for (const ScheduledUnit& unit : roomy.units) EXPECT_NE(unit.decided.activations, "offload") << unit.decided.module;

  // Below the least budget of what stays, it goes.
  std::string deep = kScheduleConfig;
  for (const auto& [from, to] : {std::pair("8000", "512"), std::pair("_layers\": 6", "_layers\": 10")})
    deep.replace(deep.find(from), std::string(from).size(), to);
  std::ofstream(job.model.source) << deep;
  job.schedule.budget = 1;
  const Bytes sent = found().least_budget;
  job.checkpointing.offload_activations = false;
  const Bytes kept = found().least_budget;
  ASSERT_LT(sent, kept);
  job.checkpointing.offload_activations = true;
  job.schedule.budget = (sent + kept) / 2;
  const FoundSchedule tight = found();
  EXPECT_TRUE(tight.fits);
  EXPECT_FALSE(tight.stays_on_device);
  EXPECT_TRUE(tight.job.checkpointing.offload_activations);
  EXPECT_GE(tight.step_ns * 1.000001, tight.bound.ns);
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
  EXPECT_EQ(full.first_retries + full.alloc_retries, predicted(full.job).iterations.back().alloc_retries);
  FoundSchedule settles = full;  // a card that is full until the allocator has settled
  settles.driver_allocs = settles.alloc_retries = 0;
  settles.first_retries = 3;
  EXPECT_THAT(room_advice_of(settles), HasSubstr("3 times in all"));
  settles.first_retries = 0;
  EXPECT_EQ(room_advice_of(settles), "");
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

/// Ranks of other dimensions meet beside what is sharded: the schedule is of what FSDP gathers.
TEST_F(ScheduleSearchTest, AMeshIsScheduledToo) {
  for (const bool context : {false, true}) {
    job.mesh = {};
    (context ? job.mesh.context : job.mesh.tensor) = 2;
    Job fsdp2 = job;
    fsdp2.fsdp.runtime = Runtime::Fsdp2;
    Job given = job;
    given.schedule.objective = "given";  // nothing decided
    const Prediction own = predicted(fsdp2), same = predicted(given);
    EXPECT_EQ(same.step_time_ns.value, own.step_time_ns.value) << context;
    EXPECT_EQ(same.memory.reserved, own.memory.reserved) << context;
    given.checkpointing = {};  // every unit runs once: V3 counts
    for (const PlanCheck& check : prepare(given).value().plan.checks)
      EXPECT_NE(check.status, CheckStatus::Fail) << check.name << " " << check.text;
    const FoundSchedule schedule = found();
    ASSERT_TRUE(schedule.fits) << context;
    EXPECT_LT(schedule.step_ns, 0.95 * schedule.fsdp2.step_ns) << context;
    EXPECT_GE(schedule.step_ns, schedule.bound.ns) << context;
    EXPECT_EQ(predicted(schedule.job).step_time_ns.value, schedule.step_ns) << context;
  }
}

/// Experts are units of their own, sharded over fewer ranks: their collectives may run beside the others'.
TEST_F(ScheduleSearchTest, ExpertsOfAMeshAreUnitsOfTheSchedule) {
  std::ofstream(job.model.source) << kExpertsConfig;
  job.mesh.expert = 2;
  job.train.clip_grad_norm = 0;
  const FoundSchedule schedule = found();
  ASSERT_TRUE(schedule.fits);
  EXPECT_TRUE(std::any_of(schedule.units.begin(), schedule.units.end(), [](const ScheduledUnit& unit) {
    return unit.decided.module.find("experts") != std::string::npos;
  })) << schedule.text;
  EXPECT_LE(schedule.step_ns, schedule.fsdp2.step_ns);
  EXPECT_GE(schedule.step_ns, schedule.bound.ns);
}

/// Experts that lie whole on one rank: gathers are for nothing in the bound, but not the optimizer's own.
TEST_F(ScheduleSearchTest, WhatMuonGathersIsInTheBound) {
  std::ofstream(job.model.source) << kExpertsConfig;
  job.mesh.expert = 8;
  job.train.clip_grad_norm = 0;
  job.train.optimizer.name = OptimizerKind::Muon;
  const FoundSchedule schedule = found();
  ASSERT_TRUE(schedule.fits);
  EXPECT_GE(schedule.step_ns, schedule.bound.ns);
  EXPECT_LT(schedule.step_ns, 1.1 * schedule.bound.ns) << schedule.text;
}

/// A value that the host reads behind every block holds up the next one's gather, which fsdp2 issues when that block
/// begins, unless it was issued ahead.
TEST_F(ScheduleSearchTest, GathersStartAheadOfAHostThatWaits) {
  job.model = {};
  job.model.source = FORESHARD_TEST_DATA "/sim/host_waits.json";
  job.fsdp.wrap.classes = {"Block"};
  job.schedule.objective = "given";
  const double own = predicted(job).step_time_ns.value;
  job.fsdp.prefetch.forward_depth = 1;
  const Prediction ahead = predicted(job);
  EXPECT_LT(ahead.step_time_ns.value, 0.97 * own);
  job.fsdp.prefetch.forward_depth = 0;
  job.schedule.objective = "time";
  job.schedule.budget = ahead.memory.reserved;
  const FoundSchedule schedule = found();
  EXPECT_TRUE(schedule.explicit_starts);
  EXPECT_LE(schedule.step_ns, ahead.step_time_ns.value);
  EXPECT_GE(schedule.step_ns, schedule.bound.ns);
}

/// Three experts over eight ranks are padded to eight along their first dimension, not along their second.
TEST_F(ScheduleSearchTest, PaddingIsToldWithWhatOtherShardsWouldDo) {
  std::string experts = kExpertsConfig;
  experts.replace(experts.find("\"experts\": 8"), 12, "\"experts\": 3");
  std::ofstream(job.model.source) << experts;
  const FoundSchedule schedule = found();
  EXPECT_GT(schedule.padding, 0.05);
  ASSERT_GT(schedule.unpadded.step_ns, 0) << schedule.text;
  EXPECT_LT(schedule.unpadded.step_ns, schedule.step_ns);
  EXPECT_THAT(shard_advice_of(schedule), HasSubstr("layers.*.moe.experts"));
}

/// A gather starts so many units before the one that needs it in its own order: a head is the last of forward and the
/// first of backward. Why something goes is said of what is true.
TEST_F(ScheduleSearchTest, LeadsAreCountedWhereTheyAreAndReasonsAreTrue) {
  job.fsdp.wrap.policy = WrapPolicyKind::Units;
  job.fsdp.wrap.units = {{"model.embed_tokens"}, {"model.layers.*"}, {"lm_head"}};
  job.fsdp.overrides.push_back({});
  job.fsdp.overrides.back().units = {"lm_head"};
  job.fsdp.overrides.back().reshard_after_forward = ReshardAfterForward{ReshardAfterForward::Kind::True, 0};
  job.schedule.objective = "memory";
  const FoundSchedule schedule = found();
  ASSERT_FALSE(schedule.units.empty());
  for (const ScheduledUnit& unit : schedule.units) {
    ASSERT_TRUE(unit.ahead_forward.has_value());
    EXPECT_EQ(unit.ahead_backward.has_value(), unit.decided.gather_backward.has_value());
    EXPECT_EQ(*unit.ahead_forward == 0, unit.decided.gather_forward == unit.decided.module);
    if (unit.decided.module == "lm_head" && unit.ahead_backward) EXPECT_LE(*unit.ahead_backward, 1);
    if (unit.decided.keep == "reshard") EXPECT_THAT(unit.why, HasSubstr("gives "));
  }
  job.schedule.objective = "time";
  job.fsdp.frozen = {"model.embed_tokens.weight"};  // whose backward nobody needs
  for (const ScheduledUnit& unit : found().units) {
    if (unit.decided.module == "model.embed_tokens") EXPECT_THAT(unit.why, HasSubstr("backward does not need"));
  }
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
