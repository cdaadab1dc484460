#include "gui/models/timeline/row_geometry.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/gui/sample.h"

namespace foreshard::gui {
namespace {

using foreshard::testing::random_lane;

TEST(RowGeometry, WideSlicesAreBoxesInTheirPlaces) {
  const SliceRow row = layout_lanes(random_lane(200, 5))[0].rows[0];
  const TimeScale scale{row.start[20], 60.0, 800};
  const RowGeometry geometry = layout_row(row, scale);
  ASSERT_FALSE(geometry.boxes.empty());
  std::size_t wide = 0;
  for (std::size_t k = 0; k < row.size(); ++k) {
    const bool seen = row.end[k] > scale.begin && row.start[k] < scale.end();
    wide += seen && static_cast<double>(row.end[k] - row.start[k]) >= kBoxPixels * scale.ns_per_pixel;
  }
  EXPECT_EQ(geometry.boxes.size(), wide);
  for (const SliceBox& box : geometry.boxes) {
    if (box.left <= 0 || box.right >= 800) continue;
    EXPECT_NEAR(box.left, static_cast<double>(row.start[box.slice] - scale.begin) / 60.0, 1e-6);
    EXPECT_NEAR(box.right, static_cast<double>(row.end[box.slice] - scale.begin) / 60.0, 1e-6);
  }
}

double busy_of(const RowGeometry& geometry) {
  double sum = 0;
  for (const StripPixel& pixel : geometry.strip) sum += pixel.busy;
  return sum / static_cast<double>(geometry.strip.size());
}

/// What is shown at a pixel is no shorter than what begins there, to the precision of ranks.
void expect_longest(const SliceRow& row, const TimeScale& scale, const RowGeometry& geometry, double slack_pixels) {
  for (std::size_t p = 10; p < 490; p += 37) {
    for (std::size_t k = 0; k < row.size(); ++k) {
      const double x = scale.x(row.start[k]);
      if (x < static_cast<double>(p) + slack_pixels || x >= static_cast<double>(p + 1) - slack_pixels) continue;
      EXPECT_GE(geometry.strip[p].longest, duration_rank(row.end[k] - row.start[k])) << p;
    }
  }
}

TEST(RowGeometry, ManyNarrowSlicesAreOneStripOfTheLongest) {
  Timeline timeline = random_lane(50'000, 6);
  for (Span& span : timeline.spans) span.duration = std::min<SimDuration>(span.duration, 700);  // none is wide
  const SliceRow row = layout_lanes(timeline)[0].rows[0];
  const double length = static_cast<double>(row.end.back() - row.start.front());
  for (const double part : {1.0, 1.0 / 27}) {  // from buckets, and from the slices themselves
    const TimeScale scale{row.start.front(), length * part / 500, 500};
    ASSERT_EQ(row.buckets.level_for(scale.ns_per_pixel) != nullptr, part == 1.0);
    const RowGeometry geometry = layout_row(row, scale);
    ASSERT_EQ(geometry.strip.size(), 500u);
    EXPECT_TRUE(geometry.boxes.empty());
    expect_longest(row, scale, geometry, part == 1.0 ? 0.3 : 0);
    EXPECT_NEAR(busy_of(geometry), static_cast<double>(row.busy(scale.begin, scale.end())) / (length * part), 0.02);
  }
}

TEST(RowGeometry, AWideSliceAmongVeryManyIsABoxOverTheStrip) {
  Timeline timeline = random_lane(40'000, 9);
  const SimTime end = timeline.spans.back().start + timeline.spans.back().duration;
  Span wide = timeline.spans.back();
  wide.start = end + 100;
  wide.duration = end / 50;
  timeline.spans.push_back(wide);
  const SliceRow row = layout_lanes(timeline)[0].rows[0];
  const TimeScale scale{0, static_cast<double>(wide.start + wide.duration) / 600, 600};
  ASSERT_NE(row.buckets.level_for(scale.ns_per_pixel), nullptr);
  const RowGeometry geometry = layout_row(row, scale);
  ASSERT_EQ(geometry.boxes.size(), 1u);
  EXPECT_NEAR(geometry.boxes[0].left, scale.x(wide.start), 1e-6);
  EXPECT_NEAR(geometry.boxes[0].right, 600, 1e-6);
}

TEST(RowGeometry, ABurstInOnePixelCostsNoPassOverIt) {
  // Half of all slices in a thousandth of the time: buckets are too wide there, and each pixel has hundreds.
  Timeline timeline;
  timeline.lanes.push_back({0, "D", 0});
  for (int k = 0; k < 20'000; ++k) timeline.spans.push_back({LaneId(0), SpanKind::Compute});
  for (int k = 0; k < 20'000; ++k) {
    timeline.spans[static_cast<std::size_t>(k)].start = k < 10'000 ? k * 10 : 100'000 + SimTime{k} * 10'000;
    timeline.spans[static_cast<std::size_t>(k)].duration = 5 + k % 3;
  }
  const SliceRow row = layout_lanes(timeline)[0].rows[0];
  const TimeScale scale{0, 500, 200};
  ASSERT_EQ(row.buckets.level_for(scale.ns_per_pixel), nullptr);
  const RowGeometry geometry = layout_row(row, scale);
  ASSERT_EQ(geometry.strip.size(), 200u);
  for (const StripPixel& pixel : geometry.strip) EXPECT_EQ(pixel.longest, duration_rank(7));
  EXPECT_NEAR(busy_of(geometry), 0.6, 0.01);
}

TEST(RowGeometry, EmptyWindowsAndRowsGiveNothing) {
  const SliceRow row = layout_lanes(random_lane(50, 6))[0].rows[0];
  EXPECT_TRUE(layout_row(row, {row.end.back() + 10, 10, 300}).boxes.empty());
  EXPECT_TRUE(layout_row(row, {0, 10, 0}).boxes.empty());
  EXPECT_TRUE(layout_row(SliceRow{}, {0, 10, 300}).boxes.empty());
}

}  // namespace
}  // namespace foreshard::gui
