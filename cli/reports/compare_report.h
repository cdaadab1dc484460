// What `compare` prints: a table of where two timelines part, largest first, or the same as JSON (docs/compare.md).
#pragma once

#include <string>

#include "cli/reports/report.h"
#include "traces/analysis/comparison.h"

namespace foreshard::cli {

/// One side as it was given, and what it is.
struct ComparedSide {
  std::string file;
  std::string what;  // "prediction on cpu-host", "recording of 2 ranks"
  std::string plan_digest;
};

struct ComparedSides {
  ComparedSide a, b;
  int top = 10;  // rows of the long tables; 0 = all
};

std::string comparison_report(const Comparison& comparison, const ComparedSides& sides, const ReportStyle& style);
std::string comparison_json(const Comparison& comparison, const ComparedSides& sides);

/// The largest of step error, memory error and exposed communication (points), as a share.
double worst_difference(const Comparison& comparison);

}  // namespace foreshard::cli
