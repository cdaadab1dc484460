// What is on the canvas, from top to bottom: tracks with their heights. One timeline, or two on one locked axis.
//
// A plain value over shared models. Time on the canvas is nanoseconds from each side's origin, y is in pixels from the
// top of the first track.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gui/models/comparison_model.h"
#include "gui/models/timeline/timeline_model.h"

namespace foreshard::gui {

enum class TrackKind : std::uint8_t { Rank, Phases, Lane, Links, Heat, Exposed, Memory };

struct Track {
  TrackKind kind = TrackKind::Lane;
  int side = 0;
  std::int32_t rank = 0;
  std::uint32_t lane = 0;  // Lane
  std::string stream;      // Lane, Links, Heat
  double y = 0, height = 0;
  std::string label;
};

struct SceneSide {
  std::shared_ptr<const TimelineModel> model;
  SimTime origin = 0;  // of the time axis: the begin of the step that is shown
};

struct SceneOptions {
  bool lanes = true, memory = true, host = true;
  bool from_step = false;  // time 0 is the begin of the step that stands for the run, not of the recording
  double row_height = 20;
  double memory_height = 150;
  std::set<std::int32_t> folded;   // ranks of which only heading and phases are shown
  std::set<std::string> hidden;    // streams whose lanes are not shown
  std::vector<std::string> first;  // streams whose lanes stand on top, in this order
};

struct Scene {
  std::vector<SceneSide> sides;
  std::shared_ptr<const ComparisonModel> comparison;  // where there are two sides
  std::vector<Track> tracks;                          // by y
  double height = 0;
  TimeRange extent;  // all that can be seen

  bool compares() const { return sides.size() == 2; }
  /// The first track that reaches below y; tracks.size() below all.
  std::size_t track_at(double y) const;
};

Scene timeline_scene(std::shared_ptr<const TimelineModel> model, const SceneOptions& options = {});
/// The same tracks in a taller canvas: rows of slices grow by half at most, memory takes the rest. `height` below the
/// scene's own changes nothing.
Scene stretched(Scene scene, double height);

Scene comparison_scene(std::shared_ptr<const ComparisonModel> comparison, const SceneOptions& options = {});

/// Rows of slices share a lane track's height.
double row_height(const Track& track, const LaneRows& lane);

/// What is under a point of the canvas: a slice of a lane.
struct SceneSlice {
  int side = 0;
  std::uint32_t span = 0;
  bool operator==(const SceneSlice&) const = default;
};
std::optional<SceneSlice> slice_at(const Scene& scene, double y, SimTime time, SimDuration tolerance);

/// Where a span is drawn; nullopt if its lane is not shown.
struct SlicePosition {
  TimeRange time;  // from the side's origin
  double y = 0, height = 0;
  std::size_t track = 0;
};
std::optional<SlicePosition> position_of(const Scene& scene, const SceneSlice& slice);

}  // namespace foreshard::gui
