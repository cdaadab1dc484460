#include "gui/models/overview.h"

#include <algorithm>

namespace foreshard::gui {

std::vector<OverviewColumn> overview_of(const SceneSide& side, TimeRange range, int columns) {
  std::vector<OverviewColumn> all(static_cast<std::size_t>(std::max(0, columns)));
  const std::vector<RankBands>& ranks = side.model->ranks;
  const double width = static_cast<double>(range.length()) / std::max(1, columns);
  if (ranks.empty() || width <= 0) return all;
  const auto edge = [&](std::size_t column) {
    return side.origin + range.begin + static_cast<SimTime>(width * static_cast<double>(column));
  };
  for (std::size_t c = 0; c < all.size(); ++c) {
    const SimTime begin = edge(c), end = std::max(begin + 1, edge(c + 1));
    const double whole = static_cast<double>(end - begin) * static_cast<double>(ranks.size());
    for (const RankBands& rank : ranks) {
      all[c].compute += static_cast<double>(rank.compute.covered(begin, end)) / whole;
      all[c].communication += static_cast<double>(rank.comm.covered(begin, end)) / whole;
    }
  }
  return all;
}

}  // namespace foreshard::gui
