#include <fmt/format.h>

#include <tuple>

#include "cli/console/usage_error.h"
#include "cli/reports/trace_report.h"
#include "cli/verbs/verbs.h"
#include "core/output_file.h"
#include "traces/formats/chrome_trace.h"
#include "traces/formats/fst.h"
#include "traces/formats/timeline_csv.h"

namespace foreshard::cli {
namespace {

/// What the reader noticed goes to stderr.
Result<OpenedTrace> open_noted(const std::vector<std::string>& files, const Console& console) {
  auto opened = open_traces(files);
  if (!opened) return opened;
  for (const TraceWarning& warning : opened->warnings)
    console.note(fmt::format("warning: {}: {}", warning.place, warning.text));
  return opened;
}

ExitCode analyse(const TraceFlags& flags, const Console& console) {
  AnalysisOptions options;
  if (flags.rank >= 0) options.rank = flags.rank;
  for (const auto& [flag, text, target] :
       {std::tuple{"--from", &flags.from, &options.from}, std::tuple{"--to", &flags.to, &options.to}}) {
    if (text->empty()) continue;
    const auto time = time_of_text(flag, *text);
    if (!time) return console.error(time.error());
    *target = *time;
  }
  const auto opened = open_noted(flags.files, console);
  if (!opened) return console.error(opened.error());
  const auto ranks = analyse_timeline(opened->timeline, options);
  if (!ranks) return console.error(ranks.error());
  const AnalysedFiles about{flags.files, flags.top};
  const ReportStyle style{console.color, console.unicode, console.width};
  const bool written = console.result(console.json ? analysis_json(*opened, *ranks, about)
                                                   : analysis_report(*opened, *ranks, about, style));
  return written ? ExitCode::Ok : ExitCode::RunFailed;
}

Result<void> write_as(const Timeline& timeline, const std::string& path) {
  const auto ends = [&](std::string_view tail) { return path.ends_with(tail); };
  if (ends(".fst")) return write_fst(timeline, path);
  if (ends(".json") || ends(".json.gz")) return write_chrome_trace(timeline, path);
  if (ends(".csv") || ends(".csv.gz")) return write_timeline_csv(timeline, path);
  return fail(
      usage_error("the name of the file to write says its format", ".fst, .json, .json.gz, .csv or .csv.gz", path));
}

/// The last file is written; the ones before it are read, as ranks of one job.
ExitCode convert(const TraceFlags& flags, const Console& console) {
  if (flags.files.size() < 2)
    return console.error(usage_error("trace convert takes files to read and one to write", "IN... OUT", "one file"));
  const std::vector<std::string> inputs(flags.files.begin(), flags.files.end() - 1);
  const std::string& out = flags.files.back();
  if (auto possible = try_outputs({out}); !possible) return console.error(possible.error());
  const auto opened = open_noted(inputs, console);
  if (!opened) return console.error(opened.error());
  const auto written = write_as(opened->timeline, out);
  if (!written) return console.error(written.error());
  console.note(fmt::format("{}: {} slices", out, opened->timeline.spans.size()));
  return ExitCode::Ok;
}

}  // namespace

ExitCode run_verb(const TraceFlags& flags, const Console& console) {
  return flags.action == "convert" ? convert(flags, console) : analyse(flags, console);
}

}  // namespace foreshard::cli
