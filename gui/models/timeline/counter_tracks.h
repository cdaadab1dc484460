// Counters over time: the value at a moment, and the lowest and highest of a range in O(log n).
//
// Several samples may share one time: an allocator's, where the host issues in no time. What is asked at a time is the
// last of them; a Moment tells them apart, and means the same in all counters of one recording.
//
// Built once from a Timeline, then read only. Values are the counter's own (bytes); a counter holds its value until its
// next sample and is 0 before the first.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/timeline.h"

namespace foreshard::gui {

struct Moment {
  SimTime recorded = 0;
  std::int32_t later = 0;  // samples of that time that come after it
};

struct ValueRange {
  std::int64_t low = 0, high = 0;
  SimTime high_at = 0;       // where the highest value is first
  std::int64_t sample = -1;  // the one that is highest; -1: the value held at the range's begin
};

class CounterTrack {
 public:
  CounterTrack() = default;
  /// `recorded`: when the samples were taken, if that is another time than where they are drawn; both ascend.
  CounterTrack(std::vector<SimTime> times, std::vector<std::int64_t> values, std::vector<SimTime> recorded = {});

  std::int64_t at(SimTime time) const;
  std::int64_t at(Moment moment) const;
  /// REQUIRES a sample of this track.
  Moment moment_of(std::int64_t sample) const;
  /// Over [begin, end), the value held at `begin` included.
  ValueRange range(SimTime begin, SimTime end) const;
  std::int64_t highest() const;
  std::size_t size() const { return times_.size(); }
  const std::vector<SimTime>& times() const { return times_; }

 private:
  struct Extremes {
    std::uint32_t lowest = 0, highest = 0;  // indices of samples
  };
  const std::vector<SimTime>& recorded() const { return recorded_.empty() ? times_ : recorded_; }

  std::vector<SimTime> times_, recorded_;
  std::vector<std::int64_t> values_;
  std::vector<std::vector<Extremes>> levels_;  // by groups of 8, 64, ...
};

/// The memory of one rank.
struct MemoryTracks {
  std::int32_t rank = 0;
  std::optional<CounterTrack> allocated, reserved;
  std::vector<std::pair<std::string, CounterTrack>> categories;  // bottom of the stack first; empty ones left out
  std::int64_t highest = 0;                                      // over allocated, reserved and the stack
};

/// Ranks that have counters of bytes, ascending. An allocator counts when the host issues, often long before the work
/// runs; `when` says for a rank and such a time where it is drawn. It never goes back.
using DrawnTime = std::function<SimTime(std::int32_t rank, SimTime time)>;
std::vector<MemoryTracks> memory_tracks(const Timeline& timeline, const DrawnTime& when = {});

/// What a category held when another counter was highest in a range.
std::int64_t value_beside(const CounterTrack& category, const CounterTrack& counter, const ValueRange& highest);

/// One pixel of the picture: the stack where the sum is highest, and the two lines there.
struct MemoryColumn {
  std::vector<std::int64_t> upto;  // by category: it and all below
  std::int64_t allocated = 0, reserved = 0;
};
std::vector<MemoryColumn> memory_columns(const MemoryTracks& tracks, SimTime begin, double ns_per_pixel, int width);

}  // namespace foreshard::gui
