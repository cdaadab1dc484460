// Sets of moments as sorted, disjoint intervals, and how long they last in any window: O(log n) after the building.
#pragma once

#include <vector>

#include "core/timeline.h"

namespace foreshard {

struct Interval {
  SimTime begin = 0, end = 0;  // end not included
  bool operator==(const Interval&) const = default;
};

/// Sorted and without overlaps; empty ones are left out.
std::vector<Interval> merge_intervals(std::vector<Interval> intervals);

/// Both sorted and disjoint.
std::vector<Interval> intersect_intervals(const std::vector<Interval>& a, const std::vector<Interval>& b);
SimDuration length_of(const std::vector<Interval>& intervals);

class IntervalIndex {
 public:
  IntervalIndex() = default;
  /// REQUIRES sorted and disjoint.
  explicit IntervalIndex(std::vector<Interval> intervals);

  /// How long [begin, end) is covered.
  SimDuration covered(SimTime begin, SimTime end) const;
  const std::vector<Interval>& intervals() const { return intervals_; }

 private:
  SimDuration before(SimTime time) const;  // covered before `time`
  std::vector<Interval> intervals_;
  std::vector<SimDuration> sums_;  // of the intervals before each
};

}  // namespace foreshard
