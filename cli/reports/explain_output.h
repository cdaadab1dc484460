// `simulate --explain`: the explanation for people, and as the object that it adds to the prediction's JSON.
#pragma once

#include <string>

#include "cli/console/json_text.h"
#include "cli/reports/report.h"
#include "cli/session/simulation.h"

namespace foreshard::cli {

/// Empty if the simulation was not explained.
std::string explanation_report(const Simulation& simulation, const ReportStyle& style);

/// Field "explain"; docs/formats/prediction.md.
void write_explanation(JsonText& out, const Explanation& explanation);

}  // namespace foreshard::cli
