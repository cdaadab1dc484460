// Recordings of several ranks on one time axis.
//
// Ranks that take part in a collective leave it together, so the ends of the same collectives tell how far two clocks
// are apart: the median over all of them, against the first recording. Without common collectives Unix time decides,
// without that each recording begins at 0. Which collectives are the same: the k-th of a kind.
#pragma once

#include <string>
#include <vector>

#include "traces/timeline/opened_trace.h"

namespace foreshard {

struct ClockShift {
  SimDuration shift = 0;         // to be added to the recording's times
  std::string by;                // "collectives", "unix time", "none"
  std::int64_t collectives = 0;  // that both have
  SimDuration disagreement = 0;  // median distance of a collective from the median shift
};

/// For each recording; the first is 0. Times of the others may become negative.
std::vector<ClockShift> align_clocks(const std::vector<OpenedTrace>& traces);

/// Moves the recordings by their shifts and all of them so that the first thing is at 0, gives every rank one number,
/// and makes one timeline. The warnings say what was aligned by what.
OpenedTrace join_ranks(std::vector<OpenedTrace> traces, const std::vector<std::string>& places);

}  // namespace foreshard
