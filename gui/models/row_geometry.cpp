#include "gui/models/row_geometry.h"

#include <algorithm>
#include <cmath>

namespace foreshard::gui {
namespace {

class RowLayout {
 public:
  RowLayout(const SliceRow& row, const TimeScale& scale)
      : row_(row), scale_(scale), box_ns_(kBoxPixels * scale.ns_per_pixel) {}

  RowGeometry run() {
    const SimTime end = scale_.end();
    std::size_t slice = row_.first_after(scale_.begin);
    // A moment (no duration) at the left edge ends where the window begins.
    while (slice > 0 && row_.start[slice - 1] >= scale_.begin) --slice;
    while (slice < row_.size() && row_.start[slice] < end) slice = wide(slice) ? add_box(slice) : add_pixel(slice);
    return std::move(geometry_);
  }

 private:
  bool wide(std::size_t slice) const { return static_cast<double>(row_.end[slice] - row_.start[slice]) >= box_ns_; }

  std::size_t add_box(std::size_t slice) {
    const double left = std::max(-2.0, scale_.x(row_.start[slice]));
    const double right = std::min(scale_.width + 2.0, scale_.x(row_.end[slice]));
    geometry_.boxes.push_back({left, right, static_cast<std::uint32_t>(slice)});
    return slice + 1;
  }

  /// All narrow slices that start in the pixel where `slice` does.
  std::size_t add_pixel(std::size_t slice) {
    const int pixel = std::clamp(static_cast<int>(std::floor(scale_.x(row_.start[slice]))), 0, scale_.width - 1);
    std::size_t last = std::max(slice + 1, row_.first_from(scale_.time(pixel + 1.0), slice));
    const std::size_t next = last;
    if (wide(last - 1)) --last;  // only the last one can reach beyond the pixel
    const std::size_t longest = row_.longest(slice, last);
    paint(pixel, longest);
    const double covered = static_cast<double>(row_.busy_before[last] - row_.busy_before[slice]);
    cover(pixel, covered);
    return last < next ? add_box(last) : next;
  }

  void paint(int pixel, std::size_t slice) {
    if (geometry_.strip.empty()) {
      geometry_.strip.assign(static_cast<std::size_t>(scale_.width), kNoSlice);
      geometry_.busy.assign(static_cast<std::size_t>(scale_.width), 0);
    }
    const int to = std::clamp(static_cast<int>(std::ceil(scale_.x(row_.end[slice]))), pixel + 1, scale_.width);
    for (int p = pixel; p < to; ++p) {
      std::uint32_t& there = geometry_.strip[static_cast<std::size_t>(p)];
      if (there == kNoSlice || length(slice) > length(there)) there = static_cast<std::uint32_t>(slice);
    }
  }

  void cover(int pixel, double nanoseconds) {
    for (int p = pixel; p < scale_.width && nanoseconds > 0; ++p, nanoseconds -= scale_.ns_per_pixel) {
      const double share = std::min(1.0, nanoseconds / scale_.ns_per_pixel) * 255.0;
      std::uint8_t& there = geometry_.busy[static_cast<std::size_t>(p)];
      there = static_cast<std::uint8_t>(std::min(255.0, there + share));
    }
  }

  SimDuration length(std::size_t slice) const { return row_.end[slice] - row_.start[slice]; }

  const SliceRow& row_;
  const TimeScale& scale_;
  double box_ns_;
  RowGeometry geometry_;
};

}  // namespace

RowGeometry layout_row(const SliceRow& row, const TimeScale& scale) {
  if (scale.width <= 0 || row.size() == 0) return {};
  return RowLayout(row, scale).run();
}

}  // namespace foreshard::gui
