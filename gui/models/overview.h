// How busy a whole recording is, column by column: what the strip above the lanes shows.
#pragma once

#include <vector>

#include "gui/models/scene.h"

namespace foreshard::gui {

/// Shares of a column's time, 0 to 1, the mean of all ranks.
struct OverviewColumn {
  double compute = 0, communication = 0;
};

/// `range` from the side's origin, in equal columns. O(ranks columns log slices).
std::vector<OverviewColumn> overview_of(const SceneSide& side, TimeRange range, int columns);

}  // namespace foreshard::gui
