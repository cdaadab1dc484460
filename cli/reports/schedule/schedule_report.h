// What `foreshard schedule` says, for people. Pure: values in, text out.
#pragma once

#include <string>

#include "cli/reports/report.h"
#include "sim/schedule/schedule_search.h"

namespace foreshard::cli {

std::string schedule_report(const FoundSchedule& found, const std::string& model, const std::string& profile,
                            const ReportStyle& style);

}  // namespace foreshard::cli
