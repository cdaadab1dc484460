#include "traces/formats/timeline_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>
#include <vector>

#include "core/plan.h"
#include "traces/formats/chrome_trace.h"
#include "traces/timeline/phase_group.h"

namespace foreshard {
namespace {

constexpr int kNameWidth = 17;  // the longest spoken stream name and a space
constexpr std::array<std::string_view, 9> kBlocks{" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array<std::string_view, 9> kAscii{" ", ".", ".", ":", ":", "=", "=", "#", "#"};

struct Interval {
  SimTime start, end;
};

bool is_communication(SpanKind kind) {
  return kind == SpanKind::AllGather || kind == SpanKind::ReduceScatter || kind == SpanKind::AllReduce ||
         kind == SpanKind::Broadcast || kind == SpanKind::SendRecv;
}

bool is_idle(SpanKind kind) {
  return kind == SpanKind::HostWait || kind == SpanKind::Wait || kind == SpanKind::Annotation;
}

/// Busy time per column of the window.
class TextColumns {
 public:
  TextColumns(SimTime start, SimTime end, int width)
      : start_(start), end_(end), busy_(static_cast<std::size_t>(width), 0.0) {}

  void add(SimTime from, SimTime to) {
    from = std::max(from, start_);
    to = std::min(to, end_);
    if (to <= from) return;
    const double step = column_time();
    auto column = static_cast<std::size_t>(static_cast<double>(from - start_) / step);
    for (double left = static_cast<double>(from - start_); column < busy_.size(); ++column) {
      const double right = std::min(static_cast<double>(to - start_), static_cast<double>(column + 1) * step);
      if (right <= left) break;
      busy_[column] += right - left;
      left = right;
    }
  }
  double column_time() const { return static_cast<double>(end_ - start_) / static_cast<double>(busy_.size()); }
  double share(std::size_t column) const { return std::min(1.0, busy_[column] / column_time()); }
  double total() const {
    double sum = 0;
    for (const double busy : busy_) sum += busy;
    return sum;
  }

 private:
  SimTime start_, end_;
  std::vector<double> busy_;
};

/// Sorted, without overlaps.
std::vector<Interval> merged(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) { return a.start < b.start; });
  std::vector<Interval> out;
  for (const Interval& interval : intervals) {
    if (!out.empty() && interval.start <= out.back().end) {
      out.back().end = std::max(out.back().end, interval.end);
    } else {
      out.push_back(interval);
    }
  }
  return out;
}

/// What of `a` no interval of `b` covers; both merged.
std::vector<Interval> without(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::vector<Interval> out;
  std::size_t j = 0;
  for (const Interval& interval : a) {
    SimTime at = interval.start;
    while (j < b.size() && b[j].end <= at) ++j;
    for (std::size_t k = j; k < b.size() && b[k].start < interval.end; ++k) {
      if (b[k].start > at) out.push_back({at, b[k].start});
      at = std::max(at, b[k].end);
    }
    if (at < interval.end) out.push_back({at, interval.end});
  }
  return out;
}

class Drawing {
 public:
  Drawing(const Timeline& timeline, const TimelineTextOptions& options) : t_(timeline), o_(options) {
    o_.width = std::clamp(o_.width, 20, 400);
    if (o_.end <= o_.start) fit_window();
  }

  std::string draw() {
    if (o_.end <= o_.start) return {};
    std::map<std::pair<int, std::string>, std::size_t> rows;  // row on the screen -> lane
    for (std::size_t lane = 0; lane < t_.lanes.size(); ++lane) {
      if (t_.lanes[lane].rank == o_.rank) rows[{stream_row(t_.lanes[lane].stream), t_.lanes[lane].stream}] = lane;
    }
    std::string out = phase_row();
    for (const auto& [row, lane] : rows) out += lane_row(lane);
    return out + exposed_row() + axis();
  }

 private:
  void fit_window() {
    bool first = true;
    for (const Span& span : t_.spans) {
      if (!mine(span)) continue;
      o_.start = first ? span.start : std::min(o_.start, span.start);
      o_.end = first ? span.start + span.duration : std::max(o_.end, span.start + span.duration);
      first = false;
    }
  }

  bool mine(const Span& span) const { return span.lane.valid() && t_.lanes[span.lane.index()].rank == o_.rank; }
  std::string_view stream_of(const Span& span) const { return t_.lanes[span.lane.index()].stream; }
  TextColumns columns() const { return TextColumns(o_.start, o_.end, o_.width); }

  std::string_view glyph(double share) const {
    const auto level = share <= 0.0 ? 0 : std::clamp(static_cast<int>(std::lround(share * 8)), 1, 8);
    return (o_.unicode ? kBlocks : kAscii)[static_cast<std::size_t>(level)];
  }

  static std::string row(std::string_view name, std::string content) {
    const auto end = content.find_last_not_of(' ');
    content.resize(end == std::string::npos ? 0 : end + 1);
    return fmt::format("{:<{}}{}\n", name, kNameWidth, content);
  }

  // Which pass the compute stream is in; a name where there is room for it.
  std::string phase_row() const {
    std::map<std::string_view, TextColumns> by_phase;
    for (const Span& span : t_.spans) {
      if (!mine(span) || stream_of(span) != "D" || phase_group(span.phase).empty()) continue;
      by_phase.try_emplace(phase_group(span.phase), columns())
          .first->second.add(span.start, span.start + span.duration);
    }
    if (by_phase.empty()) return {};
    std::vector<std::string_view> phases;
    for (std::size_t column = 0; column < static_cast<std::size_t>(o_.width); ++column) {
      std::string_view best = phases.empty() ? "" : phases.back();  // a gap belongs to the phase before it
      double most = 0.0;
      for (const auto& [phase, busy] : by_phase) {
        if (busy.share(column) > most) most = busy.share(column), best = phase;
      }
      phases.push_back(best);
    }
    std::string text;
    for (std::size_t begin = 0; begin < phases.size();) {
      std::size_t end = begin;
      while (end < phases.size() && phases[end] == phases[begin]) ++end;
      const std::size_t room = end - begin - 1;
      text += phases[begin].empty() ? " " : (o_.unicode ? "│" : "|");
      text += fmt::format("{:<{}}", phases[begin].substr(0, room >= 3 ? room : 0), room);
      begin = end;
    }
    return row("", text);
  }

  std::string lane_row(std::size_t lane) const {
    TextColumns busy = columns(), waiting = columns();
    for (const Span& span : t_.spans) {
      if (span.lane.index() != lane || !span.lane.valid()) continue;
      (is_idle(span.kind) ? waiting : busy).add(span.start, span.start + span.duration);
    }
    if (busy.total() + waiting.total() <= 0.0) return {};
    std::string text;
    for (std::size_t column = 0; column < static_cast<std::size_t>(o_.width); ++column) {
      const bool waits = waiting.share(column) > busy.share(column);
      text += waits ? (o_.unicode ? "░" : "~") : glyph(busy.share(column));
    }
    return row(spoken_stream_name(t_.lanes[lane].stream), text);
  }

  // Communication that nothing hides: some collective runs and the compute stream does not.
  std::string exposed_row() const {
    std::vector<Interval> compute, communication;
    for (const Span& span : t_.spans) {
      if (!mine(span) || span.duration <= 0) continue;
      if (is_communication(span.kind)) {
        communication.push_back({span.start, span.start + span.duration});
      } else if (stream_of(span) == "D" && !is_idle(span.kind)) {
        compute.push_back({span.start, span.start + span.duration});
      }
    }
    if (communication.empty() || compute.empty()) return {};
    TextColumns exposed = columns();
    for (const Interval& interval : without(merged(std::move(communication)), merged(std::move(compute)))) {
      exposed.add(interval.start, interval.end);
    }
    if (exposed.total() <= 0.0) return {};
    std::string text;
    for (std::size_t column = 0; column < static_cast<std::size_t>(o_.width); ++column)
      text += glyph(exposed.share(column));
    return row("exposed comm", text);
  }

  std::string axis() const {
    struct Unit {
      const char* name;
      double ns;
    };
    constexpr std::array<Unit, 4> kUnits{{{"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}}};
    const auto window = static_cast<double>(o_.end - o_.start);
    const Unit unit =
        *std::find_if(kUnits.begin(), kUnits.end() - 1, [&](const Unit& u) { return window >= 2 * u.ns; });
    const double rough = window / unit.ns / 6;
    const double power = std::pow(10.0, std::floor(std::log10(rough)));
    const double step = power * (rough / power < 2 ? 2 : rough / power < 5 ? 5 : 10);
    std::string text;
    for (double at = 0; at * unit.ns <= window; at += step) {
      const auto column = static_cast<std::size_t>(at * unit.ns / window * o_.width);
      const std::string label = at == 0 ? fmt::format("0 {}", unit.name) : fmt::format("{:g}", at);
      if (column < text.size() || column + label.size() > static_cast<std::size_t>(o_.width)) continue;
      text.resize(column, ' ');
      text += label + ' ';
    }
    return row("", text);
  }

  const Timeline& t_;
  TimelineTextOptions o_;
};

}  // namespace

std::string draw_timeline(const Timeline& timeline, const TimelineTextOptions& options) {
  return Drawing(timeline, options).draw();
}

}  // namespace foreshard
