// A host's calibrated parts fitted to steps that its ranks ran: `calibrate`'s last part.
//
// Ranks that share a machine wait for each other and for a core, which no part measured alone shows. Two numbers say
// it: operators take longer beside everything that a step does, until the predicted work of the computing stream is the
// measured one; and collectives do, until the step is. Pure; nanoseconds.
#pragma once

#include <functional>

#include "sim/machine/profile.h"

namespace foreshard {

struct StepTimes {
  double step_ns = 0, compute_ns = 0;  // compute: what the computing stream is busy; 0: not measured
};

struct StepFit {
  double operators = 1, collectives = 1;  // factors, 0.25 to 4 and 0.25 to 8
  StepTimes before, after;                // predicted
};

/// `predict` gives the job that was measured. A rank that waits for a collective is not alone: the others come later
/// because they compute. So a collective takes what it took beside compute, whether its own rank computes or not; what
/// it takes of the compute and of the cores stays as it was measured. Where no factors reach the measured times, the
/// nearest count; operators stay as they are where nobody has measured what is computed. A profile without measured
/// collectives stays as it is.
StepFit fit_step(HardwareProfile& profile, const StepTimes& measured,
                 const std::function<StepTimes(const HardwareProfile&)>& predict);

}  // namespace foreshard
