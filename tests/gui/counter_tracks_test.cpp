#include "gui/models/timeline/counter_tracks.h"

#include <gtest/gtest.h>

#include <random>

#include "gui/models/timeline/amounts.h"
#include "tests/gui/sample.h"

namespace foreshard::gui {
namespace {

TEST(CounterTrack, LowestAndHighestOfAnyRangeWithWhatIsHeldAtItsBegin) {
  std::mt19937 random(1);
  std::vector<SimTime> times;
  std::vector<std::int64_t> values;
  SimTime at = 0;
  for (int k = 0; k < 2000; ++k) {
    times.push_back(at += 1 + random() % 90);
    values.push_back(static_cast<std::int64_t>(random() % 100'000));
  }
  const CounterTrack track(times, values);
  for (int trial = 0; trial < 1000; ++trial) {
    SimTime begin = random() % 90'000, end = random() % 90'000;
    if (begin > end) std::swap(begin, end);
    std::int64_t low = track.at(begin), high = low;
    for (std::size_t k = 0; k < times.size(); ++k) {
      if (times[k] < begin || times[k] >= end) continue;
      low = std::min(low, values[k]);
      high = std::max(high, values[k]);
    }
    const ValueRange range = track.range(begin, end);
    ASSERT_EQ(range.low, low);
    ASSERT_EQ(range.high, high);
    ASSERT_EQ(track.at(range.high_at), high);
  }
  EXPECT_EQ(track.at(times.front() - 1), 0);
}

TEST(MemoryTracks, CategoriesStackUpToWhatIsAllocated) {
  const Timeline timeline = foreshard::testing::toy_timeline();
  const auto ranks = memory_tracks(timeline);
  ASSERT_EQ(ranks.size(), 1u);
  const MemoryTracks& memory = ranks.front();
  ASSERT_TRUE(memory.allocated && memory.reserved);
  ASSERT_FALSE(memory.categories.empty());
  EXPECT_EQ(memory.categories.front().first, "sharded_params");
  const SimTime end = memory.allocated->times().back();
  const auto columns = memory_columns(memory, 0, static_cast<double>(end) / 300, 300);
  ASSERT_EQ(columns.size(), 300u);
  for (const MemoryColumn& column : columns) {
    EXPECT_EQ(column.upto.back(), column.allocated);
    EXPECT_LE(column.allocated, column.reserved);
  }
}

/// "a" and "b" make up what is allocated: 5, then at one time 9 and 4, of which only "b" changes; at 20 they change
/// places.
Timeline two_samples_at_one_time() {
  Timeline timeline;
  timeline.counters = {{0, "allocated", "bytes"}, {0, "category:inputs", "bytes"}, {0, "category:outputs", "bytes"}};
  timeline.samples = {{CounterId(0), 0, 5},  {CounterId(0), 10, 9}, {CounterId(0), 10, 4},
                      {CounterId(1), 0, 3},  {CounterId(1), 20, 1}, {CounterId(2), 0, 2},
                      {CounterId(2), 10, 6}, {CounterId(2), 10, 1}, {CounterId(2), 20, 3}};
  return timeline;
}

TEST(MemoryTracks, OfTwoSamplesAtOneTimeTheStackIsThatOfTheHigher) {
  for (const SimTime behind : {0, 7}) {  // drawn when they were taken; all of 0 to 10 drawn at one time
    const auto ranks = memory_tracks(two_samples_at_one_time(), [behind](std::int32_t, SimTime time) {
      return behind == 0 ? time : std::max<SimTime>(10, time) + behind;
    });
    ASSERT_EQ(ranks.size(), 1u);
    const auto columns = memory_columns(ranks.front(), 10 + behind, 5, 3);
    EXPECT_EQ(columns[0].allocated, 9);
    EXPECT_EQ(columns[0].upto, (std::vector<std::int64_t>{3, 9}));
    EXPECT_EQ(columns[1].upto, (std::vector<std::int64_t>{3, 4}));
    EXPECT_EQ(columns[2].upto, (std::vector<std::int64_t>{1, 4})) << "what is held is what it is by then";
    const MemoryTracks& memory = ranks.front();
    const ValueRange peak = memory.allocated->range(10 + behind, 11 + behind);
    EXPECT_EQ(value_beside(memory.categories[1].second, *memory.allocated, peak), 6);
  }
}

TEST(MemoryTracks, AreDrawnWhereTheyAreTold) {
  Timeline timeline;
  timeline.counters = {{0, "allocated", "bytes"}, {0, "launches", "count"}};
  timeline.samples = {{CounterId(0), 10, 5}, {CounterId(0), 20, 9}, {CounterId(1), 5, 1}};
  const auto ranks = memory_tracks(timeline, [](std::int32_t, SimTime time) { return time + 100; });
  ASSERT_EQ(ranks.size(), 1u);
  EXPECT_EQ(ranks[0].allocated->at(115), 5);
  EXPECT_EQ(ranks[0].allocated->at(120), 9);
  EXPECT_EQ(ranks[0].highest, 9);
}

TEST(Amounts, ThreeDigitsThatMatter) {
  EXPECT_EQ(duration_words(1'234'567), "1.23 ms");
  EXPECT_EQ(duration_words(-45'600), "-45.6 us");
  EXPECT_EQ(duration_words(999'600), "1.00 ms");
  EXPECT_EQ(duration_words(17), "17 ns");
  EXPECT_EQ(bytes_words(29'951'000'000.0), "27.9 GiB");
  EXPECT_EQ(bytes_words(12), "12 B");
  EXPECT_EQ(percent_words(0.412), "41.2 %");
}

TEST(Amounts, TicksOfTimeAreRoundAndShareAUnit) {
  const TimeTicks ticks = time_ticks(1.2e6, 5.3e6, 8);
  ASSERT_EQ(ticks.step, 1e6);
  EXPECT_EQ(ticks.at, (std::vector<double>{2e6, 3e6, 4e6, 5e6}));
  EXPECT_EQ(ticks.text(2e6), "2 ms");
  EXPECT_EQ(time_ticks(0, 0, 8).at.size(), 0u);
  EXPECT_EQ(byte_ticks(3.5 * 1024, 4), (std::vector<double>{0, 1024, 2048, 3072}));
}

}  // namespace
}  // namespace foreshard::gui
