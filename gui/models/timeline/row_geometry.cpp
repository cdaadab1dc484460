#include "gui/models/timeline/row_geometry.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace foreshard::gui {
namespace {

/// From so many slices in one pixel on they are asked for together.
constexpr std::size_t kManyInAPixel = 24;

class RowLayout {
 public:
  RowLayout(const SliceRow& row, const TimeScale& scale)
      : row_(row),
        scale_(scale),
        pixels_per_ns_(1 / scale.ns_per_pixel),
        box_ns_(std::max<SimDuration>(1, static_cast<SimDuration>(std::ceil(kBoxPixels * scale.ns_per_pixel)))) {}

  RowGeometry run() {
    first_ = row_.first_after(scale_.begin);
    // A moment (no duration) at the left edge ends where the window begins.
    while (first_ > 0 && row_.start[first_ - 1] >= scale_.begin) --first_;
    if (first_ >= row_.size() || row_.start[first_] >= scale_.end()) return {};
    if (const BucketLevel* level = row_.buckets.level_for(scale_.ns_per_pixel))
      from_buckets(*level);
    else
      from_slices();
    return std::move(geometry_);
  }

 private:
  double x(SimTime time) const { return static_cast<double>(time - scale_.begin) * pixels_per_ns_; }

  void add_box(std::size_t slice) {
    const double left = std::max(-2.0, scale_.x(row_.start[slice]));
    const double right = std::min(scale_.width + 2.0, scale_.x(row_.end[slice]));
    geometry_.boxes.push_back({left, right, static_cast<std::uint32_t>(slice)});
  }

  StripPixel* strip() {
    if (geometry_.strip.empty()) geometry_.strip.resize(static_cast<std::size_t>(scale_.width));
    return geometry_.strip.data();
  }

  /// What is wide enough lies over the strip as a box.
  void from_buckets(const BucketLevel& level) {
    const double each = std::ceil(scale_.ns_per_pixel / static_cast<double>(SimTime{1} << level.shift));
    // Levels are chosen so that it is one of these, but for the widest level.
    if (each == 4)
      strip_from_buckets<4>(level, 4);
    else if (each == 5)
      strip_from_buckets<5>(level, 5);
    else if (each == 6)
      strip_from_buckets<6>(level, 6);
    else if (each == 7)
      strip_from_buckets<7>(level, 7);
    else if (each == 8)
      strip_from_buckets<8>(level, 8);
    else
      strip_from_buckets<0>(level, static_cast<std::int64_t>(std::min(each, 1e9)));
    const std::size_t last = row_.first_from(scale_.end(), first_);
    for (const std::uint32_t slice : row_.pyramid.lasting(row_.start, row_.end, first_, last, box_ns_)) add_box(slice);
  }

  /// Each pixel is the buckets that begin in it, and where they do not divide evenly one more: as many for every pixel,
  /// `kEach` where the compiler is told (it writes the steps out then, which takes half the time).
  template <int kEach>
  void strip_from_buckets(const BucketLevel& level, std::int64_t each) {
    const TimeBucket* const buckets = level.buckets.data();
    const auto count = static_cast<std::int64_t>(level.buckets.size());
    const SimTime offset = scale_.begin - row_.buckets.begin() + (SimTime{1} << level.shift) - 1;
    const float share = 1 / (255.0F * static_cast<float>(each));
    StripPixel* pixels = strip();
    for (int p = 0; p < scale_.width; ++p) {
      const SimTime at = (offset + static_cast<SimTime>(p * scale_.ns_per_pixel)) >> level.shift;
      std::uint32_t busy = 0;
      TimeBucket longest;
      const auto take = [&](TimeBucket bucket) {
        busy += bucket.busy();
        longest = longer(longest, bucket);
      };
      if (kEach > 0 && at >= 0 && at + kEach <= count) {
        for (int k = 0; k < kEach; ++k) take(buckets[at + k]);
      } else {
        for (SimTime k = std::max<SimTime>(0, at); k < std::min(at + each, count); ++k) take(buckets[k]);
      }
      pixels[p] = {static_cast<float>(busy) * share, longest.longest(), longest.meaning()};
    }
  }

  void from_slices() {
    const SimTime end = scale_.end();
    for (std::size_t slice = first_; slice < row_.size() && row_.start[slice] < end; ++slice) {
      const SimTime start = row_.start[slice];
      const SimDuration duration = row_.end[slice] - start;
      if (duration >= box_ns_) {
        add_box(slice);
        continue;
      }
      if (start >= pixel_end_) enter_pixel(start);
      if (++here_ > kManyInAPixel) {
        // All but the last that begin here are seen here only: the last is looked at by itself.
        const std::size_t next = row_.first_from(pixel_end_, slice);
        if (next > slice + 1) {
          add_many(pixel_, slice, next - 1);
          slice = next - 2;
          continue;
        }
      }
      if (row_.end[slice] > pixel_end_ || start < scale_.begin) {
        add_narrow(pixel_, x(start), x(row_.end[slice]), slice, duration);
        continue;
      }
      busy_ += duration;
      if (duration >= longest_) longest_ = duration, longest_slice_ = slice;
    }
    leave_pixel();
  }

  /// Slices inside one pixel are summed up in whole nanoseconds: most are.
  void enter_pixel(SimTime start) {
    leave_pixel();
    pixel_ = std::clamp(static_cast<int>(x(start)), 0, scale_.width - 1);
    pixel_end_ = std::max(start + 1, scale_.time(pixel_ + 1.0));
    here_ = 0;
  }

  void leave_pixel() {
    if (longest_ < 0) return;
    StripPixel& there = strip()[pixel_];
    there.busy += static_cast<float>(static_cast<double>(busy_) * pixels_per_ns_);
    show(there, longest_slice_, longest_);
    busy_ = 0;
    longest_ = -1;
  }

  void add_many(int pixel, std::size_t first, std::size_t last) {
    StripPixel& there = strip()[pixel];
    const auto busy = static_cast<double>(row_.busy_before[last] - row_.busy_before[first]);
    there.busy += static_cast<float>(busy * pixels_per_ns_);
    const std::size_t longest = row_.longest(first, last);
    show(there, longest, row_.end[longest] - row_.start[longest]);
  }

  void add_narrow(int pixel, double left, double right, std::size_t slice, SimDuration duration) {
    StripPixel* pixels = strip();
    left = std::max(0.0, left);
    for (int p = pixel; p < scale_.width && (p == pixel || p < right); ++p) {
      const double covered = std::min<double>(right, p + 1) - std::max<double>(left, p);
      pixels[p].busy += static_cast<float>(std::max(0.0, covered));
      show(pixels[p], slice, duration);
    }
  }

  void show(StripPixel& there, std::size_t slice, SimDuration duration) const {
    const std::uint16_t rank = duration_rank(duration);
    if (rank <= there.longest) return;
    there.longest = rank;
    if (!row_.meaning.empty()) there.meaning = row_.meaning[slice];
  }

  const SliceRow& row_;
  const TimeScale& scale_;
  double pixels_per_ns_;
  SimDuration box_ns_;
  std::size_t first_ = 0;
  int pixel_ = 0;
  SimTime pixel_end_ = std::numeric_limits<SimTime>::min();
  std::size_t here_ = 0;  // slices that began in the pixel
  SimDuration busy_ = 0, longest_ = -1;
  std::size_t longest_slice_ = 0;
  RowGeometry geometry_;
};

}  // namespace

RowGeometry layout_row(const SliceRow& row, const TimeScale& scale) {
  if (scale.width <= 0 || row.size() == 0) return {};
  return RowLayout(row, scale).run();
}

}  // namespace foreshard::gui
