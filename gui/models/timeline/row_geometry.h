// What of a row is seen in a window of time on so many pixels: boxes for slices that are wide enough, and a strip of
// one colour a pixel for the rest (the longest slice that is seen there, and how busy the pixel is).
//
// Pixels are device-independent and count from the left edge of the lanes. The cost grows with pixels, not with slices.
#pragma once

#include <cstdint>
#include <vector>

#include "gui/models/timeline/slice_rows.h"

namespace foreshard::gui {

/// A window of time on `width` pixels.
struct TimeScale {
  SimTime begin = 0;
  double ns_per_pixel = 1;
  int width = 0;

  double x(SimTime time) const { return static_cast<double>(time - begin) / ns_per_pixel; }
  SimTime time(double at) const { return begin + static_cast<SimTime>(at * ns_per_pixel); }
  SimTime end() const { return time(width); }
};

struct SliceBox {
  double left = 0, right = 0;  // clipped to a pixel beyond the window
  std::uint32_t slice = 0;
};

struct StripPixel {
  float busy = 0;             // share of the pixel's time that is covered, 0 to 1
  std::uint16_t longest = 0;  // duration_rank of the longest slice; 0: nothing is here
  Meaning meaning = Meaning::Other;
};

struct RowGeometry {
  std::vector<SliceBox> boxes;
  std::vector<StripPixel> strip;  // [width]; empty if there are only boxes
};

inline constexpr double kBoxPixels = 3;

RowGeometry layout_row(const SliceRow& row, const TimeScale& scale);

}  // namespace foreshard::gui
