// `simulate --slow-rank, --rank-profile, --jitter`: ranks that are not all alike, from the flags to the answer.
#pragma once

#include <string>

#include "cli/console/flags.h"
#include "cli/console/json_text.h"
#include "cli/reports/report.h"
#include "cli/session/simulation.h"
#include "core/result.h"

namespace foreshard::cli {

Result<RanksPrediction> predict_ranks(const SimulateFlags& flags, const Job& job);

/// Empty if all ranks are alike.
std::string ranks_report(const Simulation& simulation, const ReportStyle& style);

/// Field "ranks"; docs/formats/prediction.md.
void write_ranks(JsonText& out, const RanksPrediction& ranks);

}  // namespace foreshard::cli
