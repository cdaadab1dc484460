// What `diagnose` prints: causes with costs, evidence and remedies, as a report and as JSON (foreshard.diagnosis/1,
// docs/formats/diagnosis.md). Pure: values in, text out.
#pragma once

#include <string>
#include <vector>

#include "cli/reports/report.h"
#include "traces/diagnosis/diagnosis.h"
#include "traces/timeline/opened_trace.h"

namespace foreshard::cli {

struct DiagnosedFiles {
  std::vector<std::string> files;
  std::string job;                         // simulated for the savings; empty = none
  std::vector<std::string> not_simulated;  // remedies of which the job could make nothing, and why
  int top = 0;                             // findings; 0 = all
};

std::string diagnosis_report(const OpenedTrace& trace, const Diagnosis& diagnosis, const DiagnosedFiles& about,
                             const ReportStyle& style);
std::string diagnosis_json(const OpenedTrace& trace, const Diagnosis& diagnosis, const DiagnosedFiles& about);

/// "12.345ms..45.6ms": a stretch of a recording as `view --range` takes it, with room on both sides.
std::string range_text(const Interval& time);

}  // namespace foreshard::cli
