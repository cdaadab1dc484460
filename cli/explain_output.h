// `simulate --explain`: the explanation for people, and as the object that it adds to the prediction's JSON.
#pragma once

#include <string>

#include "cli/json_text.h"
#include "cli/report.h"
#include "cli/simulation.h"

namespace foreshard::cli {

/// Empty if the simulation was not explained.
std::string explanation_report(const Simulation& simulation, const ReportStyle& style);

/// Field "explain"; docs/formats/prediction.md.
void write_explanation(JsonText& out, const Explanation& explanation);

}  // namespace foreshard::cli
