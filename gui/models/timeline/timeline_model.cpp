#include "gui/models/timeline/timeline_model.h"

#include <fmt/format.h>

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>

#include "gui/models/timeline/meaning.h"
#include "traces/analysis/analysis.h"
#include "traces/analysis/critical_path.h"
#include "traces/timeline/exposed_comm.h"
#include "traces/timeline/iterations.h"
#include "traces/timeline/phase_group.h"

namespace foreshard::gui {
namespace {

// Bands of more ranks than anybody looks at together would cost a pass over all spans each.
constexpr std::size_t kMostBands = 64;

/// As predictions and `compare` count: a plan computes on "D", and what reduces on a stream of communication is a part
/// of communicating. Of recordings of others every stream with kernels that compute does.
bool computes(const Timeline& timeline, const Lane& lane, const LaneRows& rows) {
  if (lane.stream == "D") return true;
  const std::string& source = timeline.provenance.source;
  if (lane.stream.starts_with("host") || source == "simulated" || source == "executed") return false;
  for (const SliceRow& row : rows.rows)
    for (std::size_t k = 0; k < std::min<std::size_t>(row.size(), 64); ++k)
      if (timeline.spans[row.span[k]].kind == SpanKind::Compute) return true;
  return false;
}

/// When any compute stream of the rank is busy: sorted, merged.
std::vector<Interval> compute_times(const TimelineModel& model, std::int32_t rank) {
  std::vector<Interval> all;
  for (std::size_t lane = 0; lane < model.lanes.size(); ++lane) {
    const Lane& about = model.timeline.lanes[lane];
    if (about.rank != rank || !computes(model.timeline, about, model.lanes[lane])) continue;
    for (const SliceRow& row : model.lanes[lane].rows)
      for (std::size_t k = 0; k < row.size(); ++k)
        if (!is_collective(model.timeline.spans[row.span[k]].kind)) all.push_back({row.start[k], row.end[k]});
  }
  return merge_intervals(std::move(all));
}

using Collectives = std::vector<std::pair<TimeRange, std::uint32_t>>;

Collectives collectives_of(const TimelineModel& model, std::int32_t rank) {
  Collectives collectives;
  for (std::size_t lane = 0; lane < model.lanes.size(); ++lane) {
    if (model.timeline.lanes[lane].rank != rank) continue;
    for (const SliceRow& row : model.lanes[lane].rows)
      for (std::size_t k = 0; k < row.size(); ++k)
        if (is_collective(model.timeline.spans[row.span[k]].kind))
          collectives.push_back({{row.start[k], row.end[k]}, row.span[k]});
  }
  std::sort(collectives.begin(), collectives.end(),
            [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
  return collectives;
}

/// The pieces of collectives that no compute covers, each instant once.
SliceRow exposed_row(const std::vector<Interval>& compute, const Collectives& collectives) {
  SliceRow row;
  SimTime told = std::numeric_limits<SimTime>::min();
  const auto add = [&](SimTime begin, SimTime end, std::uint32_t span) {
    begin = std::max(begin, told);
    if (begin >= end) return;
    row.start.push_back(begin);
    row.end.push_back(end);
    row.span.push_back(span);
    told = end;
  };
  std::size_t c = 0;
  for (const auto& [range, span] : collectives) {
    while (c < compute.size() && compute[c].end <= range.begin) ++c;
    SimTime at = range.begin;
    for (std::size_t k = c; k < compute.size() && compute[k].begin < range.end; ++k) {
      if (compute[k].begin > at) add(at, compute[k].begin, span);
      at = std::max(at, compute[k].end);
    }
    if (at < range.end) add(at, range.end, span);
  }
  row.index();
  return row;
}

std::vector<NamedRange> phases_of(const TimelineModel& model, std::int32_t rank) {
  std::vector<const Span*> spans;
  for (std::size_t lane = 0; lane < model.lanes.size(); ++lane) {
    const Lane& about = model.timeline.lanes[lane];
    if (about.rank != rank || !computes(model.timeline, about, model.lanes[lane])) continue;
    for (const std::uint32_t span : model.lanes[lane].rows.front().span) spans.push_back(&model.timeline.spans[span]);
  }
  std::stable_sort(spans.begin(), spans.end(), [](const Span* a, const Span* b) { return a->start < b->start; });
  std::vector<NamedRange> phases;
  for (const Span* span : spans) {
    const std::string_view group = phase_group(span->phase);
    if (group.empty() || is_collective(span->kind)) continue;
    const SimTime end = span->start + std::max<SimDuration>(0, span->duration);
    if (!phases.empty() && phases.back().name == group)
      phases.back().time.end = std::max(phases.back().time.end, end);
    else
      phases.push_back({std::string(group), {span->start, end}});
  }
  return phases;
}

/// From the host's time of issue to the time when the compute stream has come as far: flows are the fixed points.
class WorkTimes {
 public:
  explicit WorkTimes(const Timeline& timeline) {
    for (const Flow& flow : timeline.flows) {
      const auto known = [&](SpanId id) { return id.valid() && id.index() < timeline.spans.size(); };
      if (!known(flow.from) || !known(flow.to)) continue;
      const Span &from = timeline.spans[flow.from.index()], &to = timeline.spans[flow.to.index()];
      const auto lane_known = [&](LaneId id) { return id.valid() && id.index() < timeline.lanes.size(); };
      if (!lane_known(to.lane) || timeline.lanes[to.lane.index()].stream != "D" || to.start < from.start) continue;
      ranks_[timeline.lanes[to.lane.index()].rank].emplace_back(from.start, to.start);
    }
    for (auto& [rank, points] : ranks_) {
      std::sort(points.begin(), points.end());
      for (std::size_t k = 1; k < points.size(); ++k)
        points[k].second = std::max(points[k].second, points[k - 1].second);
    }
  }

  SimTime operator()(std::int32_t rank, SimTime time) const {
    const auto found = ranks_.find(rank);
    if (found == ranks_.end()) return time;
    const auto& points = found->second;
    const auto next =
        std::upper_bound(points.begin(), points.end(), std::pair{time, std::numeric_limits<SimTime>::max()});
    if (next == points.begin()) return std::min(time, points.front().second);
    const auto before = std::prev(next);
    if (next == points.end()) return std::max(time, before->second);
    const double share = static_cast<double>(time - before->first) /
                         static_cast<double>(std::max<SimTime>(1, next->first - before->first));
    return before->second + static_cast<SimTime>(share * static_cast<double>(next->second - before->second));
  }

 private:
  std::map<std::int32_t, std::vector<std::pair<SimTime, SimTime>>> ranks_;
};

std::vector<TimeShare> idle_shares(const std::vector<IdleGap>& gaps) {
  constexpr std::array<std::pair<IdleCause, const char*>, 4> kCauses{{{IdleCause::Host, "waiting for the host"},
                                                                      {IdleCause::Limiter, "held by the limiter"},
                                                                      {IdleCause::Kernel, "between kernels"},
                                                                      {IdleCause::Other, "launched, held back"}}};
  std::vector<TimeShare> shares;
  for (const auto& [cause, name] : kCauses) {
    std::vector<Interval> times;
    for (const IdleGap& gap : gaps)
      if (gap.cause == cause) times.push_back(gap.time);
    if (!times.empty()) shares.push_back({name, IntervalIndex(std::move(times))});
  }
  return shares;
}

/// Work by its kind; the rest by what held it up.
std::vector<TimeShare> path_shares(const TimelineModel& model, std::int32_t rank) {
  std::map<std::string, std::vector<Interval>> times;
  for (const PathStep& step : find_critical_path(model.timeline, rank, model.extent.begin, model.extent.end)) {
    const bool work = step.cause == PathCause::Work;
    const Span& span = model.timeline.spans[step.span.index()];
    times[std::string(work ? meaning_name(meaning_of(span)) : path_cause_name(step.cause))].push_back(
        {step.begin, step.end});
  }
  std::vector<TimeShare> shares;
  for (auto& [name, list] : times) shares.push_back({name, IntervalIndex(merge_intervals(std::move(list)))});
  return shares;
}

RankBands bands_for(const TimelineModel& model, std::int32_t rank) {
  RankBands bands;
  bands.rank = rank;
  for (const TimelineIteration& iteration : iterations_of(model.timeline, rank))
    bands.iterations.push_back({fmt::format("iteration {}", iteration.index), {iteration.begin, iteration.end}});
  bands.phases = phases_of(model, rank);
  std::vector<Interval> compute = compute_times(model, rank), comm;
  const Collectives collectives = collectives_of(model, rank);
  bands.exposed = exposed_row(compute, collectives);
  for (const auto& [time, span] : collectives) comm.push_back({time.begin, time.end});
  bands.compute = IntervalIndex(std::move(compute));
  bands.comm = IntervalIndex(merge_intervals(std::move(comm)));
  return bands;
}

}  // namespace

const RankBands* TimelineModel::bands_of(std::int32_t rank) const {
  for (const RankBands& bands : ranks)
    if (bands.rank == rank) return &bands;
  return nullptr;
}

const MemoryTracks* TimelineModel::memory_of(std::int32_t rank) const {
  for (const MemoryTracks& tracks : memory)
    if (tracks.rank == rank) return &tracks;
  return nullptr;
}

namespace {

/// A mangled name as it is written in C++; others as they are.
std::string demangled(std::string_view name) {
  if (!name.starts_with("_Z")) return std::string(name);
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(std::string(name).c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 && text ? std::string(text.get()) : std::string(name);
}

}  // namespace

const SliceOrigins& TimelineModel::origins() const {
  std::call_once(origins_asked_, [this] { origins_ = std::make_unique<const SliceOrigins>(timeline); });
  return *origins_;
}

std::shared_ptr<const TimelineModel> make_timeline_model(Timeline timeline, std::string name,
                                                         SliceArguments arguments) {
  auto model = std::make_shared<TimelineModel>();
  model->timeline = std::move(timeline);
  model->arguments = std::move(arguments);
  for (std::string& known : model->timeline.names)
    if (known.starts_with("_Z")) known = demangled(known);
  model->name = std::move(name);
  model->lanes = layout_lanes(model->timeline);
  model->memory = memory_tracks(model->timeline, WorkTimes(model->timeline));
  model->extent = extent_of(model->lanes);
  for (const std::int32_t rank : ranks_of(model->timeline)) {
    model->ranks.push_back(model->ranks.size() < kMostBands ? bands_for(*model, rank) : RankBands{});
    model->ranks.back().rank = rank;
  }
  auto idle = find_idle_gaps(model->timeline);
  for (RankBands& bands : model->ranks) bands.idle = idle_shares(idle[bands.rank]);
  if (!model->ranks.empty()) model->ranks.front().path = path_shares(*model, model->ranks.front().rank);
  const auto& flows = model->timeline.flows;
  model->flows_from.resize(flows.size());
  std::iota(model->flows_from.begin(), model->flows_from.end(), 0U);
  model->flows_to = model->flows_from;
  std::stable_sort(model->flows_from.begin(), model->flows_from.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return flows[a].from < flows[b].from; });
  std::stable_sort(model->flows_to.begin(), model->flows_to.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return flows[a].to < flows[b].to; });
  return model;
}

TimeRange steady_range(const TimelineModel& model) {
  if (model.ranks.empty()) return model.extent;
  const auto iterations = iterations_of(model.timeline, model.ranks.front().rank);
  if (iterations.empty()) return model.extent;
  const TimelineIteration& steady = steady_iteration(model.timeline, iterations);
  return {steady.begin, std::max(steady.end, steady.begin + 1)};
}

std::string describe_source(const TimelineModel& model) {
  const Provenance& p = model.timeline.provenance;
  std::string text = p.source == "simulated"  ? "predicted"
                     : p.source == "executed" ? "recorded"
                     : p.source.empty()       ? "timeline"
                                              : p.source + " trace";
  if (!p.hardware.empty()) text += " on " + p.hardware;
  if (model.ranks.size() > 1) text += fmt::format(", {} ranks", model.ranks.size());
  return text;
}

std::string unit_label(const Timeline& timeline, std::int32_t unit) {
  if (unit < 0 || static_cast<std::size_t>(unit) >= timeline.units.size()) return {};
  const std::string& name = timeline.units[static_cast<std::size_t>(unit)];
  return name.empty() ? "root" : name;
}

std::string slice_label(const Timeline& timeline, const Span& span) {
  std::string_view name = timeline.name_of(span.name);
  if (name.starts_with("aten.")) name.remove_prefix(5);
  if (name.starts_with("void ")) name.remove_prefix(5);
  if (name.ends_with(".default")) name.remove_suffix(8);
  const std::string unit = unit_label(timeline, span.unit);
  if (unit.empty() || name.find(unit) != std::string_view::npos) return std::string(name);
  if (name.empty()) return unit;  // work that is called by its unit, of the root
  return fmt::format("{} · {}", name, unit);
}

std::vector<std::uint32_t> flow_partners(const TimelineModel& model, std::uint32_t span) {
  const auto& flows = model.timeline.flows;
  const SpanId id(static_cast<std::size_t>(span));
  std::vector<std::uint32_t> partners;
  const auto known = [&](SpanId partner) { return partner.valid() && partner.index() < model.timeline.spans.size(); };
  auto at = std::lower_bound(model.flows_from.begin(), model.flows_from.end(), id,
                             [&](std::uint32_t flow, SpanId wanted) { return flows[flow].from < wanted; });
  for (; at != model.flows_from.end() && flows[*at].from == id; ++at)
    if (known(flows[*at].to)) partners.push_back(static_cast<std::uint32_t>(flows[*at].to.index()));
  at = std::lower_bound(model.flows_to.begin(), model.flows_to.end(), id,
                        [&](std::uint32_t flow, SpanId wanted) { return flows[flow].to < wanted; });
  for (; at != model.flows_to.end() && flows[*at].to == id; ++at)
    if (known(flows[*at].from)) partners.push_back(static_cast<std::uint32_t>(flows[*at].from.index()));
  return partners;
}

}  // namespace foreshard::gui
