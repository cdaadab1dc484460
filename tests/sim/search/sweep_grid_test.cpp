#include "sim/search/sweep_axes.h"

#include <gtest/gtest.h>

#include <set>

#include "sim/search/sweep.h"

namespace foreshard {
namespace {

TEST(SweepAxis, CommasInsideBracketsAndQuotesDoNotDivide) {
  const auto axis = parse_sweep_axis("fsdp.wrap.units=[[\"a\", \"b\"]], [\"c,d\"]");
  ASSERT_TRUE(axis.has_value()) << to_text(axis.error());
  ASSERT_EQ(axis->values.size(), 2U);
  EXPECT_EQ(axis->values[0].text, "[[\"a\", \"b\"]]");
  EXPECT_EQ(axis->values[1].text, "[\"c,d\"]");
}

TEST(SweepAxis, BadAxesNameWhatIsWrong) {
  EXPECT_EQ(parse_sweep_axis("model.batch").error().code, ErrorCode::Usage);
  EXPECT_EQ(parse_sweep_axis("model.batch=1,,2").error().code, ErrorCode::Usage);
  EXPECT_EQ(parse_sweep_axis("model.batch=1,1").error().code, ErrorCode::Usage);
  EXPECT_EQ(parse_sweep_axis("model.bach=1").error().code, ErrorCode::UnknownKey);
  EXPECT_EQ(parse_sweep_axis("model.batch=0").error().code, ErrorCode::OutOfRange);
  EXPECT_EQ(parse_sweep_axis("checkpointing.policy=blok").error().code, ErrorCode::OutOfRange);
}

TEST(SweepGrid, TheLastAxisRunsFastest) {
  std::vector<SweepAxis> axes;
  for (const char* text : {"model.batch=1,2", "model.seq=8,16,32"}) axes.push_back(*parse_sweep_axis(text));
  const auto grid = SweepGrid::make(std::move(axes));
  ASSERT_TRUE(grid.has_value());
  EXPECT_EQ(grid->size(), 6U);
  EXPECT_EQ(grid->values_of(4), (std::vector<std::size_t>{1, 1}));
  for (std::size_t index = 0; index < 6; ++index) EXPECT_EQ(grid->index_of(grid->values_of(index)), index);
}

/// How often the value of an axis changes in sharing order.
std::vector<std::size_t> changes(const std::vector<const char*>& texts) {
  std::vector<SweepAxis> axes;
  for (const char* text : texts) axes.push_back(*parse_sweep_axis(text));
  const auto grid = SweepGrid::make(std::move(axes));
  const std::vector<std::size_t> order = grid->sharing_order();
  EXPECT_EQ(std::set<std::size_t>(order.begin(), order.end()).size(), grid->size());
  std::vector<std::size_t> changes(texts.size(), 0);
  for (std::size_t k = 1; k < order.size(); ++k) {
    const auto before = grid->values_of(order[k - 1]), now = grid->values_of(order[k]);
    for (std::size_t a = 0; a < changes.size(); ++a) changes[a] += before[a] != now[a] ? 1 : 0;
  }
  return changes;
}

TEST(SweepGrid, SharingOrderVisitsEveryPointOnceAndTheModelLast) {
  const auto seen = changes({"allocator.max_split_size_mb=0,32", "model.dtype=float32,bfloat16",
                             "checkpointing.policy=none,block", "model.batch=1,2,3,4,5"});
  EXPECT_EQ(seen[1], 1U);
  EXPECT_EQ(seen[3], 9U);  // with the allocator's two they would be ten: too many to stand together
  EXPECT_EQ(seen[2], 19U);
  EXPECT_EQ(seen[0], 39U);
}

TEST(SweepGrid, FewBatchSizesOfOnePlanStandTogether) {
  const auto seen = changes({"model.batch=1,2,4", "allocator.max_split_size_mb=0,32", "checkpointing.policy=none,block",
                             "fsdp.prefetch.forward_depth=0,1"});
  EXPECT_EQ(seen[2], 1U);
  EXPECT_EQ(seen[3], 3U);
}

TEST(SweepGrid, OptimizersOfOnePlanStandTogetherAndPrefetchingMakesARow) {
  const std::vector<const char*> texts{"train.optimizer.impl=foreach,fused", "cluster.world_size=8,16",
                                       "fsdp.prefetch.forward_depth=0,1,2", "model.batch=1,2"};
  const auto seen = changes(texts);
  EXPECT_EQ(seen[1], 1U);
  EXPECT_EQ(seen[2], 5U);
  std::vector<SweepAxis> axes;
  for (const char* text : texts) axes.push_back(*parse_sweep_axis(text));
  EXPECT_EQ(SweepGrid::make(std::move(axes))->sharing_row(), 2U * 3U * 2U) << "all but the world";
}

TEST(SweepGrid, OneKeyHasOneAxis) {
  std::vector<SweepAxis> axes;
  for (const char* text : {"model.batch=1,2", "model.batch=4"}) axes.push_back(*parse_sweep_axis(text));
  EXPECT_EQ(SweepGrid::make(std::move(axes)).error().code, ErrorCode::Usage);
  EXPECT_EQ(SweepGrid::make({}).error().code, ErrorCode::Usage);
}

TEST(Pareto, KeepsWhatNothingBeatsInBoth) {
  const auto front = pareto_front({{0, 10, 50}, {1, 12, 40}, {2, 11, 55}, {3, 20, 40}, {4, 30, 10}});
  ASSERT_EQ(front.size(), 3U);
  EXPECT_EQ(front[0].index, 0U);
  EXPECT_TRUE(front[0].fastest);
  EXPECT_EQ(front[1].index, 1U);
  EXPECT_DOUBLE_EQ(front[1].slower, 0.2);
  EXPECT_EQ(front[1].saved, 10);
  EXPECT_EQ(front[2].index, 4U);
  EXPECT_TRUE(front[2].smallest);
}

TEST(Pareto, OfEqualPointsTheFirstStays) {
  const auto front = pareto_front({{7, 5, 5}, {3, 5, 5}, {9, 5, 5}});
  ASSERT_EQ(front.size(), 1U);
  EXPECT_EQ(front[0].index, 3U);
  EXPECT_TRUE(front[0].fastest && front[0].smallest);
}

}  // namespace
}  // namespace foreshard
