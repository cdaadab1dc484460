#include "cli/reports/trace_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "cli/console/amount_text.h"
#include "cli/console/json_text.h"
#include "cli/console/text_lines.h"
#include "core/plan.h"

namespace foreshard::cli {
namespace {

std::string_view phase_text(std::int32_t phase) {
  return phase > 0 && phase <= static_cast<int>(Phase::Load) ? phase_name(static_cast<Phase>(phase)) : "";
}

class TraceText : private TextLines {
 public:
  TraceText(const OpenedTrace& trace, const AnalysedFiles& about, const ReportStyle& style)
      : t_(trace.timeline), about_(about), style_(style) {}

  std::string take(const OpenedTrace& trace, const std::vector<RankAnalysis>& ranks) {
    for (const std::string& file : about_.files) line("{}", file);
    const std::string& hardware = t_.provenance.hardware;
    line("  {} recording of {}{}, {} slices", trace.format, counted(static_cast<std::int64_t>(ranks.size()), "rank"),
         hardware.empty() ? "" : " on " + hardware, grouped_text(static_cast<std::int64_t>(t_.spans.size())));
    for (const RankAnalysis& rank : ranks) one_rank(rank);
    return std::move(out_);
  }

 private:
  void title(const std::string& text) { line("\n{}", style_.color ? "\x1b[1m" + text + "\x1b[0m" : text); }
  std::size_t shown(std::size_t rows) const {
    return about_.top > 0 ? std::min(rows, static_cast<std::size_t>(about_.top)) : rows;
  }
  void rest(std::size_t rows) {
    if (shown(rows) < rows) line("  ... {} more (--top 0 shows all)", rows - shown(rows));
  }

  void one_rank(const RankAnalysis& rank) {
    title(fmt::format("Rank {}", rank.rank));
    if (rank.length() == 0) {
      line("  nothing ran on a device");
      memory(rank);
      return;
    }
    const auto row = [&](const char* label, SimDuration time, std::string_view what = {}) {
      line("  {:<26}{:>12}{:>9}  {}", label, duration_text(time),
           percent_text(static_cast<double>(time) / static_cast<double>(rank.length())), what);
    };
    row("first to last work", rank.length());
    row("busy", rank.busy);
    row("  compute", rank.compute);
    row("  communication", rank.comm);
    row("    under compute", rank.overlap,
        rank.comm > 0 ? fmt::format("{} of communication",
                                    percent_text(static_cast<double>(rank.overlap) / static_cast<double>(rank.comm)))
                      : "");
    row("    exposed", rank.exposed());
    row("idle", rank.idle.total());
    row("  waiting for the host", rank.idle.host, "the next work was not launched yet");
    if (rank.limiter > 0) row("    held by the limiter", rank.limiter, "FSDP1's limit on all-gathers");
    row("  between kernels", rank.idle.kernel);
    row("  other", rank.idle.other, "launched, and held back: by another stream, an event, the device");
    streams(rank);
    collectives(rank);
    units(rank);
    memory(rank);
    path(rank);
  }

  void streams(const RankAnalysis& rank) {
    title(fmt::format("  {:<22}{:>8}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}", "Streams", "spans", "busy", "compute",
                      "comm", "idle: host", "kernel", "other"));
    for (const StreamAnalysis& stream : rank.streams) {
      const Lane& lane = t_.lanes[stream.lane.index()];
      line("  {:<22}{:>8}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}",
           lane.label.empty() || lane.label == lane.stream ? lane.stream
                                                           : fmt::format("{} ({})", lane.stream, lane.label),
           grouped_text(stream.spans), duration_text(stream.busy), duration_text(stream.compute),
           duration_text(stream.comm), duration_text(stream.idle.host), duration_text(stream.idle.kernel),
           duration_text(stream.idle.other));
    }
  }

  void collectives(const RankAnalysis& rank) {
    if (rank.collectives.empty()) return;
    title(fmt::format("  {:<22}{:>8}{:>11}{:>11}{:>13}", "Collectives", "count", "busy", "exposed", "bytes"));
    for (const CollectiveTime& c : rank.collectives) {
      line("  {:<22}{:>8}{:>11}{:>11}{:>13}", span_kind_name(c.kind), grouped_text(c.count), duration_text(c.busy),
           duration_text(c.exposed), c.bytes > 0 ? bytes_text(c.bytes) : "");
    }
  }

  void units(const RankAnalysis& rank) {
    if (rank.units.empty()) return;
    title(fmt::format("  {:<42}{:>11}{:>11}{:>11}", "Units", "compute", "comm", "copies"));
    for (std::size_t i = 0; i < shown(rank.units.size()); ++i) {
      const UnitTime& u = rank.units[i];
      line("  {:<42}{:>11}{:>11}{:>11}",
           fmt::format("{} {}", u.unit.empty() ? "(no unit)" : u.unit, phase_text(u.phase)), duration_text(u.compute),
           duration_text(u.comm), duration_text(u.copies));
    }
    rest(rank.units.size());
  }

  void memory(const RankAnalysis& rank) {
    if (rank.memory.empty()) return;
    title(fmt::format("  {:<22}{:>12}{:>12}{:>12}", "Memory", "peak", "at", "at the end"));
    for (const MemoryPeak& m : rank.memory) {
      const bool bytes = m.unit == "bytes";
      line("  {:<22}{:>12}{:>12}{:>12}  {}", m.counter, bytes ? bytes_text(m.peak) : grouped_text(m.peak),
           duration_text(m.time), bytes ? bytes_text(m.at_end) : grouped_text(m.at_end), m.during.substr(0, 40));
    }
  }

  void path(const RankAnalysis& rank) {
    if (rank.critical_path.empty()) return;
    std::map<std::string, std::pair<SimDuration, std::int64_t>> sums;
    SimDuration all = 0;
    for (const PathStep& step : rank.critical_path) {
      const bool work = step.cause == PathCause::Work;
      auto& sum =
          sums[std::string(work ? span_kind_name(t_.spans[step.span.index()].kind) : path_cause_name(step.cause))];
      sum.first += step.end - step.begin;
      ++sum.second;
      all += step.end - step.begin;
    }
    std::vector<std::pair<std::string, std::pair<SimDuration, std::int64_t>>> rows(sums.begin(), sums.end());
    std::stable_sort(rows.begin(), rows.end(),
                     [](const auto& a, const auto& b) { return a.second.first > b.second.first; });
    title(fmt::format("  {:<22}{:>12}{:>9}{:>9}", "Critical path", "time", "share", "steps"));
    for (const auto& [what, sum] : rows) {
      line("  {:<22}{:>12}{:>9}{:>9}", what, duration_text(sum.first),
           percent_text(static_cast<double>(sum.first) / static_cast<double>(std::max<SimDuration>(1, all))),
           grouped_text(sum.second));
    }
  }

  const Timeline& t_;
  const AnalysedFiles& about_;
  ReportStyle style_;
};

class Json {
 public:
  explicit Json(const Timeline& timeline) : t_(timeline) {}

  std::string take(const OpenedTrace& trace, const std::vector<RankAnalysis>& ranks, const AnalysedFiles& about) {
    json_.begin_object().field("schema", "foreshard.analysis/1").field("format", trace.format);
    json_.key("files").begin_array();
    for (const std::string& file : about.files) json_.value(file);
    json_.end_array().field("hardware", t_.provenance.hardware).field("world_size", trace.world_size);
    json_.key("warnings").begin_array();
    for (const TraceWarning& warning : trace.warnings)
      json_.begin_object().field("place", warning.place).field("text", warning.text).end_object();
    json_.end_array().key("ranks").begin_array();
    for (const RankAnalysis& rank : ranks) one_rank(rank);
    json_.end_array().end_object();
    return json_.take();
  }

 private:
  void idle(const IdleTime& time) {
    json_.key("idle").begin_object().field("host_ns", time.host).field("kernel_ns", time.kernel);
    json_.field("other_ns", time.other).end_object();
  }

  void one_rank(const RankAnalysis& rank) {
    json_.begin_object().field("rank", rank.rank).field("begin_ns", rank.begin).field("length_ns", rank.length());
    json_.field("busy_ns", rank.busy).field("compute_ns", rank.compute).field("comm_ns", rank.comm);
    json_.field("overlap_ns", rank.overlap).field("exposed_comm_ns", rank.exposed());
    json_.field("idle_ns", rank.idle.total());
    idle(rank.idle);
    json_.field("limiter_ns", rank.limiter);
    json_.key("streams").begin_array();
    for (const StreamAnalysis& s : rank.streams) {
      const Lane& lane = t_.lanes[s.lane.index()];
      json_.begin_object().field("stream", lane.stream).field("label", lane.label).field("spans", s.spans);
      json_.field("busy_ns", s.busy).field("compute_ns", s.compute).field("comm_ns", s.comm);
      json_.field("copies_ns", s.copies);
      idle(s.idle);
      json_.end_object();
    }
    json_.end_array().key("collectives").begin_array();
    for (const CollectiveTime& c : rank.collectives) {
      json_.begin_object().field("kind", span_kind_name(c.kind)).field("count", c.count).field("busy_ns", c.busy);
      json_.field("exposed_ns", c.exposed).field("bytes", c.bytes).end_object();
    }
    json_.end_array().key("units").begin_array();
    for (const UnitTime& u : rank.units) {
      json_.begin_object().field("unit", u.unit).field("phase", phase_text(u.phase)).field("spans", u.spans);
      json_.field("compute_ns", u.compute).field("comm_ns", u.comm).field("copies_ns", u.copies);
      json_.field("comm_bytes", u.comm_bytes).end_object();
    }
    json_.end_array().key("memory").begin_array();
    for (const MemoryPeak& m : rank.memory) {
      json_.begin_object().field("counter", m.counter).field("unit", m.unit).field("peak", m.peak);
      json_.field("at_ns", m.time).field("at_end", m.at_end).field("during", m.during).end_object();
    }
    json_.end_array().key("critical_path").begin_array();
    for (const PathStretch& p : path_stretches(t_, rank.critical_path)) {
      json_.begin_object().field("cause", path_cause_name(p.cause)).field("stream", p.stream);
      if (p.cause == PathCause::Work) json_.field("kind", span_kind_name(p.kind));
      json_.field("name", p.name).field("begin_ns", p.begin).field("duration_ns", p.end - p.begin);
      json_.field("steps", p.steps).end_object();
    }
    json_.end_array().end_object();
  }

  const Timeline& t_;
  JsonText json_{3};
};

}  // namespace

std::string analysis_report(const OpenedTrace& trace, const std::vector<RankAnalysis>& ranks,
                            const AnalysedFiles& about, const ReportStyle& style) {
  return TraceText(trace, about, style).take(trace, ranks);
}

std::string analysis_json(const OpenedTrace& trace, const std::vector<RankAnalysis>& ranks,
                          const AnalysedFiles& about) {
  return Json(trace.timeline).take(trace, ranks, about);
}

std::vector<PathStretch> path_stretches(const Timeline& timeline, const std::vector<PathStep>& path) {
  std::vector<PathStretch> stretches;
  SimDuration longest = 0;
  for (const PathStep& step : path) {
    const Span& span = timeline.spans[step.span.index()];
    const std::string& stream = timeline.lanes[span.lane.index()].stream;
    const bool work = step.cause == PathCause::Work;
    const bool alike = !stretches.empty() && stretches.back().cause == step.cause &&
                       stretches.back().stream == stream && (!work || stretches.back().kind == span.kind);
    if (!alike) {
      stretches.push_back({step.cause, stream, "", span.kind, step.begin, step.end, 0});
      longest = -1;
    }
    PathStretch& last = stretches.back();
    last.end = step.end;
    ++last.steps;
    if (step.end - step.begin > longest) {
      longest = step.end - step.begin;
      last.name = timeline.name_of(span.name);
    }
  }
  return stretches;
}

Result<SimTime> time_of_text(const std::string& flag, const std::string& text) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(end, text.data() + text.size());
  unit.erase(std::remove(unit.begin(), unit.end(), ' '), unit.end());
  const std::map<std::string, double> units{{"", 1}, {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
  const auto factor = units.find(unit);
  if (code == std::errc() && factor != units.end() && value >= 0 && value * factor->second < 4e18)
    return static_cast<SimTime>(value * factor->second + 0.5);
  Error error;
  error.code = ErrorCode::Usage;
  error.place = flag;
  error.message = "the flag takes a time";
  error.expected = "12ms, 1.5s, 300us or nanoseconds";
  error.got = text;
  return fail(std::move(error));
}

}  // namespace foreshard::cli
