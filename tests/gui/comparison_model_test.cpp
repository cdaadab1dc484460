#include "gui/models/comparison_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "gui/models/scene.h"
#include "tests/gui/sample.h"

namespace foreshard::gui {
namespace {

using foreshard::testing::toy_model;

std::shared_ptr<const ComparisonModel> compared(double slower_a, double slower_b) {
  const auto model = make_comparison_model(toy_model(slower_a), toy_model(slower_b));
  EXPECT_TRUE(model.has_value());
  return *model;
}

TEST(ComparisonModel, EqualTimelinesJoinWithoutDifference) {
  const auto model = compared(1, 1);
  ASSERT_FALSE(model->pairs.empty());
  EXPECT_EQ(model->numbers.only_a + model->numbers.only_b, 0);
  for (const ComparedPair& pair : model->pairs) {
    EXPECT_EQ(pair.numbers.duration.difference(), 0);
    EXPECT_EQ(pair.a, pair.b);
    EXPECT_EQ(pair.span_a, pair.span_b);
  }
  for (const float heat : model->heat(0, "A", 0, static_cast<double>(model->end) / 200, 200))
    EXPECT_TRUE(std::isnan(heat) || heat == 0.0F);
}

TEST(ComparisonModel, LongerAllGathersAreTheLargestDifferenceAndHot) {
  const auto model = compared(1, 3);  // the prediction is too short
  ASSERT_FALSE(model->pairs.empty());
  EXPECT_EQ(model->pairs.front().numbers.kind, SpanKind::AllGather);
  EXPECT_LT(model->pairs.front().numbers.duration.difference(), 0);
  float coldest = 0;
  for (const float heat : model->heat(0, "A", 0, static_cast<double>(model->end) / 200, 200))
    if (!std::isnan(heat)) coldest = std::min(coldest, heat);
  EXPECT_NEAR(coldest, -2.0 / 3, 0.01);
}

TEST(ComparisonModel, PartnersKnowEachOther) {
  const auto model = compared(1, 2);
  for (std::size_t k = 0; k < model->pairs.size(); ++k) {
    EXPECT_EQ(model->pair_of(0, model->pairs[k].span_a), k);
    EXPECT_EQ(model->pair_of(1, model->pairs[k].span_b), k);
  }
  EXPECT_FALSE(model->pair_of(0, 9'999'999).has_value());
}

TEST(ComparisonModel, DifferentPlansAreRefusedUnlessForced) {
  Timeline a = foreshard::testing::toy_timeline(), b = a;
  b.provenance.plan_digest = "another";
  const auto left = make_timeline_model(a, "a"), right = make_timeline_model(b, "b");
  EXPECT_FALSE(make_comparison_model(left, right).has_value());
  CompareOptions options;
  options.force = true;
  EXPECT_TRUE(make_comparison_model(left, right, options).has_value());
}

TEST(ComparisonScene, EachStreamOfAHasThatOfBBelowItAndTheDifferenceUnderBoth) {
  const Scene scene = comparison_scene(compared(1, 2));
  for (std::size_t k = 0; k + 3 < scene.tracks.size(); ++k) {
    const Track& track = scene.tracks[k];
    if (track.kind != TrackKind::Lane || track.side != 0 || track.stream == "host") continue;
    EXPECT_EQ(scene.tracks[k + 1].kind, TrackKind::Links);
    EXPECT_EQ(scene.tracks[k + 2].stream, track.stream);
    EXPECT_EQ(scene.tracks[k + 2].side, 1);
    EXPECT_EQ(scene.tracks[k + 3].kind, TrackKind::Heat);
  }
}

}  // namespace
}  // namespace foreshard::gui
