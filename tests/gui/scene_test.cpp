#include "gui/models/scene.h"
#include "gui/models/overview.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gui/models/headline.h"
#include "gui/models/slice_facts.h"
#include "tests/gui/sample.h"

namespace foreshard::gui {
namespace {

using ::testing::Contains;
using ::testing::Field;

TEST(SliceLabel, WorkOfTheRootThatIsCalledByItsUnitIsCalledRoot) {
  Timeline timeline;
  timeline.names = {"", "aten.mm.default"};
  timeline.units = {"", "layers.0"};
  Span span;
  span.name = NameId(0), span.unit = 0;
  EXPECT_EQ(slice_label(timeline, span), "root");
  span.name = NameId(1);
  EXPECT_EQ(slice_label(timeline, span), "mm \u00b7 root");
  span.unit = 1;
  EXPECT_EQ(slice_label(timeline, span), "mm \u00b7 layers.0");
}

TEST(Scene, HostStandsFirstThenComputeThenCommunicationThenMemory) {
  const Scene scene = timeline_scene(foreshard::testing::toy_model());
  std::vector<std::string> lanes;
  for (const Track& track : scene.tracks)
    if (track.kind == TrackKind::Lane) lanes.push_back(track.stream);
  ASSERT_GE(lanes.size(), 3u);
  EXPECT_EQ(lanes[0], "host");
  EXPECT_EQ(lanes[1], "D");
  EXPECT_EQ(scene.tracks.back().kind, TrackKind::Memory);
  for (std::size_t k = 1; k < scene.tracks.size(); ++k)
    EXPECT_GE(scene.tracks[k].y, scene.tracks[k - 1].y + scene.tracks[k - 1].height);
}

TEST(Scene, LanesAreHiddenAndPinned) {
  SceneOptions options;
  options.hidden = {"host"};
  options.first = {"A"};
  const Scene scene = timeline_scene(foreshard::testing::toy_model(), options);
  std::vector<std::string> lanes;
  for (const Track& track : scene.tracks)
    if (track.kind == TrackKind::Lane) lanes.push_back(track.stream);
  ASSERT_GE(lanes.size(), 3u);
  EXPECT_EQ(lanes[0], "A");
  EXPECT_EQ(lanes[1], "D");
  EXPECT_EQ(std::count(lanes.begin(), lanes.end(), "host"), 0);
}

TEST(Scene, ATallCanvasIsFilledByRowsFirstThenByMemory) {
  const Scene scene = timeline_scene(foreshard::testing::toy_model());
  const Scene tall = stretched(scene, 3 * scene.height);
  EXPECT_NEAR(tall.height, 3 * scene.height, 1e-6);
  for (std::size_t k = 0; k < scene.tracks.size(); ++k) {
    if (scene.tracks[k].kind == TrackKind::Lane) {
      EXPECT_NEAR(tall.tracks[k].height, 1.5 * scene.tracks[k].height, 1e-6);
    }
    if (k > 0) {
      EXPECT_GE(tall.tracks[k].y, tall.tracks[k - 1].y + tall.tracks[k - 1].height);
    }
  }
  EXPECT_EQ(stretched(scene, scene.height / 2).height, scene.height) << "a small one scrolls";
}

TEST(Scene, ASliceIsFoundUnderItsOwnPosition) {
  const auto model = foreshard::testing::toy_model();
  const Scene scene = timeline_scene(model);
  for (std::uint32_t s = 0; s < model->timeline.spans.size(); s += 7) {
    if (model->timeline.spans[s].duration == 0) continue;
    const auto position = position_of(scene, {0, s});
    ASSERT_TRUE(position.has_value());
    const SimTime middle = position->time.begin + position->time.length() / 2;
    const auto found = slice_at(scene, position->y + position->height / 2, middle, 0);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->span, s);
  }
  EXPECT_FALSE(slice_at(scene, -50, 0, 0).has_value());
  EXPECT_FALSE(slice_at(scene, scene.height + 50, 0, 0).has_value());
}

TEST(Scene, LanesAndMemoryCanBeLeftOut) {
  SceneOptions options;
  options.lanes = false;
  for (const Track& track : timeline_scene(foreshard::testing::toy_model(), options).tracks)
    EXPECT_NE(track.kind, TrackKind::Lane);
  options = {};
  options.memory = options.host = false;
  for (const Track& track : timeline_scene(foreshard::testing::toy_model(), options).tracks) {
    EXPECT_NE(track.kind, TrackKind::Memory);
    EXPECT_NE(track.stream, "host");
  }
}

TEST(Scene, HundredThousandLanesAreOnlyATallScene) {
  Timeline timeline;
  timeline.names = {"x"};
  for (std::size_t lane = 0; lane < 100'000; ++lane) {
    timeline.lanes.push_back({static_cast<std::int32_t>(lane / 4), "D", 0});
    Span span;
    span.lane = LaneId(lane);
    span.start = static_cast<SimTime>(lane);
    span.duration = 10;
    span.name = NameId(0);
    timeline.spans.push_back(span);
  }
  const Scene scene = timeline_scene(make_timeline_model(timeline, "wide"));
  EXPECT_GT(scene.tracks.size(), 100'000u);
  const std::size_t track = scene.track_at(scene.height / 2);
  EXPECT_LE(scene.tracks[track].y, scene.height / 2);
}

TEST(SliceFacts, SayWhatItIsWhereAndWhoIssuedIt) {
  const auto model = foreshard::testing::toy_model();
  const Scene scene = timeline_scene(model);
  const auto& spans = model->timeline.spans;
  const auto gather =
      std::find_if(spans.begin(), spans.end(), [](const Span& s) { return s.kind == SpanKind::AllGather; });
  ASSERT_NE(gather, spans.end());
  const auto facts = slice_facts(scene, {0, static_cast<std::uint32_t>(gather - spans.begin())});
  EXPECT_THAT(facts, Contains(Field(&Fact::name, "issued by")));
  EXPECT_THAT(facts, Contains(Fact{"kind", "all-gather"}));
  EXPECT_THAT(facts, Contains(Field(&Fact::name, "bytes")));
  EXPECT_THAT(facts, Contains(Field(&Fact::name, "exposed")));
  EXPECT_TRUE(slice_facts(scene, {0, 10'000'000}).empty());
}

TEST(RangeTable, SharesOfARangeFollowFromBusyTimes) {
  const auto model = foreshard::testing::toy_model();
  const Scene scene = timeline_scene(model);
  const auto whole = range_table(scene, scene.extent);
  ASSERT_FALSE(whole.empty());
  for (const RangeRow& row : whole) EXPECT_LE(row.share, 1.0);
  const SimTime middle = scene.extent.end / 2;
  const auto left = range_table(scene, {0, middle}), right = range_table(scene, {middle, scene.extent.end});
  for (std::size_t k = 0; k < whole.size(); ++k) EXPECT_EQ(left[k].busy + right[k].busy, whole[k].busy);
}

TEST(Overview, ColumnsAddUpToWhatIsBusy) {
  const auto model = foreshard::testing::toy_model();
  const Scene scene = timeline_scene(model);
  const auto columns = overview_of(scene.sides[0], scene.extent, 64);
  ASSERT_EQ(columns.size(), 64u);
  double compute = 0, communication = 0, busy = 0, met = 0;
  for (const OverviewColumn& column : columns) {
    EXPECT_LE(column.compute, 1.0);
    compute += column.compute / 64;
    communication += column.communication / 64;
  }
  const SimTime origin = scene.sides[0].origin;
  const auto whole = static_cast<double>(scene.extent.length()) * static_cast<double>(model->ranks.size());
  for (const RankBands& rank : model->ranks) {
    busy += static_cast<double>(rank.compute.covered(scene.extent.begin + origin, scene.extent.end + origin)) / whole;
    met += static_cast<double>(rank.comm.covered(scene.extent.begin + origin, scene.extent.end + origin)) / whole;
  }
  EXPECT_GT(busy, 0);
  EXPECT_NEAR(compute, busy, 1e-3);
  EXPECT_NEAR(communication, met, 1e-3);
  EXPECT_TRUE(overview_of(scene.sides[0], scene.extent, 0).empty());
}

}  // namespace
}  // namespace foreshard::gui
