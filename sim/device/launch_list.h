// Kernels that follow each other on one stream, without what they are: what placing them in time needs. A plain value;
// nanoseconds.
#pragma once

#include <vector>

#include "core/units.h"

namespace foreshard {

/// Operators that launch nothing are host time before the next launch.
struct LaunchList {
  struct Launch {
    SimDuration host = 0, device = 0;
    double slowdown = -1;  // as DeviceWork's
    // As Interference::settle() leaves it: the time beside one collective, and what either time adds to the slowed time
    // of a window.
    SimDuration beside = 0;
    double slowed = 0, slowed_beside = 0;
  };
  std::vector<Launch> launches;
  std::vector<std::size_t> waits;  // places of launches that the host waits for
  SimDuration host_after = 0;
  SimDuration host = 0;  // of all of it
  double settled = -1;   // for this usual slowdown; less than 0: for none
};

}  // namespace foreshard
