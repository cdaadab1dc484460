// Exposed communication: the time in which a collective runs while the compute stream stands idle, and what made it so;
// and what of it hangs on the network between nodes. Pure functions of what has run.
#pragma once

#include <vector>

#include "core/units.h"
#include "sim/device/activity.h"
#include "sim/play/prediction.h"

namespace foreshard {

/// What collectives between nodes take of a forward, or of a backward, until those of the next begin.
struct NetworkPart {
  SimDuration length = 0;
  SimDuration busy = 0;     // at least one of them runs
  SimDuration exposed = 0;  // ... while the compute stream stands idle, or on that stream
  double at_half = 1;       // they take so many times as long where the network gives half
};

/// The same of a step. Nothing before the first of them and behind the last can hide one: `apart`.
struct NetworkUse {
  std::vector<NetworkPart> parts;
  SimDuration apart = 0;

  SimDuration busy() const, exposed() const;
  /// What the step would take where the network gives half: in each part what is exposed grows with them, and a network
  /// that never rests bounds it.
  SimDuration step_at_half() const;
};

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

/// Of the same window, what runs between nodes (CollectiveRun::at_half); nothing on a machine that was measured.
NetworkUse find_network_use(const Activity& activity, SimTime begin, SimTime end);
BetweenNodes find_between_nodes(const Activity& activity, SimTime begin, SimTime end);

}  // namespace foreshard
