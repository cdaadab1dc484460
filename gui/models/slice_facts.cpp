#include "gui/models/slice_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/plan.h"
#include "gui/models/headline.h"
#include "gui/models/slice_details.h"
#include "gui/models/timeline/amounts.h"
#include "gui/models/timeline/meaning.h"
#include "traces/analysis/comparison.h"
#include "traces/analysis/kernel_table.h"
#include "traces/analysis/range_statistics.h"
#include "traces/formats/chrome_trace.h"
#include "traces/timeline/exposed_comm.h"

namespace foreshard::gui {
namespace {

std::string lane_words(const Timeline& t, const Span& span) {
  const Lane& lane = t.lanes[span.lane.index()];
  return fmt::format("rank {}, {}", lane.rank,
                     lane.label.empty() ? std::string(spoken_stream_name(lane.stream)) : lane.label);
}

/// How long the row was idle before the slice, and what ran there before.
void add_wait(std::vector<Fact>& facts, const TimelineModel& model, std::uint32_t span) {
  const auto place = find_slice(model.lanes, model.timeline, span);
  if (!place || place->slice == 0) return;
  const SliceRow& row = model.lanes[place->lane].rows[place->row];
  const SimDuration gap = row.start[place->slice] - row.end[place->slice - 1];
  const Span& before = model.timeline.spans[row.span[place->slice - 1]];
  facts.push_back({"after", fmt::format("{}{}", slice_label(model.timeline, before),
                                        gap > 0 ? ", " + duration_words(gap) + " idle between" : ", without a gap")});
}

void add_flows(std::vector<Fact>& facts, const TimelineModel& model, const SceneSlice& slice) {
  const std::uint32_t index = slice.span;
  const Span& span = model.timeline.spans[index];
  for (const std::uint32_t partner : flow_partners(model, index)) {
    const Span& other = model.timeline.spans[partner];
    const bool issued = other.start <= span.start;
    const SimDuration lead = issued ? span.start - other.start : other.start - span.start;
    facts.push_back({issued ? "issued by" : "issues",
                     fmt::format("{} ({} {})", slice_label(model.timeline, other), duration_words(lead),
                                 issued ? "before" : "later"),
                     SceneSlice{slice.side, partner}});
    if (facts.size() > 24) return;
  }
}

void add_partner(std::vector<Fact>& facts, const Scene& scene, const SceneSlice& slice) {
  if (!scene.comparison) return;
  const auto pair = scene.comparison->pair_of(slice.side, slice.span);
  if (!pair) {
    facts.push_back({"on the other side", "nothing joins with it"});
    return;
  }
  const InstructionPair& numbers = scene.comparison->pairs[*pair].numbers;
  facts.push_back({"duration A / B",
                   fmt::format("{} / {}", duration_words(numbers.duration.a), duration_words(numbers.duration.b))});
  facts.push_back({"difference", fmt::format("{} ({})", duration_words(numbers.duration.difference()),
                                             signed_percent(numbers.duration.error()))});
  facts.push_back(
      {"start A / B", fmt::format("{} / {}", duration_words(numbers.start.a), duration_words(numbers.start.b))});
}

}  // namespace

std::vector<Fact> slice_facts(const Scene& scene, const SceneSlice& slice) {
  const SceneSide& side = scene.sides[static_cast<std::size_t>(slice.side)];
  const TimelineModel& model = *side.model;
  const Timeline& t = model.timeline;
  if (slice.span >= t.spans.size()) return {};
  const Span& span = t.spans[slice.span];
  const std::string name(t.name_of(span.name));
  const std::string folded = is_device_work(span.kind) ? folded_kernel_name(name) : name;
  std::vector<Fact> facts{{"what", folded}, {"kind", std::string(meaning_name(meaning_of(span)))}};
  if (folded != name) facts.push_back({"full name", name});
  const std::string unit = unit_label(t, span.unit);
  if (!unit.empty()) facts.push_back({"unit", unit});
  if (span.phase != 0) facts.push_back({"phase", std::string(phase_name(static_cast<Phase>(span.phase)))});
  if (span.instruction.valid()) facts.push_back({"instruction", fmt::format("{}", span.instruction.value)});
  if (span.communicator.valid()) facts.push_back({"communicator", std::string(t.name_of(span.communicator))});
  facts.push_back({"where", lane_words(t, span)});
  facts.push_back({"start", duration_words(span.start - side.origin)});
  facts.push_back({"duration", duration_words(span.duration)});
  if (span.bytes > 0) {
    facts.push_back({"bytes", bytes_words(static_cast<double>(span.bytes))});
    if (span.duration > 0)
      facts.push_back(
          {"rate", fmt::format("{:.1f} GB/s", static_cast<double>(span.bytes) / static_cast<double>(span.duration))});
  }
  if (is_collective(span.kind) && span.lane.valid()) {
    if (const RankBands* bands = model.bands_of(t.lanes[span.lane.index()].rank)) {
      const SimDuration exposed = bands->exposed.busy(span.start, span.start + std::max<SimDuration>(0, span.duration));
      facts.push_back({"exposed", duration_words(exposed)});
    }
  }
  add_wait(facts, model, slice.span);
  add_flows(facts, model, slice);
  add_origin(facts, model, slice);
  add_arguments(facts, model, slice);
  add_partner(facts, scene, slice);
  return facts;
}

std::vector<RangeRow> range_table(const Scene& scene, TimeRange range) {
  std::vector<RangeRow> table;
  for (const Track& track : scene.tracks) {
    if (track.kind != TrackKind::Lane) continue;
    const SceneSide& side = scene.sides[static_cast<std::size_t>(track.side)];
    RangeRow line;
    const Lane& lane = side.model->timeline.lanes[track.lane];
    line.lane = side.model->ranks.size() > 1 ? fmt::format("rank {}, {}", lane.rank, track.label) : track.label;
    line.side = track.side;
    for (const SliceRow& row : side.model->lanes[track.lane].rows) {
      line.busy += row.busy(range.begin + side.origin, range.end + side.origin);
      const std::size_t first = row.first_after(range.begin + side.origin);
      line.slices += std::max(first, row.first_from(range.end + side.origin)) - first;
    }
    line.share = range.length() > 0 ? static_cast<double>(line.busy) / static_cast<double>(range.length()) : 0;
    table.push_back(std::move(line));
  }
  return table;
}

namespace {

/// "compute, forward 41.0 %, all-gather 22.5 %, ...": the largest first.
std::string shares_in_words(const std::vector<TimeShare>& shares, TimeRange range) {
  std::vector<std::pair<SimDuration, std::string_view>> parts;
  SimDuration all = 0;
  for (const TimeShare& share : shares) {
    const SimDuration time = share.times.covered(range.begin, range.end);
    if (time > 0) parts.emplace_back(time, share.name);
    all += time;
  }
  std::sort(parts.begin(), parts.end(), std::greater<>());
  constexpr std::size_t kMostParts = 5;
  std::string text;
  for (std::size_t k = 0; k < std::min(kMostParts, parts.size()); ++k)
    text += fmt::format("{}{} {}", k > 0 ? ", " : "", parts[k].second,
                        percent_words(static_cast<double>(parts[k].first) / static_cast<double>(all)));
  return text;
}

/// Why no stream worked, and what decided how long it took.
void add_causes(std::vector<Fact>& facts, const RankBands& bands, TimeRange range, const std::string& whose) {
  SimDuration idle = 0;
  for (const TimeShare& share : bands.idle) idle += share.times.covered(range.begin, range.end);
  facts.push_back({whose + "idle", duration_words(idle)});
  for (const TimeShare& share : bands.idle) {
    const SimDuration time = share.times.covered(range.begin, range.end);
    if (time > 0) facts.push_back({whose + "idle, " + share.name, duration_words(time)});
  }
  if (const std::string path = shares_in_words(bands.path, range); !path.empty())
    facts.push_back({whose + "critical path", path});
}

}  // namespace

namespace {

/// A moment to a thousandth of the range around it: "112.043 ms" where "112 ms" would be both ends.
std::string moment(SimTime time, SimDuration length) {
  const double step_ms = static_cast<double>(std::max<SimDuration>(1, length)) / 1e9;
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step_ms))), 0, 6);
  return fmt::format("{:.{}f} ms", static_cast<double>(time) / 1e6, digits);
}

}  // namespace

std::vector<Fact> range_facts(const Scene& scene, TimeRange range) {
  std::vector<Fact> facts{
      {"range", fmt::format("{} .. {}", moment(range.begin, range.length()), moment(range.end, range.length()))},
      {"length", duration_words(range.length())}};
  for (std::size_t s = 0; s < scene.sides.size(); ++s) {
    const SceneSide& side = scene.sides[s];
    if (side.model->ranks.empty()) continue;
    const RangeNumbers n = range_numbers(*side.model, side.model->ranks.front().rank,
                                         {range.begin + side.origin, range.end + side.origin});
    const std::string whose = scene.compares() ? (s == 0 ? "A: " : "B: ") : "";
    facts.push_back({whose + "compute", duration_words(n.compute)});
    facts.push_back({whose + "communication", duration_words(n.comm)});
    facts.push_back({whose + "overlapped", duration_words(std::max<SimDuration>(0, n.comm - n.exposed))});
    facts.push_back({whose + "exposed", duration_words(n.exposed)});
    add_causes(facts, side.model->ranks.front(), {range.begin + side.origin, range.end + side.origin}, whose);
    if (n.peak_allocated > 0)
      facts.push_back({whose + "peak allocated", bytes_words(static_cast<double>(n.peak_allocated))});
  }
  return facts;
}

std::string as_tsv(const std::vector<Fact>& facts) {
  std::string text;
  for (const Fact& fact : facts) text += fact.name + "\t" + fact.value + "\n";
  return text;
}

}  // namespace foreshard::gui
