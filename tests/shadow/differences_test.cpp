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

TEST(Differences, NamesAMissingUnit) {
  const Plan plan = small_plan();
  auto script = planned_collectives(plan);
  std::erase_if(script, [](const LoggedCollective& each) { return each.unit == "h.1"; });
  const auto found = schedule_differences(script, plan);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, "unit");
  EXPECT_EQ(found[0].where, "h.1");
  EXPECT_THAT(found[0].text, HasSubstr("it is a unit in the plan"));
}

TEST(Differences, NamesAnExtraGather) {
  const Plan plan = small_plan();
  auto script = planned_collectives(plan);
  script.push_back(script[0]);
  const auto found = schedule_differences(script, plan);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, "gather");
  EXPECT_EQ(found[0].text, "(root): 2 gathers a step in the script, 1 in the plan");
}

TEST(Differences, NamesACastOfAllUnitsOnce) {
  const Plan plan = small_plan();
  auto script = planned_collectives(plan);
  for (LoggedCollective& each : script) {
    if (each.kind == CollectiveKind::Reduce) each.element = 2, each.bytes /= 2;
  }
  const auto found = schedule_differences(script, plan);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, "cast");
  EXPECT_EQ(found[0].where, "(root), h.0, h.1");
  EXPECT_THAT(found[0].text, HasSubstr("2 bytes (bfloat16, float16) in the script, of 4 bytes (float32) in the plan"));
}

TEST(Differences, NamesAnotherOrder) {
  const Plan plan = small_plan();
  auto script = planned_collectives(plan);
  std::swap(script[1], script[2]);
  const auto found = schedule_differences(script, plan);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, "order");
  EXPECT_EQ(found[0].where, "collective 2");
}

TEST(Differences, LeavesOutCollectivesThatMeetNobody) {
  const Plan plan = small_plan();
  auto script = planned_collectives(plan);
  script.push_back({CollectiveKind::AllReduce, "", 4, 4, 1});
  EXPECT_TRUE(schedule_differences(script, plan).empty());
}

}  // namespace
}  // namespace foreshard::shadow
