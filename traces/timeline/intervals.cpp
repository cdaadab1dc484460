#include "traces/timeline/intervals.h"

#include <algorithm>

namespace foreshard {

std::vector<Interval> merge_intervals(std::vector<Interval> intervals) {
  const auto by_begin = [](const Interval& a, const Interval& b) { return a.begin < b.begin; };
  if (!std::is_sorted(intervals.begin(), intervals.end(), by_begin))
    std::sort(intervals.begin(), intervals.end(), by_begin);
  std::vector<Interval> merged;
  for (const Interval& interval : intervals) {
    if (interval.end <= interval.begin) continue;
    if (!merged.empty() && interval.begin <= merged.back().end)
      merged.back().end = std::max(merged.back().end, interval.end);
    else
      merged.push_back(interval);
  }
  return merged;
}

std::vector<Interval> intersect_intervals(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::vector<Interval> common;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Interval part{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (part.begin < part.end) common.push_back(part);
    ++(a[i].end < b[j].end ? i : j);
  }
  return common;
}

SimDuration length_of(const std::vector<Interval>& intervals) {
  SimDuration sum = 0;
  for (const Interval& interval : intervals) sum += interval.end - interval.begin;
  return sum;
}

IntervalIndex::IntervalIndex(std::vector<Interval> intervals) : intervals_(std::move(intervals)) {
  sums_.reserve(intervals_.size());
  SimDuration sum = 0;
  for (const Interval& interval : intervals_) {
    sums_.push_back(sum);
    sum += interval.end - interval.begin;
  }
}

SimDuration IntervalIndex::before(SimTime time) const {
  const auto after = std::partition_point(intervals_.begin(), intervals_.end(),
                                          [&](const Interval& interval) { return interval.begin < time; });
  if (after == intervals_.begin()) return 0;
  const Interval& last = *(after - 1);
  return sums_[static_cast<std::size_t>(after - intervals_.begin() - 1)] + std::min(time, last.end) - last.begin;
}

SimDuration IntervalIndex::covered(SimTime begin, SimTime end) const {
  return end > begin ? before(end) - before(begin) : 0;
}

}  // namespace foreshard
