// From slice to slice by keys: along a row, and to the lane above or below. Pure functions over a scene.
#pragma once

#include "gui/models/scene.h"

namespace foreshard::gui {

/// The slice before (-1) or after (1) `selected` in its row; from none the first of the first lane at `from` or later.
std::optional<SceneSlice> slice_along(const Scene& scene, const std::optional<SceneSlice>& selected, SimTime from,
                                      int step);

/// The slice of the next lane above (-1) or below (1) that runs, or begins next, where `selected` is half over.
std::optional<SceneSlice> slice_across(const Scene& scene, const SceneSlice& selected, int step);

}  // namespace foreshard::gui
