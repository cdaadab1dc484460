// What `trace analyse` prints: busy, idle by cause, overlap, collectives, units, memory, critical path of every rank,
// as a report and as JSON (foreshard.analysis/1, docs/formats/analysis.md). Pure: values in, text out.
#pragma once

#include <string>
#include <vector>

#include "cli/reports/report.h"
#include "traces/analysis/analysis.h"
#include "traces/formats/open_trace.h"

namespace foreshard::cli {

struct AnalysedFiles {
  std::vector<std::string> files;
  int top = 10;  // rows of the long tables; 0 = all
};

std::string analysis_report(const OpenedTrace& trace, const std::vector<RankAnalysis>& ranks,
                            const AnalysedFiles& about, const ReportStyle& style);
std::string analysis_json(const OpenedTrace& trace, const std::vector<RankAnalysis>& ranks, const AnalysedFiles& about);

/// Neighbours on the path that are alike: the same cause, stream and kind.
struct PathStretch {
  PathCause cause = PathCause::Work;
  std::string stream, name;  // name: of the longest
  SpanKind kind = SpanKind::Other;
  SimTime begin = 0, end = 0;
  std::int64_t steps = 0;
};
std::vector<PathStretch> path_stretches(const Timeline& timeline, const std::vector<PathStep>& path);

/// "12ms", "1.5 s", "300us"; a bare number is nanoseconds.
Result<SimTime> time_of_text(const std::string& flag, const std::string& text);

}  // namespace foreshard::cli
