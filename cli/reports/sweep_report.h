// What `sweep` prints for people: the front with the reason of each point, what did not fit or was refused and why, and
// the winner ready for --set.
#pragma once

#include <string>

#include "cli/reports/report.h"
#include "cli/reports/sweep_document.h"

namespace foreshard::cli {

std::string sweep_report(const SweepDocument& document, const ReportStyle& style);

}  // namespace foreshard::cli
