// The report of `simulate` for people: what fits, how long, what is exposed, and why. Pure: values in, text out.
#pragma once

#include <string>

#include "cli/session/simulation.h"

namespace foreshard::cli {

struct ReportStyle {
  bool color = false;
  bool unicode = true;
  int width = 100;
};

std::string simulation_report(const Simulation& simulation, const ReportStyle& style);

}  // namespace foreshard::cli
