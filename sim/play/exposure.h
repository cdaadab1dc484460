// Exposed communication: the time in which a collective runs while the compute stream stands idle, and what made it so.
// A pure function of what has run.
#pragma once

#include <vector>

#include "core/units.h"
#include "sim/device/activity.h"
#include "sim/play/prediction.h"

namespace foreshard {

struct Exposure {
  SimDuration exposed = 0;       // each instant counts once, however many collectives run
  SimDuration idle = 0;          // of the compute stream, inside the window
  std::vector<CommResult> comm;  // by kind
  std::vector<ExposedCause> causes;
};

/// Looks at the window [begin, end): collectives that start in it, gaps of the compute stream in it.
///
/// Causes: first_gather (nothing to compute before the first parameters are there), host (the work was issued too late
/// to run earlier), limiter (the collective was issued after the host had been held back), tail (after the last
/// backward kernel), compute_stream (ran on the compute stream itself), bandwidth (the link is the bottleneck: the
/// rest).
Exposure find_exposure(const Activity& activity, SimTime begin, SimTime end);

}  // namespace foreshard
