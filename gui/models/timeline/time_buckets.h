// A row seen from afar: what each equal stretch of time holds, at widths that double. A picture of very many slices
// reads a few buckets a pixel, in order, however many slices there are.
//
// Owned by a SliceRow; read only once built, so any thread may ask. 4 to 8 bytes a slice. Widths are powers of two, in
// nanoseconds.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "core/units.h"
#include "gui/models/timeline/meaning.h"

namespace foreshard::gui {

/// What happens in [begin + i * width, begin + (i + 1) * width).
/// One word, so that the longest of many is the greatest of many words.
class TimeBucket {
 public:
  TimeBucket() = default;
  TimeBucket(std::uint16_t longest, Meaning meaning, std::uint8_t busy)
      : word_(static_cast<std::uint32_t>(longest) << 16 | static_cast<std::uint32_t>(meaning) << 8 | busy) {}

  /// Rank of the longest slice that is seen here (see duration_rank); 0: nothing.
  std::uint16_t longest() const { return static_cast<std::uint16_t>(word_ >> 16); }
  /// Of the longest.
  Meaning meaning() const { return static_cast<Meaning>(word_ >> 8 & 0xff); }
  /// Share of the time that is covered, of 255.
  std::uint8_t busy() const { return static_cast<std::uint8_t>(word_ & 0xff); }

  /// Of two the one with the longer slice; of slices as long as each other either.
  friend TimeBucket longer(TimeBucket a, TimeBucket b) { return a.word_ >= b.word_ ? a : b; }

 private:
  std::uint32_t word_ = 0;
};

/// Orders durations in 16 bits, to half a percent; never 0.
inline std::uint16_t duration_rank(SimDuration duration) {
  // The upper half of a float: of positive ones the order of the bits is the order of the values.
  const float value = static_cast<float>(std::max<SimDuration>(0, duration)) + 1;
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

struct BucketLevel {
  int shift = 0;  // width = 1 << shift
  std::vector<TimeBucket> buckets;
};

class TimeBuckets {
 public:
  TimeBuckets() = default;
  /// Of slices that do not overlap, by time; all [slices]. `meaning` may be empty.
  TimeBuckets(std::span<const SimTime> start, std::span<const SimTime> end, std::span<const Meaning> meaning);

  /// The widest buckets of which at least four fit into a pixel; nullptr where even the narrowest are too wide.
  const BucketLevel* level_for(double ns_per_pixel) const;
  SimTime begin() const { return begin_; }

 private:
  SimTime begin_ = 0;
  std::vector<BucketLevel> levels_;  // narrowest first
};

}  // namespace foreshard::gui
