#include "traces/timeline/timeline_builder.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

namespace foreshard {
namespace {

constexpr SimDuration kFarOff = 24LL * 3600 * 1'000'000'000;
constexpr std::size_t kSampledStarts = 1'001;
constexpr std::size_t kExampleLength = 80;

bool on_device(LaneRole role) { return role == LaneRole::Device; }

}  // namespace

std::size_t TimelineBuilder::LaneHash::operator()(const LaneAbout& about) const {
  auto hash =
      static_cast<std::uint64_t>(about.process) * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(about.role);
  hash = (hash ^ (hash >> 29U)) + static_cast<std::uint64_t>(about.thread);
  return hash * 0xbf58476d1ce4e5b9ULL;
}

LaneId TimelineBuilder::lane(const LaneAbout& about) {
  const auto [found, fresh] = lane_of_.try_emplace(about, LaneId(timeline.lanes.size()));
  if (fresh) {
    timeline.lanes.emplace_back();
    lanes.push_back(about);
  }
  return found->second;
}

NameId TimelineBuilder::name(std::string_view text) {
  const auto found = name_of_.find(text);
  if (found != name_of_.end()) return found->second;
  texts_.emplace_back(text);
  const NameId id(texts_.size() - 1);
  name_of_.emplace(texts_.back(), id);
  return id;
}

std::int32_t TimelineBuilder::unit(std::string_view text) {
  const auto [found, fresh] = unit_of_.try_emplace(std::string(text), static_cast<std::int32_t>(timeline.units.size()));
  if (fresh) timeline.units.emplace_back(text);
  return found->second;
}

CounterId TimelineBuilder::counter(std::int32_t rank, std::string_view counter, std::string_view unit) {
  const auto [found, fresh] =
      counter_of_.try_emplace({rank, std::string(counter), std::string(unit)}, CounterId(timeline.counters.size()));
  if (fresh) timeline.counters.push_back({rank, std::string(counter), std::string(unit)});
  return found->second;
}

void TimelineBuilder::add(const Span& span, std::int64_t correlation, std::uint32_t arguments) {
  if (arguments != kNoArguments || !argument_rows.empty()) {
    argument_rows.resize(timeline.spans.size(), kNoArguments);
    argument_rows.push_back(arguments);
  }
  timeline.spans.push_back(span);
  if (correlation >= 0) timeline.spans.back().op = correlation_key(correlation);
}

/// Never -1; below it for numbers that do not fit.
std::int32_t TimelineBuilder::correlation_key(std::int64_t number) {
  if (number <= std::numeric_limits<std::int32_t>::max()) return static_cast<std::int32_t>(number);
  return wide_correlations_.try_emplace(number, -2 - static_cast<std::int32_t>(wide_correlations_.size()))
      .first->second;
}

void TimelineBuilder::count(std::string_view finding, std::string_view example) {
  auto found = findings_.find(finding);
  if (found == findings_.end())
    found = findings_.emplace(std::string(finding), Finding{0, std::string(example.substr(0, kExampleLength))}).first;
  ++found->second.count;
}

std::vector<TraceWarning> TimelineBuilder::warnings(const std::string& place) const {
  std::vector<TraceWarning> all;
  for (const auto& [text, finding] : findings_) {
    std::string line = finding.count > 1 ? fmt::format("{} ({} times", text, finding.count) : text;
    if (finding.count > 1)
      line += finding.example.empty() ? ")" : fmt::format("; first: {})", finding.example);
    else if (!finding.example.empty())
      line += fmt::format(" ({})", finding.example);
    all.push_back({place, std::move(line)});
  }
  return all;
}

std::uint64_t TimelineBuilder::bytes() const {
  return timeline.spans.size() * sizeof(Span) + timeline.samples.size() * sizeof(CounterSample) +
         timeline.flows.size() * sizeof(Flow) + texts_.size() * 128;
}

void TimelineBuilder::leave_out_strays() {
  std::vector<Span>& spans = timeline.spans;
  if (spans.empty()) return;
  std::vector<SimTime> starts;
  const std::size_t step = std::max<std::size_t>(1, spans.size() / kSampledStarts);
  for (std::size_t i = 0; i < spans.size(); i += step) starts.push_back(spans[i].start);
  std::nth_element(starts.begin(), starts.begin() + static_cast<std::ptrdiff_t>(starts.size() / 2), starts.end());
  const SimTime middle = starts[starts.size() / 2];
  const auto far_off = [&](SimTime time) { return time < middle - kFarOff || time > middle + kFarOff; };
  std::size_t kept = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (far_off(spans[i].start) || spans[i].duration > kFarOff) {
      count("slices left out: their clock is more than a day from the others'",
            spans[i].name.valid() ? texts_[spans[i].name.index()] : std::string());
      ++timeline.provenance.dropped_records;
      continue;
    }
    if (!argument_rows.empty()) argument_rows[kept] = argument_rows[i];
    spans[kept++] = spans[i];
  }
  spans.resize(kept);
  if (!argument_rows.empty()) argument_rows.resize(kept);
  const auto sample_gone = [&](const CounterSample& s) { return far_off(s.time); };
  if (const auto gone = std::erase_if(timeline.samples, sample_gone); gone > 0)
    count(fmt::format("{} samples of counters left out: their clock is more than a day from the slices'", gone));
  std::erase_if(timeline.marks, [&](const TimeMark& mark) { return far_off(mark.time); });
}

/// By lane, then start; of equal starts the longer first, so that parents stand before their children.
void TimelineBuilder::sort_spans() {
  std::vector<Span>& spans = timeline.spans;
  const auto before = [](const Span& a, const Span& b) {
    if (a.lane != b.lane) return a.lane < b.lane;
    if (a.start != b.start) return a.start < b.start;
    return a.duration > b.duration;
  };
  // Stable by lane in one pass; most lanes are in order already.
  std::vector<std::uint32_t> first(timeline.lanes.size() + 1, 0);
  for (const Span& span : spans) ++first[span.lane.index() + 1];
  std::partial_sum(first.begin(), first.end(), first.begin());
  std::vector<std::uint32_t> order(spans.size()), next(first.begin(), first.end() - 1);
  for (std::uint32_t i = 0; i < spans.size(); ++i) order[next[spans[i].lane.index()]++] = i;
  const auto by_place = [&](std::uint32_t a, std::uint32_t b) { return before(spans[a], spans[b]); };
  for (std::size_t lane = 0; lane + 1 < first.size(); ++lane) {
    const auto begin = order.begin() + first[lane], end = order.begin() + first[lane + 1];
    if (!std::is_sorted(begin, end, by_place)) std::stable_sort(begin, end, by_place);
  }
  // In place, cycle by cycle: a second copy of all spans is what memory would be short of.
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    if (order[i] == i) continue;
    const Span first_of_cycle = spans[i];
    const std::uint32_t first_row = argument_rows.empty() ? kNoArguments : argument_rows[i];
    std::uint32_t at = i;
    while (order[at] != i) {
      spans[at] = spans[order[at]];
      if (!argument_rows.empty()) argument_rows[at] = argument_rows[order[at]];
      at = std::exchange(order[at], at);
    }
    spans[at] = first_of_cycle;
    if (!argument_rows.empty()) argument_rows[at] = first_row;
    order[at] = at;
  }
  std::stable_sort(timeline.samples.begin(), timeline.samples.end(), [](const auto& a, const auto& b) {
    return std::pair(a.counter, a.time) < std::pair(b.counter, b.time);
  });
  std::stable_sort(timeline.marks.begin(), timeline.marks.end(),
                   [](const TimeMark& a, const TimeMark& b) { return a.time < b.time; });
}

void TimelineBuilder::make_flows() {
  const auto role_of = [&](const Span& span) { return lanes[span.lane.index()].role; };
  const auto correlated = [&](const Span& span) {  // our own lanes are Other, and their ops are ops
    return span.op != -1 && (role_of(span) == LaneRole::Host || role_of(span) == LaneRole::Device);
  };
  std::unordered_map<std::int32_t, std::int32_t> call_of;  // by correlation
  std::vector<Span>& spans = timeline.spans;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (correlated(spans[i]) && role_of(spans[i]) == LaneRole::Host)
      call_of.try_emplace(spans[i].op, static_cast<std::int32_t>(i));
  }
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (!correlated(spans[i])) continue;
    const auto call = on_device(role_of(spans[i])) ? call_of.find(spans[i].op) : call_of.end();
    spans[i].op = -1;
    if (call == call_of.end()) continue;
    timeline.flows.push_back({SpanId(call->second), SpanId(static_cast<std::int32_t>(i))});
    if (spans[i].start < spans[static_cast<std::size_t>(call->second)].start)
      count("slices on the device begin before the call that launched them: the two clocks differ",
            texts_[spans[i].name.index()]);
  }
}

SimTime TimelineBuilder::move_to_zero() {
  SimTime zero = std::numeric_limits<SimTime>::max();
  for (const Span& span : timeline.spans) zero = std::min(zero, span.start);
  for (const CounterSample& sample : timeline.samples) zero = std::min(zero, sample.time);
  for (const TimeMark& mark : timeline.marks) zero = std::min(zero, mark.time);
  if (zero == std::numeric_limits<SimTime>::max()) return 0;
  for (Span& span : timeline.spans) span.start -= zero;
  for (CounterSample& sample : timeline.samples) sample.time -= zero;
  for (TimeMark& mark : timeline.marks) mark.time -= zero;
  return zero;
}

SimTime TimelineBuilder::finish() {
  leave_out_strays();
  sort_spans();
  make_flows();
  timeline.names.assign(texts_.begin(), texts_.end());
  return move_to_zero();
}

}  // namespace foreshard
