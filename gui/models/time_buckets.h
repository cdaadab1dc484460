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
#include "gui/models/meaning.h"

namespace foreshard::gui {

/// What happens in [begin + i * width, begin + (i + 1) * width).
struct TimeBucket {
  std::uint16_t longest = 0;         // rank of the longest slice that is seen here (see duration_rank); 0: nothing
  std::uint8_t busy = 0;             // share of the time that is covered, of 255
  Meaning meaning = Meaning::Other;  // of the longest
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
