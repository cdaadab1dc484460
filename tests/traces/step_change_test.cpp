#include "traces/analysis/step_change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/traces/planted_run.h"
#include "traces/analysis/comparison.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::PlantedRun;

Comparison compared(const PlantedRun& a, const PlantedRun& b, const CompareOptions& options = {}) {
  const auto comparison = compare_timelines(testing::opened(a).timeline, testing::opened(b).timeline, options);
  EXPECT_TRUE(comparison.has_value()) << to_text(comparison.error());
  return comparison ? *comparison : Comparison{};
}

void expect_sum_of_step(const Comparison& c) {
  double sum = 0;
  for (const StepChange& change : c.changes) sum += change.difference();
  EXPECT_NEAR(sum, c.accounted.difference(), 1);
}

TEST(StepChange, TheCausesOfASlowerStepComeFirstAndAddUpToTheDifference) {
  PlantedRun casts, batches;
  casts.casts = 500;
  batches.batch_wait = 90'000;
  const Comparison slower = compared(casts, {});
  ASSERT_THAT(slower.changes, Not(IsEmpty()));
  EXPECT_EQ(slower.changes.front().what, "computing: layers.* forward");
  EXPECT_NEAR(slower.changes.front().difference(), 6 * 500'000, 1);
  expect_sum_of_step(slower);
  const Comparison waiting = compared(batches, {});
  EXPECT_EQ(waiting.changes.front().what, "idle: data");
  expect_sum_of_step(waiting);
}

TEST(StepChange, AStragglerIsWhatChangedForTheOthers) {
  PlantedRun slow, even;
  slow.ranks = even.ranks = 3;
  slow.slow_rank = 1.4;
  CompareOptions options;
  options.rank = 0;
  const Comparison c = compared(slow, even, options);
  EXPECT_THAT(c.changes.front().what, HasSubstr("straggler"));
  expect_sum_of_step(c);
}

TEST(Comparison, RanksThatAreNotTheSameAreComparedWherePaired) {
  PlantedRun run;
  run.ranks = 3, run.slow_rank = 1.2;
  CompareOptions options;
  options.rank_a = 2, options.rank_b = 0;
  const Comparison c = compared(run, run, options);
  EXPECT_EQ(c.ranks, std::vector<std::int32_t>{2});
  EXPECT_EQ(c.ranks_b, std::vector<std::int32_t>{0});
  EXPECT_EQ(c.only_a + c.only_b, 0) << "the same operators of the same units";
  EXPECT_GT(c.compute.a, 1.15 * c.compute.b);
  options.rank_b = 7;
  const auto none = compare_timelines(testing::opened(run).timeline, testing::opened(run).timeline, options);
  ASSERT_FALSE(none.has_value());
  EXPECT_THAT(none.error().hint, HasSubstr("--a-rank"));
}

TEST(Comparison, IterationsThatAreNotTheSameAreComparedWherePaired) {
  CompareOptions options;
  options.iteration_a = 4, options.iteration_b = 5;
  const Comparison c = compared({}, {}, options);
  EXPECT_EQ(c.iteration_a, 4);
  EXPECT_EQ(c.iteration_b, 5);
}

TEST(Comparison, MemoryThatWasNotRecordedIsNotZero) {
  PlantedRun with;
  with.memory = true;
  const Comparison c = compared(with, {});
  EXPECT_TRUE(c.memory_in_a);
  EXPECT_FALSE(c.memory_in_b);
}

TEST(Comparison, NestedSlicesOfAThreadCountOnce) {
  const Comparison c = compared({}, {});
  for (const StreamPair& stream : c.by_stream) EXPECT_LE(stream.busy.a, c.step.a) << stream.stream;
  EXPECT_LE(c.comm.a, c.step.a);
}

TEST(Comparison, WorkJoinsByOperatorAndUnitWhateverStandsBetween) {
  PlantedRun casts;
  casts.casts = 100;  // a kernel more in each block
  const Comparison c = compared(casts, {});
  EXPECT_EQ(c.only_b, 0);
  EXPECT_EQ(c.only_a, 6);
  for (const InstructionPair& pair : c.missing) EXPECT_THAT(pair.name, HasSubstr("LoadWithCast"));
}

TEST(Comparison, OneThatJoinsNextToNothingSaysSoAndWhy) {
  const OpenedTrace a = testing::opened({});
  OpenedTrace b = testing::opened({});
  for (std::string& unit : b.timeline.units) unit = "decoder." + unit;
  const auto c = compare_timelines(a.timeline, b.timeline);
  ASSERT_TRUE(c.has_value());
  ASSERT_EQ(c->notes.size(), 1u);
  EXPECT_THAT(c->notes.front(), HasSubstr("no unit has the same name in both"));
  EXPECT_THAT(compared({}, {}).notes, IsEmpty());
}

}  // namespace
}  // namespace foreshard
