#include <fmt/format.h>

#include <charconv>
#include <filesystem>

#include "cli/reports/compare_report.h"
#include "cli/session/job_source.h"
#include "cli/session/pipeline.h"
#include "cli/verbs/verbs.h"
#include "core/input_file.h"
#include "traces/analysis/comparison.h"
#include "traces/formats/open_trace.h"

namespace foreshard::cli {
namespace {

struct LoadedSide {
  Timeline timeline;
  ComparedSide about;
};

std::string what_is(const Timeline& timeline) {
  const std::int64_t ranks = [&] {
    std::int32_t most = -1;
    std::int64_t count = 0;
    for (const Lane& lane : timeline.lanes) {
      if (lane.rank > most) ++count, most = lane.rank;
    }
    return count;
  }();
  const std::string& source = timeline.provenance.source;
  std::string what = source == "simulated"  ? "prediction"
                     : source == "executed" ? "recording"
                     : source.empty()       ? "timeline"
                                            : source + " trace";
  if (!timeline.provenance.hardware.empty()) what += " on " + timeline.provenance.hardware;
  return ranks > 1 ? fmt::format("{}, {} ranks", what, ranks) : what;
}

/// A job is simulated, with all of its plan's iterations. `waits`: for the device after each, as `run` does.
Result<Timeline> simulated_timeline(const CompareFlags& flags, const std::string& file, bool waits,
                                    const Console& console) {
  const auto loaded = load_job({file, flags.set}, console);
  if (!loaded) return fail(loaded.error());
  const auto prepared = prepare(loaded->job);
  if (!prepared) return fail(prepared.error());
  SimulateOptions options = simulate_options(loaded->job);
  options.timeline = true;
  options.synchronize_each_step = waits;
  auto prediction =
      simulate(prepared->plan, prepared->model, prepared->lowered, loaded->job, prepared->profile, options);
  if (!prediction) return fail(prediction.error());
  if (!prediction->fits || !prediction->deadlock.empty()) {
    Error error;
    error.message = prediction->fits ? "the predicted run stands still: " + prediction->deadlock
                                     : "the predicted run does not fit: there is no step to compare";
    error.file = file;
    error.expected = "a job that fits and runs";
    error.hint = "foreshard simulate says more";
    return fail(std::move(error));
  }
  prediction->timeline.provenance.plan_digest = plan_digest(prepared->plan);
  return std::move(prediction->timeline);
}

/// Jobs and models are TOML, model.json, config.json, folders and .pt2 archives; every other content is a recording.
bool is_recording(const std::string& path) {
  if (path.ends_with(".fst")) return true;
  const std::string head = beginning_of_file(path, 1 << 16);
  for (const std::string_view magic : {"\x89"
                                       "FST",
                                       "\x1f\x8b", "\x28\xb5\x2f\xfd", "\x80", "SQLite format 3"}) {
    if (head.starts_with(magic) && !path.ends_with(".toml")) return true;
  }
  const bool events = head.find("\"traceEvents\"") != std::string::npos ||
                      head.find("\"schemaVersion\"") != std::string::npos || head.find("\"ph\"") != std::string::npos;
  return events || path.ends_with(".tar") || path.ends_with(".trace.json");
}

Result<Timeline> recorded_timeline(const std::string& file, const Console& console) {
  auto opened = open_trace(file);
  if (!opened) return fail(opened.error());
  for (const TraceWarning& warning : opened->warnings)
    console.note(fmt::format("warning: {}: {}", warning.place, warning.text));
  return std::move(opened->timeline);
}

Result<LoadedSide> load_side(const CompareFlags& flags, const std::string& file, bool waits, const Console& console) {
  auto timeline =
      is_recording(file) ? recorded_timeline(file, console) : simulated_timeline(flags, file, waits, console);
  if (!timeline) return fail(timeline.error());
  LoadedSide side{std::move(*timeline), {file, "", ""}};
  side.about.what = what_is(side.timeline);
  side.about.plan_digest = side.timeline.provenance.plan_digest;
  if (side.timeline.provenance.dropped_records > 0) {
    console.note(
        fmt::format("note: {} lacks {} records that found no room", file, side.timeline.provenance.dropped_records));
  }
  return side;
}

struct LoadedSides {
  Result<LoadedSide> a, b;
};

/// Recordings first: a job is simulated as what it is compared with was run.
LoadedSides load_sides(const CompareFlags& flags, const Console& console) {
  bool waits = false;
  const auto load = [&](const std::string& file) {
    auto side = load_side(flags, file, waits, console);
    waits = waits || (side && side->timeline.provenance.source == "executed");
    return side;
  };
  if (!is_recording(flags.a) && is_recording(flags.b)) {
    auto b = load(flags.b);
    return {load(flags.a), std::move(b)};
  }
  auto a = load(flags.a);
  return {std::move(a), load(flags.b)};
}

/// "5%", "5 %" or "0.05".
Result<double> share_of(const std::string& text) {
  std::string number = text;
  const bool percent = !number.empty() && number.back() == '%';
  if (percent) number.pop_back();
  while (!number.empty() && number.back() == ' ') number.pop_back();
  double value = 0;
  const auto [end, code] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (code == std::errc() && end == number.data() + number.size() && value >= 0) return percent ? value / 100 : value;
  Error error;
  error.code = ErrorCode::Usage;
  error.place = "--fail-over";
  error.message = "the flag takes a share";
  error.expected = "5% or 0.05";
  error.got = text;
  return fail(std::move(error));
}

}  // namespace

ExitCode run_verb(const CompareFlags& flags, const Console& console) {
  std::optional<double> limit;
  if (!flags.fail_over.empty()) {
    const auto share = share_of(flags.fail_over);
    if (!share) return console.error(share.error());
    limit = *share;
  }
  const auto [a, b] = load_sides(flags, console);
  if (!a) return tell_refusal(a.error(), console);
  if (!b) return tell_refusal(b.error(), console);
  CompareOptions options;
  if (flags.iteration >= 0) options.iteration = flags.iteration;
  if (flags.rank >= 0) options.rank = flags.rank;
  for (const auto& [flag, target] : {std::pair{flags.a_rank, &options.rank_a},
                                     {flags.b_rank, &options.rank_b},
                                     {flags.a_iteration, &options.iteration_a},
                                     {flags.b_iteration, &options.iteration_b}}) {
    if (flag >= 0) *target = flag;
  }
  options.force = flags.force;
  const auto comparison = compare_timelines(a->timeline, b->timeline, options);
  if (!comparison) return console.error(comparison.error());

  for (const std::string& note : comparison->notes) console.note("warning: " + note);
  const ComparedSides sides{a->about, b->about, flags.top};
  const ReportStyle style{console.color, console.unicode, console.width};
  if (!console.result(console.json ? comparison_json(*comparison, sides)
                                   : comparison_report(*comparison, sides, style)))
    return ExitCode::RunFailed;
  if (!limit) return ExitCode::Ok;
  const double worst = worst_difference(*comparison);
  if (worst <= *limit) return ExitCode::Ok;
  console.note(fmt::format("the timelines part by {:.2f} %, more than {:.2f} %", worst * 100, *limit * 100));
  return ExitCode::RunFailed;
}

}  // namespace foreshard::cli
