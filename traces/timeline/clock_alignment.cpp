#include "traces/timeline/clock_alignment.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>

#include "traces/timeline/exposed_comm.h"
#include "traces/timeline/iterations.h"
#include "traces/timeline/merged_timeline.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostCompared = 100'000;

/// Ends of the collectives of one rank, by kind, in order of time.
std::map<SpanKind, std::vector<SimTime>> collective_ends(const Timeline& t) {
  std::map<SpanKind, std::vector<SimTime>> ends;
  for (const Span& span : t.spans) {
    if (is_collective(span.kind) && span.kind != SpanKind::SendRecv)
      ends[span.kind].push_back(span.start + span.duration);
  }
  for (auto& [kind, times] : ends) std::sort(times.begin(), times.end());
  return ends;
}

SimDuration median(std::vector<SimDuration> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

ClockShift shift_between(const OpenedTrace& first, const OpenedTrace& other) {
  ClockShift shift;
  const auto here = collective_ends(first.timeline), there = collective_ends(other.timeline);
  std::vector<SimDuration> differences;
  for (const auto& [kind, times] : here) {
    const auto partner = there.find(kind);
    // Another number of them means that one recording began later: which is which cannot be told.
    if (partner == there.end() || partner->second.size() != times.size()) continue;
    for (std::size_t i = 0; i < times.size() && differences.size() < kMostCompared; ++i)
      differences.push_back(times[i] - partner->second[i]);
  }
  if (!differences.empty()) {
    shift.by = "collectives";
    shift.collectives = static_cast<std::int64_t>(differences.size());
    shift.shift = median(differences);
    for (SimDuration& difference : differences) difference = std::abs(difference - shift.shift);
    shift.disagreement = median(differences);
  } else if (first.origin_ns && other.origin_ns) {
    shift.by = "unix time";
    shift.shift = *other.origin_ns - *first.origin_ns;
  } else {
    shift.by = "none";
  }
  return shift;
}

void move_by(Timeline& t, SimDuration shift) {
  for (Span& span : t.spans) span.start += shift;
  for (CounterSample& sample : t.samples) sample.time += shift;
  for (TimeMark& mark : t.marks) mark.time += shift;
}

SimTime first_time(const Timeline& t) {
  SimTime first = std::numeric_limits<SimTime>::max();
  for (const Span& span : t.spans) first = std::min(first, span.start);
  for (const CounterSample& sample : t.samples) first = std::min(first, sample.time);
  for (const TimeMark& mark : t.marks) first = std::min(first, mark.time);
  return first;
}

void rename_rank(Timeline& t, std::int32_t from, std::int32_t to) {
  for (Lane& lane : t.lanes) lane.rank = lane.rank == from ? to : lane.rank;
  for (Counter& counter : t.counters) counter.rank = counter.rank == from ? to : counter.rank;
  for (TimeMark& mark : t.marks) mark.rank = mark.rank == from ? to : mark.rank;
}

/// Every rank of every recording gets a number of its own; false if one was taken.
bool take_ranks(Timeline& t, std::set<std::int32_t>& taken) {
  bool kept = true;
  for (const std::int32_t rank : ranks_of(t)) {
    std::int32_t own = rank;
    while (!taken.insert(own).second) ++own;
    if (own == rank) continue;
    rename_rank(t, rank, own);
    kept = false;
  }
  return kept;
}

}  // namespace

std::vector<ClockShift> align_clocks(const std::vector<OpenedTrace>& traces) {
  std::vector<ClockShift> shifts;
  for (const OpenedTrace& trace : traces) {
    shifts.push_back(&trace == traces.data() ? ClockShift{} : shift_between(traces.front(), trace));
  }
  return shifts;
}

OpenedTrace join_ranks(std::vector<OpenedTrace> traces, const std::vector<std::string>& places) {
  const std::vector<ClockShift> shifts = align_clocks(traces);
  OpenedTrace joined;
  std::set<std::int32_t> taken;
  std::vector<Timeline> timelines;
  SimTime zero = std::numeric_limits<SimTime>::max();
  for (std::size_t i = 0; i < traces.size(); ++i) {
    OpenedTrace& trace = traces[i];
    move_by(trace.timeline, shifts[i].shift);
    zero = std::min(zero, first_time(trace.timeline));
    if (!take_ranks(trace.timeline, taken))
      trace.warnings.push_back({places[i], "another file has the same rank: this one got the next free number"});
    if (i > 0 && shifts[i].by == "none")
      trace.warnings.push_back(
          {places[i], fmt::format("its clock cannot be compared with that of {}: both begin at 0", places[0])});
    if (shifts[i].disagreement > kMillisecond)
      trace.warnings.push_back(
          {places[i],
           fmt::format("its {} collectives end up to {} us apart from those of {} after the clocks were aligned",
                       shifts[i].collectives, shifts[i].disagreement / kMicrosecond, places[0])});
    joined.warnings.insert(joined.warnings.end(), trace.warnings.begin(), trace.warnings.end());
    joined.world_size = std::max(joined.world_size, trace.world_size);
    trace.timeline.provenance.clock += shifts[i].by.empty() ? "" : fmt::format(", aligned by {}", shifts[i].by);
    timelines.push_back(std::move(trace.timeline));
  }
  if (!traces.empty()) joined.format = traces.front().format, joined.origin_ns = traces.front().origin_ns;
  joined.timeline = merge_timelines(timelines);
  std::size_t spans = 0;
  for (std::size_t i = 0; i < traces.size(); ++i) {
    const std::size_t own = timelines[i].spans.size();
    if (!traces[i].arguments.empty()) joined.arguments.append(traces[i].arguments, spans, own);
    traces[i].arguments = {};
    spans += own;
  }
  if (zero != std::numeric_limits<SimTime>::max() && zero != 0) {
    move_by(joined.timeline, -zero);
    if (joined.origin_ns) *joined.origin_ns += zero;
  }
  return joined;
}

}  // namespace foreshard
