#include "sim/truth/accuracy.h"

#include <gtest/gtest.h>

#include "sim/play/memory_interval.h"

namespace foreshard {
namespace {

AccuracySample sample(const char* group, const char* id, double predicted, double measured) {
  return {group, id, predicted, measured, std::nullopt, std::nullopt};
}

TEST(Accuracy, GroupsKeepTheOrderOfTheirFirstSample) {
  const auto groups = accuracy_by_group({sample("b", "1", 1, 1), sample("a", "2", 1, 1), sample("b", "3", 1, 1)});
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].group, "b");
  EXPECT_EQ(groups[0].count, 2U);
  EXPECT_EQ(groups[1].group, "a");
}

TEST(Accuracy, ErrorsAreRelativeToTheMeasurement) {
  const auto group = accuracy_of("all", {sample("", "low", 50, 100), sample("", "high", 110, 100)});
  EXPECT_DOUBLE_EQ(group.mean_error, 0.3);
  EXPECT_DOUBLE_EQ(group.bias, -0.2);
  EXPECT_DOUBLE_EQ(group.worst_error, -0.5);
  EXPECT_EQ(group.worst_id, "low");
}

TEST(Accuracy, WithoutAMeasurementThereIsNoError) { EXPECT_EQ(accuracy_of("all", {sample("", "x", 5, 0)}).count, 0U); }

TEST(Accuracy, AnIntervalHoldsItsEnds) {
  AccuracySample inside = sample("", "a", 100, 120), outside = sample("", "b", 100, 121);
  for (AccuracySample* s : {&inside, &outside}) {
    s->low = 80;
    s->high = 120;
  }
  const auto group = accuracy_of("all", {inside, outside, sample("", "none", 1, 1)});
  EXPECT_EQ(group.stated, 2U);
  EXPECT_EQ(group.covered, 1U);
}

TEST(RankCorrelation, OneForTheSameOrderAndMinusOneForTheOther) {
  EXPECT_DOUBLE_EQ(*rank_correlation({1, 2, 3, 4}, {10, 20, 21, 1000}), 1.0);
  EXPECT_DOUBLE_EQ(*rank_correlation({1, 2, 3, 4}, {4, 3, 2, 1}), -1.0);
}

TEST(RankCorrelation, TiesShareTheirMeanRank) {
  // Ranks 1.5 1.5 3 against 1 2 3: 1.5 / sqrt(1.5 x 2).
  EXPECT_NEAR(*rank_correlation({1, 1, 2}, {1, 2, 3}), 0.8660254, 1e-6);
}

TEST(RankCorrelation, NothingFromTooFewOrFromAConstant) {
  EXPECT_FALSE(rank_correlation({1, 2}, {1, 2}));
  EXPECT_FALSE(rank_correlation({1, 1, 1}, {1, 2, 3}));
}

TEST(IntervalHalfWidth, HoldsTheShareThatWasAsked) {
  std::vector<AccuracySample> samples;
  for (int i = 1; i <= 10; ++i) samples.push_back(sample("", "x", 100, 100 * (1 + 0.01 * i)));
  EXPECT_NEAR(*interval_half_width(samples, 0.9), 0.09, 1e-9);
  EXPECT_NEAR(*interval_half_width(samples, 1.0), 0.10, 1e-9);
  EXPECT_FALSE(interval_half_width({}, 0.9));
}

TEST(MemoryIntervals, AreWiderWhereOtherVersionsRan) {
  Prediction prediction;
  prediction.memory.allocated = 10 * kGiB;
  prediction.memory.reserved = 12 * kGiB;
  prediction.memory.outside_allocator = {2e9, 1e9, 3e9};
  const MemoryIntervals recorded = memory_intervals(prediction, "virtual");
  const MemoryIntervals card = memory_intervals(prediction, "gpu");
  EXPECT_LT(recorded.allocated.high, card.allocated.high);
  EXPECT_GT(recorded.reserved.low, card.reserved.low);
  EXPECT_LT(card.allocated.high / card.allocated.value, card.reserved.high / card.reserved.value);
  EXPECT_DOUBLE_EQ(card.device.value, card.reserved.value + 2e9);
  EXPECT_DOUBLE_EQ(card.device.low, card.reserved.low + 1e9);
  EXPECT_DOUBLE_EQ(card.device.high, card.reserved.high + 3e9);
}

TEST(MemoryIntervals, UnknownOperatorsWidenThem) {
  Prediction knows_all, guesses;
  guesses.unknown_ops = {"my.op"};
  EXPECT_GT(memory_widths("gpu", guesses).allocated, memory_widths("gpu", knows_all).allocated);
}

TEST(MemoryIntervals, AssumedChoicesWidenThem) {
  Prediction prediction;
  prediction.memory.allocated = prediction.memory.reserved = 10 * kGiB;
  const MemoryIntervals computed = memory_intervals(prediction, "virtual");
  prediction.assumes_choices = true;
  const MemoryIntervals assumed = memory_intervals(prediction, "virtual");
  EXPECT_GT(assumed.allocated.high, 1.14 * computed.allocated.high);
  EXPECT_LT(assumed.reserved.low, computed.reserved.low);
}

TEST(MemoryIntervals, AssumedLifetimesWidenThem) {
  Prediction prediction;
  prediction.memory.allocated = 10 * kGiB;
  const Estimate built = memory_intervals(prediction, "gpu").allocated;
  prediction.lifetimes = Lifetimes::Recorded;
  EXPECT_DOUBLE_EQ(memory_intervals(prediction, "gpu").allocated.high, built.high);
  prediction.lifetimes = Lifetimes::Assumed;
  EXPECT_GT(memory_intervals(prediction, "gpu").allocated.high, built.high);
  EXPECT_LT(memory_intervals(prediction, "gpu").allocated.low, built.low);
}

}  // namespace
}  // namespace foreshard
