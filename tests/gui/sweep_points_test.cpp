#include "gui/models/sweep_points.h"

#include <gtest/gtest.h>

namespace foreshard::gui {
namespace {

constexpr const char* kSweep = R"({"schema": "foreshard.sweep/1", "model": "toy", "profile": "h100-sxm-80",
  "budget_bytes": 4000, "objective": "step_time", "points": [
  {"index": 0, "set": {"model.batch": 2, "checkpointing.policy": "none"}, "step_time_ns": 100, "peak_reserved_bytes": 3000,
   "fits": true, "pareto": true, "reason": "fastest", "tokens_per_step": 50},
  {"index": 1, "set": {"model.batch": 2, "checkpointing.policy": "block"}, "step_time_ns": 130, "peak_reserved_bytes": 1000,
   "fits": true, "pareto": true, "reason": "least memory", "tokens_per_step": 50},
  {"index": 2, "set": {"model.batch": 8, "checkpointing.policy": "none"}, "step_time_ns": null, "peak_reserved_bytes": 9000,
   "fits": false, "pareto": false, "reason": "does not fit"}]})";

TEST(SweepPoints, AreReadWithTheirSettings) {
  const auto sweep = read_sweep_points(kSweep, "sweep.json");
  ASSERT_TRUE(sweep.has_value());
  EXPECT_EQ(sweep->name, "toy on h100-sxm-80");
  ASSERT_EQ(sweep->points.size(), 3u);
  EXPECT_EQ(sweep->points[1].set, (std::vector<std::string>{"checkpointing.policy=block", "model.batch=2"}));
  EXPECT_EQ(sweep->front(), (std::vector<std::size_t>{0, 1}));
  EXPECT_FALSE(sweep->points[2].fits);
}

TEST(SweepPoints, TheNearestPointIsFoundWithinReachAndOnlyOfThoseThatFit) {
  const auto sweep = read_sweep_points(kSweep, "sweep.json");
  ASSERT_TRUE(sweep.has_value());
  EXPECT_EQ(sweep->nearest(129, 1010, 30, 2000, 0.1), 1u);
  EXPECT_FALSE(sweep->nearest(115, 2000, 30, 2000, 0.1).has_value());
}

TEST(SweepPoints, TimePerTokenDividesByTheTokens) {
  std::string text = kSweep;
  text.replace(text.find("\"step_time\""), 11, "\"time_per_token\"");
  const auto sweep = read_sweep_points(text, "sweep.json");
  ASSERT_TRUE(sweep.has_value());
  EXPECT_DOUBLE_EQ(sweep->points[0].time_ns, 2.0);
}

TEST(SweepPoints, WhatIsWrongIsNamedWithItsPlace) {
  const auto broken = [](const std::string& from, const std::string& to) {
    std::string text = kSweep;
    text.replace(text.find(from), from.size(), to);
    const auto sweep = read_sweep_points(text, "sweep.json");
    EXPECT_FALSE(sweep.has_value());
    return sweep ? std::string() : sweep.error().place;
  };
  EXPECT_EQ(broken("foreshard.sweep/1", "foreshard.plan/1"), "schema");
  EXPECT_EQ(broken("\"index\": 1", "\"index\": -1"), "points[1].index");
  EXPECT_EQ(broken("\"fits\": true", "\"fits\": 3"), "points[0].fits");
  EXPECT_EQ(broken("\"step_time_ns\": 130", "\"step_time_ns\": -130"), "points[1].step_time_ns");
  EXPECT_FALSE(read_sweep_points("{\"schema\": ", "cut.json").has_value());
  EXPECT_FALSE(read_sweep_points("[]", "list.json").has_value());
}

}  // namespace
}  // namespace foreshard::gui
