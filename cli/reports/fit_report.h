// What `fit` says: the best jobs of each method, why, what their memory is made of, the longest sequence, and what was
// not tried. Pure: values in, text out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/reports/report.h"
#include "cli/session/simulation.h"
#include "sim/fit/fit.h"

namespace foreshard::cli {

struct FitReport {
  std::string model, gpus;  // "llama-3-8b", "8 x h100-sxm-80"
  std::int64_t seq = 0;
  Bytes card_memory = 0;
  const FitAnswer& answer;
  std::vector<std::string> base_set;                         // settings of all choices, on the file given
  std::vector<std::vector<std::vector<std::string>>> files;  // by method and choice: paths written
  std::vector<std::optional<Remedy>> nearest;                // by method: where nothing fits
};

std::string fit_report(const FitReport& report, const ReportStyle& style);
/// foreshard.fit/1
std::string fit_json(const FitReport& report);

}  // namespace foreshard::cli
