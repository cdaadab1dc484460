// A Timeline's spans as rows that can be drawn and asked in O(log n): one row a lane, and further rows below it for
// spans that overlap. Nothing is dropped.
//
// Structure of arrays, sorted by time, no overlap inside a row. Built once (any thread), then read only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/timeline.h"
#include "gui/models/timeline/longest_pyramid.h"
#include "gui/models/timeline/meaning.h"
#include "gui/models/timeline/time_buckets.h"

namespace foreshard::gui {

/// Slices of one row, [slices] each. `busy_before[i]`: time covered by the slices before i.
struct SliceRow {
  std::vector<SimTime> start, end;
  std::vector<std::uint32_t> span;  // index in Timeline::spans
  std::vector<Meaning> meaning;     // beside the times: a strip asks for it once a pixel. Empty: Other
  std::vector<SimDuration> busy_before;
  LongestPyramid pyramid;
  TimeBuckets buckets;

  /// Makes the last three from the times. REQUIRES sorted slices without overlap.
  void index();
  std::size_t size() const { return start.size(); }
  /// First slice that ends after `time`, or size().
  std::size_t first_after(SimTime time) const;
  /// First slice from `from` on that starts at or after `time`, or size(). Gallops: near answers are found quickly.
  std::size_t first_from(SimTime time, std::size_t from = 0) const;
  std::optional<std::size_t> at(SimTime time) const;
  SimDuration busy(SimTime begin, SimTime end) const;
  std::size_t longest(std::size_t first, std::size_t last) const { return pyramid.longest(start, end, first, last); }
};

struct LaneRows {
  std::vector<SliceRow> rows;  // at least one
};

struct SlicePlace {
  std::uint32_t lane = 0, row = 0, slice = 0;
  bool operator==(const SlicePlace&) const = default;
};

/// By lane of the timeline. A span that ends before it starts counts as a moment. Spans of lanes that do not exist are
/// left out.
std::vector<LaneRows> layout_lanes(const Timeline& timeline);

/// Where a span was laid; nullopt for a span of no lane.
std::optional<SlicePlace> find_slice(const std::vector<LaneRows>& lanes, const Timeline& timeline, std::uint32_t span);

/// First start and last end over all lanes; {0, 0} where there is nothing.
struct TimeRange {
  SimTime begin = 0, end = 0;
  SimDuration length() const { return end - begin; }
  bool operator==(const TimeRange&) const = default;
};
TimeRange extent_of(const std::vector<LaneRows>& lanes);

}  // namespace foreshard::gui
