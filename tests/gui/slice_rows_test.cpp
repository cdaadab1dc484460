#include "gui/models/timeline/slice_rows.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "gui/models/timeline/slice_search.h"
#include "gui/models/timeline/timeline_model.h"
#include "tests/gui/sample.h"

namespace foreshard::gui {
namespace {

using foreshard::testing::random_lane;

TEST(LongestPyramid, IsTheFirstLongestOfAnyRange) {
  const auto lanes = layout_lanes(random_lane(3001, 7));
  const SliceRow& row = lanes[0].rows[0];
  std::mt19937 random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    std::size_t first = random() % row.size(), last = random() % row.size();
    if (first > last) std::swap(first, last);
    ++last;
    std::size_t expected = first;
    for (std::size_t k = first; k < last; ++k)
      if (row.end[k] - row.start[k] > row.end[expected] - row.start[expected]) expected = k;
    ASSERT_EQ(row.longest(first, last), expected) << first << ".." << last;
  }
}

TEST(SliceRows, OverlapsGetRowsOfTheirOwnAndNothingIsLost) {
  Timeline timeline = random_lane(500, 11);
  std::mt19937 random(5);
  for (Span& span : timeline.spans) {
    span.start = random() % 100'000;
    span.duration = random() % 9000;
  }
  const auto lanes = layout_lanes(timeline);
  std::set<std::uint32_t> seen;
  for (const SliceRow& row : lanes[0].rows) {
    for (std::size_t k = 0; k < row.size(); ++k) {
      EXPECT_TRUE(seen.insert(row.span[k]).second);
      if (k > 0) {
        EXPECT_LE(row.end[k - 1], row.start[k]);
      }
    }
  }
  EXPECT_EQ(seen.size(), timeline.spans.size());
  EXPECT_GT(lanes[0].rows.size(), 5u);
}

TEST(SliceRows, NestedSlicesStandUnderWhatIsAroundThem) {
  Timeline timeline = random_lane(3, 1);
  timeline.spans[0].start = 0, timeline.spans[0].duration = 50;   // inside
  timeline.spans[1].start = 0, timeline.spans[1].duration = 100;  // around
  timeline.spans[2].start = 60, timeline.spans[2].duration = 40;  // inside too
  const auto lanes = layout_lanes(timeline);
  ASSERT_EQ(lanes[0].rows.size(), 2u);
  EXPECT_EQ(lanes[0].rows[0].span, std::vector<std::uint32_t>{1});
  EXPECT_EQ(lanes[0].rows[1].span, (std::vector<std::uint32_t>{0, 2}));
}

TEST(SliceRows, BusyTimeOfAnyRangeIsTheSumOfWhatLiesInside) {
  const Timeline timeline = random_lane(400, 2);
  const SliceRow row = layout_lanes(timeline)[0].rows[0];
  std::mt19937 random(9);
  for (int trial = 0; trial < 500; ++trial) {
    SimTime begin = random() % 300'000, end = random() % 300'000;
    if (begin > end) std::swap(begin, end);
    SimDuration expected = 0;
    for (const Span& span : timeline.spans)
      expected += std::max<SimDuration>(0, std::min(end, span.start + span.duration) - std::max(begin, span.start));
    ASSERT_EQ(row.busy(begin, end), expected) << begin << ".." << end;
  }
}

TEST(SliceRows, ImpossibleSpansAreShownOrLeftOutButNeverHarm) {
  Timeline timeline = random_lane(4, 3);
  timeline.spans[0].duration = -500;
  timeline.spans[1].lane = LaneId(77);
  timeline.spans[2].lane = LaneId();
  timeline.spans[3].duration = std::numeric_limits<SimDuration>::max();
  const auto lanes = layout_lanes(timeline);
  std::size_t kept = 0;
  for (const SliceRow& row : lanes[0].rows) kept += row.size();
  EXPECT_EQ(kept, 2u);
  EXPECT_EQ(extent_of(layout_lanes(Timeline{})).length(), 0);
}

TEST(SliceRows, EverySpanIsFoundWhereItWasLaid) {
  const Timeline timeline = random_lane(300, 4);
  const auto lanes = layout_lanes(timeline);
  for (std::uint32_t s = 0; s < timeline.spans.size(); ++s) {
    const auto place = find_slice(lanes, timeline, s);
    ASSERT_TRUE(place.has_value());
    EXPECT_EQ(lanes[place->lane].rows[place->row].span[place->slice], s);
  }
  EXPECT_FALSE(find_slice(lanes, timeline, 100'000).has_value());
}

TEST(SliceSearch, EveryWordMustBeInNameUnitOrKind) {
  const auto model = foreshard::testing::toy_model();
  const SearchResult gathers = search_slices(*model, "ALL_gather");
  ASSERT_GT(gathers.found, 0u);
  std::size_t expected = 0;
  for (const Span& span : model->timeline.spans) {
    const std::string name(model->timeline.name_of(span.name));
    expected += span.kind == SpanKind::AllGather || name.find("all_gather") != std::string::npos;
  }
  EXPECT_EQ(gathers.found, expected);
  EXPECT_LT(search_slices(*model, "all_gather root").found, gathers.found);
  EXPECT_EQ(search_slices(*model, "all_gather nosuchunit").found, 0u);
  EXPECT_EQ(search_slices(*model, "  ").found, 0u);
  EXPECT_EQ(search_slices(*model, "all_gather", 1).spans.size(), 1u);
}

TEST(SliceSearch, SumsStandByStreamAndAStreamCanBeAskedFor) {
  const auto model = foreshard::testing::toy_model();
  const Timeline& timeline = model->timeline;
  const SearchResult all = search_slices(*model, "backward", 3);
  std::size_t slices = 0;
  for (const FoundOnStream& there : all.streams) slices += there.slices;
  EXPECT_GT(all.found, 3u);
  EXPECT_EQ(slices, all.found) << "of all, not of those that are listed";
  const SearchResult host = search_slices(*model, "stream:HOST");
  ASSERT_EQ(host.streams.size(), 1u);
  std::size_t expected = 0;
  SimDuration time = 0;
  for (const Span& span : timeline.spans) {
    if (timeline.lanes[span.lane.index()].stream != "host") continue;
    ++expected;
    time += span.duration;
  }
  EXPECT_GT(expected, 0u);
  EXPECT_EQ(host.found, expected);
  EXPECT_EQ(host.streams[0].time, time);
}

TEST(SliceSearch, NeighboursAreThoseOfTheSameRow) {
  const auto model = make_timeline_model(random_lane(10, 8), "lane");
  EXPECT_EQ(neighbour_of(*model, 3, 1), 4u);
  EXPECT_EQ(neighbour_of(*model, 3, -1), 2u);
  EXPECT_FALSE(neighbour_of(*model, 9, 1).has_value());
  EXPECT_FALSE(neighbour_of(*model, 0, -1).has_value());
}

TEST(TimelineModel, ExposedIsWhatOfCollectivesNoComputeCovers) {
  Timeline timeline;
  timeline.lanes = {{0, "D", 0}, {0, "A", 0}};
  timeline.names = {"x"};
  const auto add = [&](std::size_t lane, SpanKind kind, SimTime start, SimDuration duration) {
    Span span;
    span.lane = LaneId(lane);
    span.kind = kind;
    span.start = start;
    span.duration = duration;
    span.name = NameId(0);
    timeline.spans.push_back(span);
  };
  add(0, SpanKind::Compute, 100, 50);
  add(0, SpanKind::Compute, 200, 100);
  add(1, SpanKind::AllGather, 80, 40);       // 20 before compute
  add(1, SpanKind::ReduceScatter, 140, 80);  // 150 to 200
  const auto model = make_timeline_model(timeline, "two");
  ASSERT_EQ(model->ranks.size(), 1u);
  const SliceRow& exposed = model->ranks[0].exposed;
  EXPECT_EQ(exposed.start, (std::vector<SimTime>{80, 150}));
  EXPECT_EQ(exposed.end, (std::vector<SimTime>{100, 200}));
  EXPECT_EQ(exposed.busy(0, 1000), 20 + 50);
}

}  // namespace
}  // namespace foreshard::gui
