#include "gui/models/timeline/slice_rows.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace foreshard::gui {
namespace {

SimTime end_of(const Span& span) {
  if (span.duration <= 0) return span.start;
  constexpr SimTime kLast = std::numeric_limits<SimTime>::max() / 4;  // times are subtracted later: room for it
  return span.start > kLast - span.duration ? kLast : span.start + span.duration;
}

/// "The first row that is free at this time", in O(log rows): a tree of the earliest end below each node.
class FreeRows {
 public:
  std::size_t take(SimTime start, SimTime end) {
    if (tree_.empty() || tree_[1] > start) grow();
    std::size_t node = 1;
    while (node < leaves_) node = tree_[2 * node] <= start ? 2 * node : 2 * node + 1;
    const std::size_t row = node - leaves_;
    tree_[node] = end;
    for (node /= 2; node >= 1; node /= 2) tree_[node] = std::min(tree_[2 * node], tree_[2 * node + 1]);
    return row;
  }

 private:
  void grow() {
    const std::size_t old = leaves_;
    leaves_ = old == 0 ? 1 : old * 2;
    std::vector<SimTime> tree(2 * leaves_, std::numeric_limits<SimTime>::min());
    for (std::size_t k = 0; k < old; ++k) tree[leaves_ + k] = tree_[old + k];
    for (std::size_t node = leaves_ - 1; node >= 1; --node) tree[node] = std::min(tree[2 * node], tree[2 * node + 1]);
    tree_ = std::move(tree);
  }

  std::size_t leaves_ = 0;
  std::vector<SimTime> tree_;
};

LaneRows layout_lane(const Timeline& timeline, std::vector<std::uint32_t>& spans) {
  const auto earlier = [&](std::uint32_t a, std::uint32_t b) {
    const Span &x = timeline.spans[a], &y = timeline.spans[b];
    // Of spans that start together the longer one is around the other.
    return x.start != y.start ? x.start < y.start : x.duration > y.duration;
  };
  if (!std::is_sorted(spans.begin(), spans.end(), earlier)) std::stable_sort(spans.begin(), spans.end(), earlier);
  LaneRows lane;
  FreeRows free;
  for (const std::uint32_t index : spans) {
    const Span& span = timeline.spans[index];
    const SimTime end = end_of(span);
    const std::size_t row = free.take(span.start, end);
    if (row >= lane.rows.size()) lane.rows.resize(row + 1);
    lane.rows[row].start.push_back(span.start);
    lane.rows[row].end.push_back(end);
    lane.rows[row].span.push_back(index);
    lane.rows[row].meaning.push_back(meaning_of(span));
  }
  if (lane.rows.empty()) lane.rows.resize(1);
  for (SliceRow& row : lane.rows) row.index();
  return lane;
}

}  // namespace

void SliceRow::index() {
  busy_before.assign(size() + 1, 0);
  for (std::size_t k = 0; k < size(); ++k) busy_before[k + 1] = busy_before[k] + (end[k] - start[k]);
  pyramid = LongestPyramid(start, end);
  buckets = TimeBuckets(start, end, meaning);
}

std::size_t SliceRow::first_after(SimTime time) const {
  return static_cast<std::size_t>(std::upper_bound(end.begin(), end.end(), time) - end.begin());
}

std::size_t SliceRow::first_from(SimTime time, std::size_t from) const {
  std::size_t step = 1, low = from;
  while (low + step < size() && start[low + step] < time) {
    low += step;
    step *= 2;
  }
  const auto first = start.begin() + static_cast<std::ptrdiff_t>(low);
  const auto last = start.begin() + static_cast<std::ptrdiff_t>(std::min(size(), low + step + 1));
  return static_cast<std::size_t>(std::lower_bound(first, last, time) - start.begin());
}

std::optional<std::size_t> SliceRow::at(SimTime time) const {
  const std::size_t slice = first_after(time);
  if (slice < size() && start[slice] <= time) return slice;
  return std::nullopt;
}

SimDuration SliceRow::busy(SimTime begin, SimTime last) const {
  const std::size_t i = first_after(begin);
  const std::size_t j = first_from(last);
  if (i >= j) return 0;
  SimDuration sum = busy_before[j] - busy_before[i];
  sum -= std::max<SimDuration>(0, begin - start[i]);
  sum -= std::max<SimDuration>(0, end[j - 1] - last);
  return sum;
}

std::vector<LaneRows> layout_lanes(const Timeline& timeline) {
  std::vector<std::vector<std::uint32_t>> spans(timeline.lanes.size());
  std::vector<std::size_t> counts(timeline.lanes.size(), 0);
  for (const Span& span : timeline.spans)
    if (span.lane.valid() && span.lane.index() < counts.size()) ++counts[span.lane.index()];
  for (std::size_t lane = 0; lane < counts.size(); ++lane) spans[lane].reserve(counts[lane]);
  for (std::size_t k = 0; k < timeline.spans.size(); ++k) {
    const LaneId lane = timeline.spans[k].lane;
    if (lane.valid() && lane.index() < spans.size()) spans[lane.index()].push_back(static_cast<std::uint32_t>(k));
  }
  std::vector<LaneRows> lanes;
  lanes.reserve(spans.size());
  for (auto& list : spans) {
    lanes.push_back(layout_lane(timeline, list));
    list = {};
  }
  return lanes;
}

std::optional<SlicePlace> find_slice(const std::vector<LaneRows>& lanes, const Timeline& timeline, std::uint32_t span) {
  if (span >= timeline.spans.size()) return std::nullopt;
  const Span& wanted = timeline.spans[span];
  if (!wanted.lane.valid() || wanted.lane.index() >= lanes.size()) return std::nullopt;
  const auto& rows = lanes[wanted.lane.index()].rows;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t k = rows[r].first_from(wanted.start); k < rows[r].size() && rows[r].start[k] == wanted.start; ++k)
      if (rows[r].span[k] == span)
        return SlicePlace{static_cast<std::uint32_t>(wanted.lane.index()), static_cast<std::uint32_t>(r),
                          static_cast<std::uint32_t>(k)};
  }
  return std::nullopt;
}

TimeRange extent_of(const std::vector<LaneRows>& lanes) {
  TimeRange range;
  bool any = false;
  for (const LaneRows& lane : lanes) {
    for (const SliceRow& row : lane.rows) {
      if (row.size() == 0) continue;
      range.begin = any ? std::min(range.begin, row.start.front()) : row.start.front();
      range.end = any ? std::max(range.end, row.end.back()) : row.end.back();
      any = true;
    }
  }
  return range;
}

}  // namespace foreshard::gui
