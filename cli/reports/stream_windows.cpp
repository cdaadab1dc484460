#include "cli/reports/stream_windows.h"

#include <algorithm>
#include <vector>

#include "core/plan.h"

namespace foreshard::cli {
namespace {

constexpr std::size_t kFewestUnits = 6;  // fewer are told apart in the drawing of the whole step
constexpr std::string_view kIteration = "iteration";

/// When the compute stream of `rank` is in the backward of each unit, in order of time.
struct UnitBackward {
  std::int32_t unit = -1;
  SimTime start = 0, end = 0;
};

std::vector<UnitBackward> backward_of_units(const Timeline& t, const StreamWindow& step, std::int32_t rank) {
  std::vector<UnitBackward> units;
  for (const Span& span : t.spans) {
    if (!span.lane.valid() || t.lanes[span.lane.index()].rank != rank || t.lanes[span.lane.index()].stream != "D")
      continue;
    if (span.phase != static_cast<std::int32_t>(Phase::Backward) || span.unit < 0) continue;
    if (span.start < step.start || span.start + span.duration > step.end) continue;
    const SimTime end = span.start + span.duration;
    if (units.empty() || units.back().unit != span.unit) {
      units.push_back({span.unit, span.start, end});
    } else {
      units.back().end = std::max(units.back().end, end);
    }
  }
  return units;
}

}  // namespace

StreamWindow last_iteration(const Timeline& timeline) {
  StreamWindow window;
  for (const TimeMark& mark : timeline.marks) {
    if (timeline.name_of(mark.name).substr(0, kIteration.size()) == kIteration)
      window.start = std::max(window.start, mark.time);
  }
  for (const Span& span : timeline.spans) window.end = std::max(window.end, span.start + span.duration);
  return window;
}

std::optional<CloseUp> middle_of_backward(const Timeline& timeline, const StreamWindow& step, std::int32_t rank) {
  const auto units = backward_of_units(timeline, step, rank);
  if (units.size() < kFewestUnits) return std::nullopt;
  const std::size_t middle = units.size() / 2;
  CloseUp close_up;
  close_up.window = {units[middle - 1].start, units[middle + 1].end};
  const auto index = static_cast<std::size_t>(units[middle].unit);
  if (index < timeline.units.size()) close_up.unit = timeline.units[index];
  return close_up;
}

}  // namespace foreshard::cli
