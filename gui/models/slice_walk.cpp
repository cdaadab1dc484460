#include "gui/models/slice_walk.h"

#include <algorithm>

#include "gui/models/timeline/slice_search.h"

namespace foreshard::gui {

std::optional<SceneSlice> slice_along(const Scene& scene, const std::optional<SceneSlice>& selected, SimTime from,
                                      int step) {
  if (selected) {
    const TimelineModel& model = *scene.sides[static_cast<std::size_t>(selected->side)].model;
    const auto next = neighbour_of(model, selected->span, step);
    return next ? std::optional(SceneSlice{selected->side, *next}) : std::nullopt;
  }
  for (const Track& track : scene.tracks) {
    if (track.kind != TrackKind::Lane) continue;
    const SceneSide& side = scene.sides[static_cast<std::size_t>(track.side)];
    const SliceRow& row = side.model->lanes[track.lane].rows.front();
    const std::size_t first = row.first_after(from + side.origin);
    if (first < row.size()) return SceneSlice{track.side, row.span[first]};
  }
  return std::nullopt;
}

std::optional<SceneSlice> slice_across(const Scene& scene, const SceneSlice& selected, int step) {
  const auto position = position_of(scene, selected);
  if (!position) return std::nullopt;
  const SimTime middle = position->time.begin + position->time.length() / 2;
  auto track = static_cast<std::ptrdiff_t>(position->track) + step;
  for (; track >= 0 && track < static_cast<std::ptrdiff_t>(scene.tracks.size()); track += step) {
    const Track& other = scene.tracks[static_cast<std::size_t>(track)];
    if (other.kind != TrackKind::Lane) continue;
    const SceneSide& side = scene.sides[static_cast<std::size_t>(other.side)];
    const SliceRow& row = side.model->lanes[other.lane].rows.front();
    if (row.size() == 0) continue;
    const std::size_t at = std::min(row.first_after(middle + side.origin), row.size() - 1);
    return SceneSlice{other.side, row.span[at]};
  }
  return std::nullopt;
}

}  // namespace foreshard::gui
