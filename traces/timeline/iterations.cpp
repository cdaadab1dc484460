#include "traces/timeline/iterations.h"

#include <algorithm>
#include <limits>
#include <map>

#include "core/instruction_spans.h"

namespace foreshard {
namespace {

std::vector<TimelineIteration> marked_iterations(const Timeline& timeline, std::int32_t rank) {
  std::map<std::int32_t, TimelineIteration> found;
  std::map<std::int32_t, bool> has_begin;
  for (const TimeMark& mark : timeline.marks) {
    if (mark.rank != rank) continue;
    const std::string_view name = timeline.name_of(mark.name);
    if (const auto index = read_iteration_mark(name)) {
      TimelineIteration& iteration = found[*index];
      iteration.begin = mark.time;
      if (!iteration.first.valid()) iteration.issue = mark.time;
      has_begin[*index] = true;
    } else if (const auto issue = read_issue_mark(name)) {
      found[issue->index].issue = mark.time;
      found[issue->index].first = issue->first;
    }
  }
  std::vector<TimelineIteration> iterations;
  for (auto& [index, iteration] : found) {
    if (!has_begin[index]) continue;
    iteration.index = index;
    iterations.push_back(iteration);
  }
  return iterations;
}

/// What a recording shows between the plan's spans, as calls of the driver: as many as come, and of no iteration's
/// time.
bool is_beside_plan(const Span& span) {
  return !span.instruction.valid() && (span.kind == SpanKind::Wait || span.kind == SpanKind::Annotation);
}

/// Index of the iteration that a span belongs to; -1: none.
std::ptrdiff_t place_of(const std::vector<TimelineIteration>& all, const Span& span) {
  const auto after = [&](const auto& not_yet) {
    return std::partition_point(all.begin(), all.end(), not_yet) - all.begin() - 1;
  };
  const bool by_id = span.instruction.valid() && all.front().first.valid();
  if (by_id) return after([&](const TimelineIteration& i) { return i.first <= span.instruction; });
  if (span.kind == SpanKind::HostIssue || span.kind == SpanKind::HostWait) {
    return after([&](const TimelineIteration& i) { return i.issue <= span.start; });
  }
  return after([&](const TimelineIteration& i) { return i.begin <= span.start; });
}

}  // namespace

std::vector<TimelineIteration> iterations_of(const Timeline& timeline, std::int32_t rank) {
  std::vector<TimelineIteration> iterations = marked_iterations(timeline, rank);
  const bool marked = !iterations.empty();
  if (!marked) {
    iterations.emplace_back();
    iterations.front().begin = iterations.front().issue = std::numeric_limits<SimTime>::max();
  }
  for (std::size_t s = 0; s < timeline.spans.size(); ++s) {
    const Span& span = timeline.spans[s];
    if (!span.lane.valid() || timeline.lanes[span.lane.index()].rank != rank) continue;
    const std::ptrdiff_t at = marked ? place_of(iterations, span) : 0;
    if (at < 0) continue;
    TimelineIteration& iteration = iterations[static_cast<std::size_t>(at)];
    const bool beside = iteration.first.valid() && is_beside_plan(span);
    if (!marked) iteration.begin = iteration.issue = std::min(iteration.begin, span.start);
    if (iteration.spans.empty()) iteration.end = beside ? iteration.begin : span.start + span.duration;
    if (!beside) iteration.end = std::max(iteration.end, span.start + span.duration);
    iteration.spans.push_back(SpanId(s));
  }
  std::erase_if(iterations, [](const TimelineIteration& i) { return i.spans.empty(); });
  return iterations;
}

bool is_predicted(const Timeline& timeline) { return timeline.provenance.source == "simulated"; }

std::vector<const TimelineIteration*> repeated_iterations(const Timeline& timeline,
                                                          const std::vector<TimelineIteration>& iterations) {
  if (iterations.empty()) return {};
  // Repeats have equally many spans with instructions as the last one.
  const auto size_of = [&](const TimelineIteration& i) {
    return i.spans.size() - (i.first.valid() ? static_cast<std::size_t>(std::count_if(
                                                   i.spans.begin(), i.spans.end(),
                                                   [&](SpanId s) { return is_beside_plan(timeline.spans[s.index()]); }))
                                             : 0);
  };
  const auto size = size_of(iterations.back());
  std::vector<const TimelineIteration*> repeats;
  for (auto it = iterations.rbegin(); it != iterations.rend() && size_of(*it) == size; ++it) {
    repeats.push_back(&*it);
  }
  if (repeats.size() > 2) repeats.pop_back();
  return repeats;
}

const TimelineIteration& steady_iteration(const Timeline& timeline, const std::vector<TimelineIteration>& iterations) {
  if (is_predicted(timeline) || iterations.size() < 3) return iterations.back();
  std::vector<const TimelineIteration*> repeats = repeated_iterations(timeline, iterations);
  const auto length = [](const TimelineIteration* i) { return i->end - i->begin; };
  const auto middle = repeats.begin() + static_cast<std::ptrdiff_t>((repeats.size() - 1) / 2);
  std::nth_element(repeats.begin(), middle, repeats.end(),
                   [&](const auto* a, const auto* b) { return length(a) < length(b); });
  return **middle;
}

std::vector<std::int32_t> ranks_of(const Timeline& timeline) {
  std::vector<std::int32_t> ranks;
  for (const Lane& lane : timeline.lanes) ranks.push_back(lane.rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace foreshard
