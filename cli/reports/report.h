// The report of `simulate` for people: what fits, how long, what is exposed, and why. Pure: values in, text out.
#pragma once

#include <string>
#include <vector>

#include "cli/session/simulation.h"

namespace foreshard::cli {

struct ReportStyle {
  bool color = false;
  bool unicode = true;
  int width = 100;
};

/// The steady step by what the compute stream does; the three add up to it.
struct StepShares {
  SimDuration compute = 0;  // without collectives on the compute stream itself
  SimDuration exposed = 0;  // communication that nothing is computed beside
  SimDuration idle = 0;     // neither: the host is late, or waits
};
StepShares step_shares(const Prediction& prediction);

/// The profile's numbers whose source is that they are assumed.
std::vector<std::string> assumed_numbers(const HardwareProfile& profile);

std::string simulation_report(const Simulation& simulation, const ReportStyle& style);

}  // namespace foreshard::cli
