// A timeline made ready to be looked at: rows, memory tracks, phases, exposed communication, facts in words.
//
// Built once from an opened Timeline (on any thread), then read only: windows and pictures share it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/timeline.h"
#include "gui/models/timeline/counter_tracks.h"
#include "gui/models/timeline/slice_rows.h"
#include "traces/analysis/slice_origins.h"
#include "traces/timeline/intervals.h"
#include "traces/timeline/slice_arguments.h"

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
  SliceArguments arguments;  // what a foreign recording says of its slices beside
  std::string name;          // file or job, for titles
  std::vector<LaneRows> lanes;
  std::vector<MemoryTracks> memory;                 // drawn where the work runs that it is allocated for
  std::vector<RankBands> ranks;                     // ascending
  std::vector<std::uint32_t> flows_from, flows_to;  // indices of flows, sorted by their span
  TimeRange extent;

  bool predicted() const { return timeline.provenance.source == "simulated"; }
  /// Where slices come from; made when it is first asked for, by any thread.
  const SliceOrigins& origins() const;

  const RankBands* bands_of(std::int32_t rank) const;
  const MemoryTracks* memory_of(std::int32_t rank) const;

 private:
  mutable std::once_flag origins_asked_;
  mutable std::unique_ptr<const SliceOrigins> origins_;
};

std::shared_ptr<const TimelineModel> make_timeline_model(Timeline timeline, std::string name,
                                                         SliceArguments arguments = {});

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
