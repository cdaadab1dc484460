// Numbers for any window of a timeline, while somebody drags its edges: an index built once, then each question costs
// O(log n).
//
// Busy means work on a device (is_device_work); time that two spans share counts once. Waits, the host's spans and
// named ranges are no work. The index keeps no reference to the timeline. May be asked from several threads.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/timeline.h"
#include "traces/timeline/intervals.h"

namespace foreshard {

/// Work on a device, as opposed to the host's spans, waits and ranges.
bool is_device_work(SpanKind kind);
/// Work that computes: neither a collective, nor a copy between memories, nor a memset.
bool is_computing(SpanKind kind);

struct KindTime {
  SpanKind kind = SpanKind::Other;
  SimDuration busy = 0;
};

struct LaneStatistics {
  LaneId lane;
  SimDuration busy = 0;         // work; of a host lane: the host's own spans
  std::vector<KindTime> kinds;  // those that occur in the window
};

struct RankStatistics {
  std::int32_t rank = 0;
  SimDuration busy = 0, compute = 0, comm = 0, overlap = 0;  // overlap: compute and comm at once
  SimDuration exposed() const { return comm - overlap; }
};

struct CounterStatistics {
  CounterId counter;
  std::int64_t at_begin = 0, at_end = 0;  // a counter stands still between samples; 0 before the first
  std::int64_t low = 0, peak = 0;
  SimTime peak_at = 0;  // never before the window's begin
};

class RangeStatistics {
 public:
  explicit RangeStatistics(const Timeline& timeline);

  LaneStatistics lane(LaneId lane, SimTime begin, SimTime end) const;
  RankStatistics rank(std::int32_t rank, SimTime begin, SimTime end) const;
  CounterStatistics counter(CounterId counter, SimTime begin, SimTime end) const;

  const std::vector<std::int32_t>& ranks() const { return ranks_; }
  std::size_t lanes() const { return lanes_.size(); }
  std::size_t counters() const { return counters_.size(); }
  SimTime begin() const { return begin_; }  // of the first span
  SimTime end() const { return end_; }      // of the last

 private:
  static constexpr std::size_t kKinds = static_cast<std::size_t>(kLastSpanKind) + 1;
  struct LaneIndex {
    IntervalIndex busy;
    std::vector<std::pair<SpanKind, IntervalIndex>> kinds;
  };
  struct RankIndex {
    IntervalIndex busy, compute, comm, overlap;
  };
  /// Highest and lowest of any stretch of samples: a tree over them in an array.
  struct CounterIndex {
    std::vector<SimTime> times;
    std::vector<std::int64_t> values;
    std::vector<std::uint32_t> highest, lowest;  // heap order; leaves at size(values)
  };
  void index_lanes(const Timeline& timeline);
  void index_ranks(const Timeline& timeline);
  void index_counters(const Timeline& timeline);

  std::vector<LaneIndex> lanes_;
  std::vector<std::int32_t> ranks_;
  std::vector<RankIndex> rank_index_;
  std::vector<CounterIndex> counters_;
  SimTime begin_ = 0, end_ = 0;
};

}  // namespace foreshard
