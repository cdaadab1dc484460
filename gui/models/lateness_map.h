// Ranks over collectives or steps: how late each came. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/timeline.h"
#include "traces/analysis/collective_meetings.h"

namespace foreshard::gui {

struct LatenessCell {
  SimDuration late = -1;  // behind the first rank; of a step the sum over its collectives; -1: it took no part
  SpanId span;            // the collective on this rank; of a step the one to which it came latest
};

struct LatenessMap {
  std::vector<std::int32_t> ranks;   // rows
  std::vector<std::string> columns;  // "step 3", "all_gather 12 of step 3"
  std::vector<LatenessCell> cells;   // row after row
  SimDuration latest = 0;

  const LatenessCell& at(std::size_t row, std::size_t column) const { return cells[row * columns.size() + column]; }
};

/// Empty where fewer than two ranks meet.
LatenessMap lateness_map(const Timeline& timeline, bool by_step);

}  // namespace foreshard::gui
