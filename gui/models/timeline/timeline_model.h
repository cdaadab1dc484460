// A timeline made ready to be looked at: rows, memory tracks, phases, exposed communication, facts in words.
//
// Built once from an opened Timeline (on any thread), then read only: windows and pictures share it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/timeline.h"
#include "gui/models/timeline/counter_tracks.h"
#include "gui/models/timeline/slice_rows.h"
#include "traces/timeline/intervals.h"

namespace foreshard::gui {

struct NamedRange {
  std::string name;
  TimeRange time;
};

/// Time by what it went to; any range in O(log n).
struct TimeShare {
  std::string name;  // "compute", "waiting for the host", ...
  IntervalIndex times;
};

/// What stands above the lanes of one rank, and what its time went to.
struct RankBands {
  std::int32_t rank = 0;
  std::vector<NamedRange> iterations;
  std::vector<NamedRange> phases;  // forward, backward, clip, optimizer: of the compute stream's spans
  SliceRow exposed;                // collectives that run while the compute stream stands; `span` is the collective
  IntervalIndex compute, comm;     // the compute streams' own work; collectives: each instant once
  std::vector<TimeShare> idle;     // no stream works, by cause
  std::vector<TimeShare> path;     // the critical path, by what is on it; of the lowest rank only
};

struct TimelineModel {
  Timeline timeline;
  std::string name;  // file or job, for titles
  std::vector<LaneRows> lanes;
  std::vector<MemoryTracks> memory;                 // drawn where the work runs that it is allocated for
  std::vector<RankBands> ranks;                     // ascending
  std::vector<std::uint32_t> flows_from, flows_to;  // indices of flows, sorted by their span
  TimeRange extent;

  bool predicted() const { return timeline.provenance.source == "simulated"; }
  const RankBands* bands_of(std::int32_t rank) const;
  const MemoryTracks* memory_of(std::int32_t rank) const;
};

std::shared_ptr<const TimelineModel> make_timeline_model(Timeline timeline, std::string name);

/// The iteration that stands for the run, of the lowest rank; the whole timeline where nothing says iterations.
TimeRange steady_range(const TimelineModel& model);

/// "predicted on h100-sxm-80", "recorded, 2 ranks".
std::string describe_source(const TimelineModel& model);

/// "all_gather · layers.3": what is written on a slice.
std::string slice_label(const Timeline& timeline, const Span& span);
std::string unit_label(const Timeline& timeline, std::int32_t unit);  // "root" for the root, "" for none

/// The spans that a span's flows come from or lead to.
std::vector<std::uint32_t> flow_partners(const TimelineModel& model, std::uint32_t span);

}  // namespace foreshard::gui
