#include "shadow/differences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foreshard::shadow {
namespace {

using ::testing::HasSubstr;

/// Root and two units on four ranks: each gathered twice (the root once), each reduced, one norm.
Plan small_plan() {
  Plan plan;
  plan.world_size = 4;
  plan.communicators.push_back({"world", "shard", {0, 1, 2, 3}});
  for (const char* name : {"", "h.0", "h.1"}) plan.units.push_back({.name = name});
  PlanIteration iteration;
  const auto add = [&](InstructionKind kind, int unit, Numel numel, DType dtype) {
    Instruction in;
    in.kind = kind;
    if (unit >= 0) in.unit = UnitId{unit};
    in.numel = numel;
    in.dtype = dtype;
    in.communicator = CommunicatorId{0};
    iteration.instructions.push_back(in);
  };
  for (const int unit : {0, 1, 2, 2, 1}) add(InstructionKind::AllGather, unit, 100, DType::BFloat16);
  for (const int unit : {2, 1, 0}) add(InstructionKind::ReduceScatter, unit, 100, DType::Float32);
  add(InstructionKind::AllReduce, -1, 1, DType::Float32);
  plan.iterations.push_back(iteration);
  return plan;
}

TEST(Differences, ThereAreNoneToThePlansOwnCollectives) {
  const Plan plan = small_plan();
  EXPECT_TRUE(schedule_differences(planned_collectives(plan), plan).empty());
}

/// The one difference that a change of the plan's own collectives makes.
template <class Change>
Difference only_difference(Change change) {
  const Plan plan = small_plan();
  auto script = planned_collectives(plan);
  change(script);
  const auto found = schedule_differences(script, plan);
  EXPECT_EQ(found.size(), 1u);
  return found.empty() ? Difference{} : found.front();
}

TEST(Differences, WhatAStepMeetsInIsNoUnits) {
  Plan plan = small_plan();
  Instruction scales = plan.iterations.back().instructions.back();
  scales.unit = UnitId{1};
  scales.phase = Phase::Optimizer;
  plan.iterations.back().instructions.push_back(scales);
  EXPECT_EQ(planned_collectives(plan).back().unit, "");
}

TEST(Differences, NamesAMissingUnit) {
  const Difference found = only_difference(
      [](auto& script) { std::erase_if(script, [](const LoggedCollective& each) { return each.unit == "h.1"; }); });
  EXPECT_EQ(found.kind, "unit");
  EXPECT_EQ(found.where, "h.1");
  EXPECT_THAT(found.text, HasSubstr("it is a unit in the plan"));
}

TEST(Differences, NamesAnExtraGather) {
  const Difference found = only_difference([](auto& script) { script.push_back(script[0]); });
  EXPECT_EQ(found.kind, "gather");
  EXPECT_EQ(found.text, "(root): 2 gathers a step in the script, 1 in the plan");
}

TEST(Differences, NamesACastOfAllUnitsOnce) {
  const Difference found = only_difference([](auto& script) {
    for (LoggedCollective& each : script) {
      if (each.kind == CollectiveKind::Reduce) each.element = 2, each.bytes /= 2;
    }
  });
  EXPECT_EQ(found.kind, "cast");
  EXPECT_EQ(found.where, "(root), h.0, h.1");
  EXPECT_THAT(found.text, HasSubstr("2 bytes (bfloat16, float16) in the script, of 4 bytes (float32) in the plan"));
}

TEST(Differences, NamesAnotherOrder) {
  const Difference found = only_difference([](auto& script) { std::swap(script[1], script[2]); });
  EXPECT_EQ(found.kind, "order");
  EXPECT_EQ(found.where, "collective 2");
}

TEST(Differences, LeavesOutCollectivesThatMeetNobody) {
  const Plan plan = small_plan();
  auto script = planned_collectives(plan);
  script.push_back({CollectiveKind::AllReduce, "", 4, 4, 1});
  EXPECT_TRUE(schedule_differences(script, plan).empty());
}

TEST(Differences, WhatAProgramMeetsInsideHasNoOrder) {
  const Plan plan = small_plan();
  auto script = planned_collectives(plan);
  const std::vector<LoggedCollective> inside{{CollectiveKind::Reduce, "", 4096, 4, 2}};
  script.insert(script.begin() + 1, inside.front());
  EXPECT_TRUE(schedule_differences(script, plan, &inside).empty());
}

TEST(Differences, WhatAProgramMeetsInsideIsComparedByKindAndBytes) {
  const Plan plan = small_plan();
  auto script = planned_collectives(plan);
  script.push_back({CollectiveKind::AllReduce, "", 4, 4, 2});  // a loss that is logged
  const std::vector<LoggedCollective> inside{{CollectiveKind::AllReduce, "", 4096, 4, 2}};
  script.push_back({CollectiveKind::Reduce, "", 4096, 4, 2});
  const auto found = schedule_differences(script, plan, &inside);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].text, "outside of units: 1 reduce of 4096 bytes a step in the script, 0 in the plan");
  EXPECT_EQ(found[1].text, "outside of units: 0 all-reduces of 4096 bytes a step in the script, 1 in the plan");
}

TEST(Differences, AllToAllsOfGivenSizesAreSends) {
  const Plan plan = small_plan();
  auto script = planned_collectives(plan);
  const std::vector<LoggedCollective> inside{{CollectiveKind::AllToAll, "", 4096, 4, 2}};
  EXPECT_EQ(schedule_differences(script, plan, &inside).size(), 1U);
  script.push_back({CollectiveKind::Other, "", 4096, 4, 2});
  EXPECT_TRUE(schedule_differences(script, plan, &inside).empty());
}

TEST(Differences, OfAProgramTheLastIterationCountsOnce) {
  Plan plan = small_plan();
  plan.communicators.push_back({"tensor", "tensor", {0, 1}});
  const auto first = static_cast<std::int32_t>(plan.iterations.back().instructions.size());
  for (int i = 0; i < 2; ++i) {
    Instruction segment;
    segment.kind = InstructionKind::Forward;
    plan.iterations.back().instructions.push_back(segment);
  }
  Timeline timeline;
  timeline.names = {"tensor", "all_reduce"};
  const auto span = [&](SpanKind kind, std::int32_t instruction, Bytes bytes) {
    Span made;
    made.kind = kind;
    made.instruction = InstructionId(instruction);
    made.bytes = bytes;
    if (bytes > 0) made.communicator = NameId(0);
    timeline.spans.push_back(made);
  };
  for (int i = 0; i < 2; ++i) {                       // played twice, until the allocator has settled
    span(SpanKind::AllGather, i * (first + 2), 400);  // a unit's
    span(SpanKind::AllReduce, i * (first + 2) + first, 4096);
    span(SpanKind::Compute, i * (first + 2) + first + 1, 0);
  }
  const auto inside = collectives_inside(plan, timeline);
  ASSERT_EQ(inside.size(), 1U);
  EXPECT_EQ(inside.front().bytes, 4096);
  EXPECT_EQ(inside.front().ranks, 2);
}

}  // namespace
}  // namespace foreshard::shadow
