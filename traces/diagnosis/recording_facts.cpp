#include "traces/diagnosis/recording_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/plan.h"
#include "traces/timeline/iterations.h"
#include "traces/timeline/trace_names.h"

namespace foreshard {
namespace {

bool in_backward(const Span& span) {
  const auto phase = static_cast<Phase>(span.phase);
  return phase == Phase::PreBackward || phase == Phase::Backward || phase == Phase::PostBackward;
}

SeenRuntime runtime_of(const Timeline& t) {
  for (const std::string& name : t.names) {
    if (const auto range = fsdp_range(name))
      return range->runtime == FsdpRange::Runtime::Fsdp1 ? SeenRuntime::Fsdp1 : SeenRuntime::Fsdp2;
  }
  bool one = false, two = false;
  for (const Lane& lane : t.lanes) {
    one |= lane.stream == "U" || lane.stream == "G";
    two |= lane.stream == "A" || lane.stream == "S";
  }
  return two ? SeenRuntime::Fsdp2 : one ? SeenRuntime::Fsdp1 : SeenRuntime::Unknown;
}

MemorySeries series_of(const Timeline& t, std::int32_t rank, std::string_view name) {
  MemorySeries series;
  for (const CounterSample& sample : t.samples) {
    if (!sample.counter.valid()) continue;
    const Counter& counter = t.counters[sample.counter.index()];
    if (counter.rank != rank || counter.name != name) continue;
    series.times.push_back(sample.time);
    series.values.push_back(sample.value);
  }
  return series;
}

}  // namespace

std::int64_t MemorySeries::at(SimTime time) const {
  const auto after = std::upper_bound(times.begin(), times.end(), time);
  return after == times.begin() ? 0 : values[static_cast<std::size_t>(after - times.begin()) - 1];
}

std::pair<std::int64_t, SimTime> MemorySeries::peak(SimTime begin, SimTime end) const {
  std::pair<std::int64_t, SimTime> best{at(begin), begin};
  const auto first = std::lower_bound(times.begin(), times.end(), begin);
  for (auto it = first; it != times.end() && *it < end; ++it) {
    const std::int64_t value = values[static_cast<std::size_t>(it - times.begin())];
    if (value > best.first) best = {value, *it};
  }
  return best;
}

RecordingFacts::RecordingFacts(const Timeline& timeline, const DiagnosisOptions& wanted)
    : t(timeline), options(wanted), runtime(runtime_of(timeline)) {
  card = card_memory_in(t.provenance.hardware);
  meetings = find_meetings(t);
  find_ranks();
  find_memory();
  find_pageable_calls();
}

void RecordingFacts::find_ranks() {
  for (const std::int32_t rank : ranks_of(t)) {
    RankSteps steps;
    steps.rank = rank;
    steps.accountant = std::make_unique<StepAccountant>(t, rank, meetings);
    const std::size_t all = steps.accountant->steps();
    if (all == 0) continue;
    for (std::size_t step = all > 1 ? 1 : 0; step < all; ++step) {
      steps.counted.push_back(step);
      steps.accounts.push_back(steps.accountant->account(step));
      steps.mean += steps.accounts.back().length();
    }
    steps.mean /= static_cast<SimDuration>(steps.accounts.size());
    ranks.push_back(std::move(steps));
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (options.rank ? ranks[i].rank == *options.rank : ranks[i].mean > ranks[judged].mean) judged = i;
  }
}

/// Of the judged rank if it has counters, else of the one whose memory rises highest.
void RecordingFacts::find_memory() {
  std::int64_t highest = -1;
  for (const std::int32_t rank : ranks_of(t)) {
    const bool wanted = options.rank ? rank == *options.rank : has_steps() && rank == own().rank;
    MemorySeries series = series_of(t, rank, "allocated");
    if (series.empty()) continue;
    const std::int64_t most = *std::max_element(series.values.begin(), series.values.end());
    if (most <= highest && !wanted) continue;
    highest = most;
    memory_rank = rank;
    allocated = std::move(series);
    if (wanted) break;
  }
  active = series_of(t, memory_rank, "active");
  reserved = series_of(t, memory_rank, "reserved");
}

void RecordingFacts::find_pageable_calls() {
  constexpr Bytes kMuch = 1 << 20;  // a value that is read is little, and its wait another cause
  for (const Flow& flow : t.flows) {
    const Span& work = at(flow.to);
    if (work.kind == SpanKind::Copy && work.bytes >= kMuch &&
        name_of(flow.to).find("Pageable") != std::string_view::npos)
      pageable_calls_.insert(flow.from.value);
  }
  if (!has_steps()) return;
  SimTime first = 0;  // what a model's making copies is no step's
  for (const TimelineIteration& iteration : iterations_of(t, own().rank)) {
    if (iteration.index == own().accounts.front().iteration) first = iteration.issue;
  }
  SimDuration all = 0;
  for (const std::int32_t call : pageable_calls_) {
    const Span& span = t.spans[static_cast<std::size_t>(call)];
    if (t.lanes[span.lane.index()].rank == own().rank && span.start >= first) all += span.duration;
  }
  pageable_copying_ = all / static_cast<SimDuration>(own().accounts.size());
}

double RecordingFacts::share_of_memory(double bytes) const {
  if (card > 0) return bytes / static_cast<double>(card);
  const std::int64_t peak = allocated.empty() ? 0 : *std::max_element(allocated.values.begin(), allocated.values.end());
  return peak > 0 ? bytes / static_cast<double>(peak) : 0;
}

bool RecordingFacts::room_on_card() const {
  constexpr double kFullCard = 0.7;
  if (card <= 0) return false;
  std::int64_t held = 0;
  for (const MemorySeries* series : {&allocated, &active, &reserved})
    for (const std::int64_t value : series->values) held = std::max(held, value);
  return static_cast<double>(held) < kFullCard * static_cast<double>(card);
}

std::string RecordingFacts::unit_of(const Span& span) const {
  if (span.unit < 0 || static_cast<std::size_t>(span.unit) >= t.units.size()) return {};
  const std::string& name = t.units[static_cast<std::size_t>(span.unit)];
  return name.empty() ? "root" : name;
}

bool RecordingFacts::is_root(const Span& span) const {
  const std::string name = unit_of(span);
  return name == "root" || name == "fsdp 0" || name.starts_with("fsdp 0 ");
}

/// A recomputation's forward stands inside of autograd's node.
bool RecordingFacts::issued_in_backward(SpanId work) const {
  const HostThreads& threads = own().accountant->threads();
  const SpanId call = own().accountant->call_of(work);
  for (SpanId outer = call.valid() ? threads.parent(call) : call; outer.valid(); outer = threads.parent(outer)) {
    if (name_of(outer).starts_with("autograd::engine::evaluate_function")) return true;
  }
  return false;
}

std::map<std::int32_t, std::vector<UnitGather>> RecordingFacts::gathers() const {
  std::map<std::int32_t, std::vector<UnitGather>> units;
  if (!has_steps()) return units;
  for (std::size_t s = 0; s < own().counted.size(); ++s) {
    for (const SpanId id : own().accountant->work_in(own().counted[s])) {
      if (at(id).kind != SpanKind::AllGather) continue;
      units[at(id).unit].push_back({id, s, in_backward(at(id)) || issued_in_backward(id)});
    }
  }
  return units;
}

Collected::Collected(const RecordingFacts& facts, const Choice& choice, const Label& label) : facts_(facts) {
  std::map<std::string, SimDuration> sums;
  SimDuration all = 0;
  for (const StepAccount& account : facts.own().accounts) {
    for (const UseStretch& stretch : account.stretches) {
      if (!choice(stretch)) continue;
      const SimDuration length = stretch.time.end - stretch.time.begin;
      const std::string text = label(stretch);
      all += length;
      ++count_;
      sums[text] += length;
      // Pieces of one thing stand next to each other.
      const bool joined =
          !longest_.empty() && longest_.back().time.end == stretch.time.begin && longest_.back().text == text;
      if (joined)
        longest_.back().time.end = stretch.time.end;
      else
        longest_.push_back({account.rank, stretch.time, text});
    }
  }
  cost_ = static_cast<SimDuration>(static_cast<double>(all) / facts.steps());
  for (auto& [text, time] : sums) labels_.emplace_back(text, time);
  std::stable_sort(labels_.begin(), labels_.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::stable_sort(longest_.begin(), longest_.end(), [](const Evidence& a, const Evidence& b) {
    return a.time.end - a.time.begin > b.time.end - b.time.begin;
  });
}

double Collected::share() const {
  return static_cast<double>(cost_) / static_cast<double>(std::max<SimDuration>(1, facts_.own().mean));
}

std::vector<std::string> Collected::where(std::size_t most) const {
  std::vector<std::string> places;
  for (const auto& [text, time] : labels_) {
    if (!text.empty() && places.size() < most) places.push_back(text);
  }
  return places;
}

std::vector<Evidence> Collected::evidence(std::size_t most) const {
  return {longest_.begin(), longest_.begin() + static_cast<std::ptrdiff_t>(std::min(most, longest_.size()))};
}

DiagnosedCause Collected::finding(const char* name) const {
  DiagnosedCause finding;
  finding.name = name;
  finding.cost = cost();
  finding.share = share();
  finding.where = where();
  finding.evidence = evidence();
  return finding;
}

DiagnosedCause Collected::avoidable(const char* name) const {
  DiagnosedCause found = finding(name);
  found.saving = found.cost;
  return found;
}

Bytes card_memory_in(std::string_view hardware) {
  for (std::size_t at = 0; at < hardware.size(); ++at) {
    const bool begins =
        hardware[at] >= '0' && hardware[at] <= '9' && (at == 0 || hardware[at - 1] == ' ' || hardware[at - 1] == '-');
    if (!begins) continue;
    Bytes gigabytes = 0;
    std::size_t end = at;
    for (; end < hardware.size() && hardware[end] >= '0' && hardware[end] <= '9' && gigabytes < 100'000; ++end)
      gigabytes = gigabytes * 10 + (hardware[end] - '0');
    const std::string_view behind = hardware.substr(end);
    // A profile's id ends with it.
    const bool said = behind.starts_with("GB") || behind.starts_with(" GB") || behind.starts_with("GiB") ||
                      (behind.empty() && hardware.find(' ') == std::string_view::npos);
    if (said && gigabytes >= 4 && gigabytes <= 2048) return gigabytes << 30U;
  }
  return 0;
}

std::string time_words(double ns) {
  const std::array<std::pair<double, const char*>, 3> units{{{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}}};
  for (const auto& [size, unit] : units) {
    if (ns >= size) return fmt::format("{:.3g} {}", ns / size, unit);
  }
  return fmt::format("{:.0f} ns", ns);
}

std::string byte_words(double bytes) {
  const std::array<std::pair<double, const char*>, 3> units{
      {{1024.0 * 1024 * 1024, "GiB"}, {1024.0 * 1024, "MiB"}, {1024.0, "KiB"}}};
  for (const auto& [size, unit] : units) {
    if (bytes >= size) return fmt::format("{:.3g} {}", bytes / size, unit);
  }
  return fmt::format("{:.0f} B", bytes);
}

std::string share_words(double share) { return fmt::format("{:.1f} %", share * 100); }

}  // namespace foreshard
