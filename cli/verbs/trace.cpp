#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "cli/console/usage_error.h"
#include "cli/reports/recordings/trace_tables.h"
#include "cli/reports/trace_report.h"
#include "cli/verbs/verbs.h"
#include "core/output_file.h"
#include "traces/analysis/flame.h"
#include "traces/encodings/byte_file.h"
#include "traces/formats/chrome_trace.h"
#include "traces/formats/fst.h"
#include "traces/formats/timeline_csv.h"
#include "traces/query/trace_query.h"
#include "traces/timeline/cut_timeline.h"
#include "traces/timeline/iterations.h"

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

/// Rank and window, which kernel tables and analyses take alike.
template <class Options>
Result<Options> windowed(const TraceFlags& flags, Options options = {}) {
  if (flags.rank >= 0) options.rank = flags.rank;
  for (const auto& [flag, text, target] :
       {std::tuple{"--from", &flags.from, &options.from}, std::tuple{"--to", &flags.to, &options.to}}) {
    if (text->empty()) continue;
    const auto time = time_of_text(flag, *text);
    if (!time) return fail(time.error());
    *target = *time;
  }
  return options;
}

ExitCode analyse(const TraceFlags& flags, const Console& console) {
  const auto wanted = windowed<AnalysisOptions>(flags);
  if (!wanted) return console.error(wanted.error());
  const AnalysisOptions& options = *wanted;
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

Result<void> write_as(const OpenedTrace& opened, const std::string& path) {
  const Timeline& timeline = opened.timeline;
  const auto ends = [&](std::string_view tail) { return path.ends_with(tail); };
  if (ends(".fst")) return write_fst(timeline, path, opened.arguments);
  if (ends(".json") || ends(".json.gz")) return write_chrome_trace(timeline, path, opened.arguments);
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
  const auto window = windowed<AnalysisOptions>(flags);
  if (!window) return console.error(window.error());
  auto opened = open_noted(inputs, console);
  if (!opened) return console.error(opened.error());
  if (window->from || window->to) {
    constexpr SimTime kEver = std::numeric_limits<SimTime>::max();
    const Interval range{window->from.value_or(0), window->to.value_or(kEver)};
    if (range.end <= range.begin)
      return console.error(usage_error("the window ends before it begins", "--from before --to",
                                       fmt::format("{} ns to {} ns", range.begin, range.end)));
    TimelineCut part = cut_timeline(opened->timeline, opened->arguments, range);
    if (part.timeline.spans.empty())
      return console.error(usage_error(
          "the recording has no slice in this time", "a time in which something runs",
          fmt::format("{} to {}", flags.from.empty() ? "0" : flags.from, flags.to.empty() ? "the end" : flags.to)));
    opened->timeline = std::move(part.timeline);
    opened->arguments = std::move(part.arguments);
  }
  const auto written = write_as(*opened, out);
  if (!written) return console.error(written.error());
  console.note(fmt::format("{}: {} slices", out, opened->timeline.spans.size()));
  return ExitCode::Ok;
}

ExitCode show(const TraceTable& table, const TraceFlags& flags, const Console& console) {
  if (!flags.csv.empty()) {
    const auto written = write_whole_file(flags.csv, table_csv(table));
    if (!written) return console.error(written.error());
    console.note(fmt::format("{}: {} rows", flags.csv, table.rows.size()));
  }
  const ReportStyle style{console.color, console.unicode, console.width};
  const bool written = console.result(console.json ? table_json(table) : table_text(table, flags.top, style));
  return written ? ExitCode::Ok : ExitCode::RunFailed;
}

Result<void> check_window(const Timeline& timeline, const KernelTableOptions& options) {
  if (options.from && options.to && *options.to <= *options.from)
    return fail(usage_error("the window ends before it begins", "--from before --to",
                            fmt::format("{} ns to {} ns", *options.from, *options.to)));
  const std::vector<std::int32_t> ranks = ranks_of(timeline);
  if (!options.rank || std::binary_search(ranks.begin(), ranks.end(), *options.rank)) return {};
  return fail(usage_error("--rank: the recording has no such rank", fmt::format("{}", fmt::join(ranks, ", ")),
                          fmt::format("{}", *options.rank)));
}

/// A flag that the action does not take would be lost without a word.
Result<void> check_flags(const TraceFlags& flags) {
  const bool table =
      flags.action == "kernels" || flags.action == "stragglers" || flags.action == "query" || flags.action == "memory";
  const bool flame = flags.action == "flame";
  const bool memory = flags.action == "memory", converts = flags.action == "convert";
  const bool window = flags.action == "kernels" || flags.action == "analyse" || flame;
  const auto unused = [&](const char* flag, bool set, bool taken, const char* where) -> Result<void> {
    if (!set || taken) return {};
    return fail(usage_error(fmt::format("trace {} takes no {}", flags.action, flag), where, flag));
  };
  if (auto ok = unused("--rank", flags.rank >= 0, window || memory, "with analyse, kernels, flame and memory"); !ok)
    return ok;
  if (auto ok = unused("--from", !flags.from.empty(), window || memory || converts,
                       "with analyse, convert, kernels, flame and memory");
      !ok)
    return ok;
  if (auto ok = unused("--to", !flags.to.empty(), window || converts, "with analyse, convert, kernels and flame"); !ok)
    return ok;
  if (auto ok = unused("--out", !flags.out.empty(), flame, "with flame"); !ok) return ok;
  if (auto ok = unused("--by", !flags.by.empty(), flame || flags.action == "kernels", "with kernels and flame"); !ok)
    return ok;
  if (auto ok = unused("--csv", !flags.csv.empty(), table, "with kernels, memory, stragglers and query"); !ok)
    return ok;
  return unused("--against", !flags.against.empty(), flags.action == "kernels" || memory, "with kernels and memory");
}

ExitCode kernels(const TraceFlags& flags, const Console& console) {
  if (!flags.by.empty() && !kernel_key_of_name(flags.by))
    return console.error(usage_error("--by: of kernel tables", "kernel, operator, module or layer", flags.by));
  if (auto possible = try_outputs({flags.csv}); !possible) return console.error(possible.error());
  const auto options = windowed<KernelTableOptions>(
      flags, {kernel_key_of_name(flags.by).value_or(KernelKey::Kernel), std::nullopt, std::nullopt, std::nullopt});
  if (!options) return console.error(options.error());
  const auto opened = open_noted(flags.files, console);
  if (!opened) return console.error(opened.error());
  if (auto valid = check_window(opened->timeline, *options); !valid) return console.error(valid.error());
  const std::vector<KernelRow> rows = kernel_table(opened->timeline, *options);
  if (flags.against.empty()) return show(kernels_of(rows, options->by), flags, console);
  const auto other = open_noted({flags.against}, console);
  if (!other) return console.error(other.error());
  return show(differences_of(kernel_differences(rows, kernel_table(other->timeline, *options)), options->by), flags,
              console);
}

/// Folded stacks on stdout; a file by its name a picture or the same text.
ExitCode flame(const TraceFlags& flags, const Console& console) {
  if (auto possible = try_outputs({flags.out}); !possible) return console.error(possible.error());
  const auto by = flame_by_of_name(flags.by.empty() ? "stack" : flags.by);
  if (!by) return console.error(usage_error("--by: of flame graphs", "stack or module", flags.by));
  auto options = windowed<FlameOptions>(flags);
  if (!options) return console.error(options.error());
  options->by = *by;
  const auto opened = open_noted(flags.files, console);
  if (!opened) return console.error(opened.error());
  const KernelTableOptions window{KernelKey::Kernel, options->rank, options->from, options->to};
  if (auto valid = check_window(opened->timeline, window); !valid) return console.error(valid.error());
  const FlameGraph graph = flame_graph(opened->timeline, *options);
  if (graph.nodes.front().count == 0)
    return console.error(file_error(ErrorCode::BadSyntax, flags.files.front(), "no work on a device lies in the window",
                                    "none", "take a recording with CUDA activities, or a wider window"));
  const bool answered = console.json ? console.result(table_json(flame_of(graph)))
                                     : !flags.out.empty() || console.result(folded_text(graph));
  if (!answered) return ExitCode::RunFailed;
  if (flags.out.empty()) return ExitCode::Ok;
  const std::string title = fmt::format("{}, device time by {}", fmt::join(flags.files, ", "),
                                        *by == FlameBy::Stack ? "host stack" : "module");
  const bool picture = flags.out.ends_with(".svg");
  const auto written = write_whole_file(flags.out, picture ? flame_svg(graph, title) : folded_text(graph));
  if (!written) return console.error(written.error());
  console.note(fmt::format("{}: {} stacks", flags.out, graph.nodes.size() - 1));
  return ExitCode::Ok;
}

Result<LiveBlocks> blocks_in(const std::vector<std::string>& files, const BlockOptions& options,
                             const Console& console) {
  const auto opened = open_noted(files, console);
  if (!opened) return fail(opened.error());
  auto live = live_blocks(opened->timeline, options);
  if (live) return std::move(*live);
  return fail(file_error(ErrorCode::BadSyntax, files.front(), "nothing in it says which blocks were allocated",
                         "no history of allocations",
                         "torch.cuda.memory._record_memory_history() before, _dump_snapshot() after; or simulate "
                         "--snapshot"));
}

ExitCode memory(const TraceFlags& flags, const Console& console) {
  if (auto possible = try_outputs({flags.csv}); !possible) return console.error(possible.error());
  BlockOptions options;
  if (flags.rank >= 0) options.rank = flags.rank;
  if (!flags.from.empty()) {
    const auto at = time_of_text("--from", flags.from);
    if (!at) return console.error(at.error());
    options.at = *at;
  }
  const auto live = blocks_in(flags.files, options, console);
  if (!live) return console.error(live.error());
  if (flags.against.empty()) return show(blocks_of(*live), flags, console);
  const auto other = blocks_in({flags.against}, options, console);
  if (!other) return console.error(other.error());
  return show(block_differences_of(*live, *other), flags, console);
}

ExitCode stragglers(const TraceFlags& flags, const Console& console) {
  if (auto possible = try_outputs({flags.csv}); !possible) return console.error(possible.error());
  const auto opened = open_noted(flags.files, console);
  if (!opened) return console.error(opened.error());
  const std::vector<CollectiveMeeting> meetings = find_meetings(opened->timeline);
  return show(stragglers_of(straggler_table(meetings), meetings), flags, console);
}

TableCell cell_of(const QueryValue& value) {
  if (const auto* number = std::get_if<std::int64_t>(&value)) return {fmt::format("{}", *number), true, false, ""};
  if (const auto* real = std::get_if<double>(&value)) return real_cell(*real);
  if (const auto* text = std::get_if<std::string_view>(&value)) return text_cell(std::string(*text));
  return absent_cell();
}

/// The last argument is the question.
ExitCode query(const TraceFlags& flags, const Console& console) {
  if (flags.files.size() < 2)
    return console.error(
        usage_error("trace query takes files and a question", "FILE... \"select ...\"", "one argument"));
  if (auto possible = try_outputs({flags.csv}); !possible) return console.error(possible.error());
  const auto opened = open_noted({flags.files.begin(), flags.files.end() - 1}, console);
  if (!opened) return console.error(opened.error());
  TraceTable table;
  table.schema = "foreshard.query/1";
  QueryReceiver receiver;
  receiver.columns = [&](const std::vector<std::string>& columns) {
    for (const std::string& name : columns) {  // of a join: keys of an object differ
      const auto same = [&](const std::string& column) { return column == name || column.starts_with(name + "_"); };
      const auto before = std::count_if(table.columns.begin(), table.columns.end(), same);
      const bool taken = std::find(table.columns.begin(), table.columns.end(), name) != table.columns.end();
      table.columns.push_back(taken ? fmt::format("{}_{}", name, before + 1) : name);
    }
  };
  receiver.row = [&](const std::vector<QueryValue>& row) {
    std::vector<TableCell>& cells = table.rows.emplace_back();
    for (const QueryValue& value : row) cells.push_back(cell_of(value));
    return true;
  };
  const auto asked = query_timeline(opened->timeline, flags.files.back(), receiver);
  if (!asked) return console.error(asked.error());
  return show(table, flags, console);
}

}  // namespace

ExitCode run_verb(const TraceFlags& flags, const Console& console) {
  if (auto taken = check_flags(flags); !taken) return console.error(taken.error());
  if (flags.action == "convert") return convert(flags, console);
  if (flags.action == "kernels") return kernels(flags, console);
  if (flags.action == "flame") return flame(flags, console);
  if (flags.action == "memory") return memory(flags, console);
  if (flags.action == "stragglers") return stragglers(flags, console);
  if (flags.action == "query") return query(flags, console);
  return analyse(flags, console);
}

}  // namespace foreshard::cli
