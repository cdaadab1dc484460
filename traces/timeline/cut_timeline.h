// A part of a recording as a recording of its own: what a range of time holds. Pure; O(everything).
#pragma once

#include "traces/timeline/intervals.h"
#include "traces/timeline/slice_arguments.h"

namespace foreshard {

struct TimelineCut {
  Timeline timeline;
  SliceArguments arguments;
};

/// Every slice that touches [begin, end), whole: durations stay true, so the part may reach over the range. Flows whose
/// ends are both kept; counters from the value that they had at `begin`; the marks inside. Lanes, names, units and time
/// stay as they are.
TimelineCut cut_timeline(const Timeline& timeline, const SliceArguments& arguments, Interval range);

}  // namespace foreshard
