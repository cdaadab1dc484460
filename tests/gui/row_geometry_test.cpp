#include "gui/models/row_geometry.h"

#include <gtest/gtest.h>

#include <numeric>

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

TEST(RowGeometry, ManyNarrowSlicesAreOneStripOfTheLongest) {
  const SliceRow row = layout_lanes(random_lane(50'000, 6))[0].rows[0];
  const double length = static_cast<double>(row.end.back() - row.start.front());
  const TimeScale scale{row.start.front(), length / 500, 500};
  const RowGeometry geometry = layout_row(row, scale);
  ASSERT_EQ(geometry.strip.size(), 500u);
  EXPECT_TRUE(geometry.boxes.empty());
  for (std::size_t p = 10; p < 490; p += 37) {
    const std::uint32_t shown = geometry.strip[p];
    ASSERT_NE(shown, kNoSlice);
    for (std::size_t k = 0; k < row.size(); ++k) {
      if (static_cast<std::size_t>(scale.x(row.start[k])) != p) continue;
      EXPECT_GE(row.end[shown] - row.start[shown], row.end[k] - row.start[k]);
    }
  }
  const double busy = std::accumulate(geometry.busy.begin(), geometry.busy.end(), 0.0) / 255.0 / 500.0;
  EXPECT_NEAR(busy, static_cast<double>(row.busy(row.start.front(), row.end.back())) / length, 0.02);
}

TEST(RowGeometry, EmptyWindowsAndRowsGiveNothing) {
  const SliceRow row = layout_lanes(random_lane(50, 6))[0].rows[0];
  EXPECT_TRUE(layout_row(row, {row.end.back() + 10, 10, 300}).boxes.empty());
  EXPECT_TRUE(layout_row(row, {0, 10, 0}).boxes.empty());
  EXPECT_TRUE(layout_row(SliceRow{}, {0, 10, 300}).boxes.empty());
}

}  // namespace
}  // namespace foreshard::gui
