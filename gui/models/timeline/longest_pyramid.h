// "Which slice of this range lasts longest?" in O(log n): the longest of every 8, of every 64, and so on.
//
// Owned by a SliceRow; read only once built, so any thread may ask. Each group keeps its slice and how long that lasts,
// so that a question reads the arrays at its edges only. 1.7 bytes a slice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/units.h"

namespace foreshard::gui {

class LongestPyramid {
 public:
  LongestPyramid() = default;
  /// Durations are end - start; both [slices].
  LongestPyramid(std::span<const SimTime> start, std::span<const SimTime> end);

  /// Index of the longest slice in [first, last); of equals the first. REQUIRES first < last <= slices, and the arrays
  /// that it was built from.
  std::size_t longest(std::span<const SimTime> start, std::span<const SimTime> end, std::size_t first,
                      std::size_t last) const;

  /// The slices of [first, last) that last at least `least`, ascending. O(log slices) each.
  std::vector<std::uint32_t> lasting(std::span<const SimTime> start, std::span<const SimTime> end, std::size_t first,
                                     std::size_t last, SimDuration least) const;

 private:
  /// The longest of each group of slices [i * 8^(k+1), (i+1) * 8^(k+1)) of level k.
  struct Level {
    std::vector<std::uint32_t> slice;
    std::vector<SimDuration> duration;
  };
  /// Entries of the level below `level`; levels count from 1 here, 0 are the slices.
  std::size_t size_below(std::size_t level, std::size_t slices) const;

  std::vector<Level> levels_;
};

}  // namespace foreshard::gui
