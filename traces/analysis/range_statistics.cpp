#include "traces/analysis/range_statistics.h"

#include <algorithm>

#include "traces/timeline/exposed_comm.h"
#include "traces/timeline/iterations.h"

namespace foreshard {

bool is_device_work(SpanKind kind) {
  return kind != SpanKind::HostIssue && kind != SpanKind::HostWait && kind != SpanKind::Wait &&
         kind != SpanKind::Annotation;
}

bool is_computing(SpanKind kind) {
  return is_device_work(kind) && !is_collective(kind) && kind != SpanKind::Copy && kind != SpanKind::Memset;
}

RangeStatistics::RangeStatistics(const Timeline& timeline) : ranks_(ranks_of(timeline)) {
  for (const Span& span : timeline.spans) {
    const bool first = &span == timeline.spans.data();
    begin_ = first ? span.start : std::min(begin_, span.start);
    end_ = first ? span.start + span.duration : std::max(end_, span.start + span.duration);
  }
  index_lanes(timeline);
  index_ranks(timeline);
  index_counters(timeline);
}

void RangeStatistics::index_lanes(const Timeline& timeline) {
  lanes_.resize(timeline.lanes.size());
  const std::vector<Span>& spans = timeline.spans;
  for (std::size_t first = 0; first < spans.size();) {
    std::size_t last = first;
    std::array<std::vector<Interval>, kKinds> kinds;
    std::vector<Interval> work, host;
    for (; last < spans.size() && spans[last].lane == spans[first].lane; ++last) {
      const Span& span = spans[last];
      const Interval time{span.start, span.start + span.duration};
      kinds[static_cast<std::size_t>(span.kind)].push_back(time);
      if (is_device_work(span.kind)) work.push_back(time);
      if (span.kind == SpanKind::HostIssue) host.push_back(time);
    }
    if (spans[first].lane.valid()) {
      LaneIndex& index = lanes_[spans[first].lane.index()];
      index.busy = IntervalIndex(merge_intervals(std::move(work.empty() ? host : work)));
      for (std::size_t k = 0; k < kKinds; ++k) {
        if (!kinds[k].empty())
          index.kinds.emplace_back(static_cast<SpanKind>(k), IntervalIndex(merge_intervals(std::move(kinds[k]))));
      }
    }
    first = last;
  }
}

void RangeStatistics::index_ranks(const Timeline& timeline) {
  for (const std::int32_t rank : ranks_) {
    std::vector<Interval> compute, comm, busy;
    for (std::size_t l = 0; l < lanes_.size(); ++l) {
      if (timeline.lanes[l].rank != rank) continue;
      for (const auto& [kind, index] : lanes_[l].kinds) {
        const std::vector<Interval>& times = index.intervals();
        if (is_device_work(kind)) busy.insert(busy.end(), times.begin(), times.end());
        if (is_computing(kind)) compute.insert(compute.end(), times.begin(), times.end());
        if (is_collective(kind)) comm.insert(comm.end(), times.begin(), times.end());
      }
    }
    compute = merge_intervals(std::move(compute));
    comm = merge_intervals(std::move(comm));
    RankIndex index;
    index.overlap = IntervalIndex(intersect_intervals(compute, comm));
    index.busy = IntervalIndex(merge_intervals(std::move(busy)));
    index.compute = IntervalIndex(std::move(compute));
    index.comm = IntervalIndex(std::move(comm));
    rank_index_.push_back(std::move(index));
  }
}

void RangeStatistics::index_counters(const Timeline& timeline) {
  counters_.resize(timeline.counters.size());
  for (const CounterSample& sample : timeline.samples) {
    if (!sample.counter.valid()) continue;
    counters_[sample.counter.index()].times.push_back(sample.time);
    counters_[sample.counter.index()].values.push_back(sample.value);
  }
  for (CounterIndex& index : counters_) {
    const std::size_t n = index.values.size();
    index.highest.resize(2 * n);
    index.lowest.resize(2 * n);
    for (std::size_t i = 0; i < n; ++i) index.highest[n + i] = index.lowest[n + i] = static_cast<std::uint32_t>(i);
    const auto& v = index.values;
    // Of equal ones the earlier: a child pair of a tree that is no power of two may stand in either order.
    const auto better = [&](std::uint32_t a, std::uint32_t b, bool higher) {
      if (v[a] == v[b]) return std::min(a, b);
      return (v[a] > v[b]) == higher ? a : b;
    };
    for (std::size_t i = n; i-- > 1;) {
      index.highest[i] = better(index.highest[2 * i], index.highest[2 * i + 1], true);
      index.lowest[i] = better(index.lowest[2 * i], index.lowest[2 * i + 1], false);
    }
  }
}

LaneStatistics RangeStatistics::lane(LaneId lane, SimTime begin, SimTime end) const {
  const LaneIndex& index = lanes_[lane.index()];
  LaneStatistics statistics{lane, index.busy.covered(begin, end), {}};
  for (const auto& [kind, times] : index.kinds) {
    if (const SimDuration busy = times.covered(begin, end); busy > 0) statistics.kinds.push_back({kind, busy});
  }
  return statistics;
}

RankStatistics RangeStatistics::rank(std::int32_t rank, SimTime begin, SimTime end) const {
  RankStatistics statistics;
  statistics.rank = rank;
  const auto found = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  if (found == ranks_.end() || *found != rank) return statistics;
  const RankIndex& index = rank_index_[static_cast<std::size_t>(found - ranks_.begin())];
  statistics.busy = index.busy.covered(begin, end);
  statistics.compute = index.compute.covered(begin, end);
  statistics.comm = index.comm.covered(begin, end);
  statistics.overlap = index.overlap.covered(begin, end);
  return statistics;
}

CounterStatistics RangeStatistics::counter(CounterId counter, SimTime begin, SimTime end) const {
  const CounterIndex& index = counters_[counter.index()];
  CounterStatistics statistics;
  statistics.counter = counter;
  const auto place = [&](SimTime time, bool inclusive) {
    const auto at = inclusive ? std::upper_bound(index.times.begin(), index.times.end(), time)
                              : std::lower_bound(index.times.begin(), index.times.end(), time);
    return static_cast<std::size_t>(at - index.times.begin());
  };
  // Of several samples at `begin` the last is held from then on, the others are in the window nevertheless.
  const std::size_t held = place(begin, true), first = place(begin, false), last = std::max(first, place(end, false));
  statistics.at_begin = held > 0 ? index.values[held - 1] : 0;
  statistics.at_end = std::max(held, last) > 0 ? index.values[std::max(held, last) - 1] : 0;
  statistics.low = statistics.peak = statistics.at_begin;
  statistics.peak_at = begin;
  const auto take = [&](std::uint32_t high, std::uint32_t low) {
    const bool earlier = index.values[high] == statistics.peak && index.times[high] < statistics.peak_at;
    if (index.values[high] > statistics.peak || earlier) {
      statistics.peak = index.values[high];
      statistics.peak_at = index.times[high];
    }
    statistics.low = std::min(statistics.low, index.values[low]);
  };
  const std::size_t n = index.values.size();
  for (std::size_t l = first + n, r = last + n; l < r; l /= 2, r /= 2) {
    if (l % 2 == 1) take(index.highest[l], index.lowest[l]), ++l;
    if (r % 2 == 1) --r, take(index.highest[r], index.lowest[r]);
  }
  return statistics;
}

}  // namespace foreshard
