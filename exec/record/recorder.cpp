#include "exec/record/recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "core/instruction_spans.h"
#include "exec/communicators/communicator.h"

namespace foreshard::exec {
namespace {

constexpr int kAlignmentRounds = 32;

double measured_span_cost() {
  RecordedLane lane("", 0, 4096);
  constexpr int kSpans = 2000;
  const std::int64_t start = steady_now();
  for (int i = 0; i < kSpans; ++i) {
    const std::int64_t begin = steady_now();
    lane.add({begin, steady_now(), 0, i});
  }
  return static_cast<double>(steady_now() - start) / kSpans;
}

}  // namespace

std::int64_t steady_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Recorder::Recorder(std::int64_t most_spans)
    : most_(most_spans), driver_calls_(most_spans), ns_per_span_(measured_span_cost()) {
  alignment_.origin = steady_now();
  current_.span.start = -1;
}

RecordedLane& Recorder::add_lane(std::string_view stream, std::int32_t priority) {
  return *lanes_.emplace_back(std::make_unique<RecordedLane>(std::string(stream), priority, most_));
}

void Recorder::close_host_span(std::int64_t now) {
  if (current_.span.start < 0) return;
  current_.span.end = now;
  if (static_cast<std::int64_t>(host_.size()) < most_)
    host_.push_back(current_);
  else
    ++dropped_host_;
  current_.span.start = -1;
}

void Recorder::at_instruction(std::int32_t step, InstructionId instruction) {
  const std::int64_t now = steady_now();
  close_host_span(now);
  if (!instruction.valid()) return;
  if (steps_.empty() || steps_.back().step != step) steps_.push_back({now, now, step, instruction.value});
  current_ = {{now, now, step, instruction.value}, false};
}

void Recorder::host_waited(std::int64_t start) {
  if (current_.span.start >= 0) {
    current_.waited = true;
    return;
  }
  current_ = {{start, start, steps_.empty() ? 0 : steps_.back().step, -1}, true};
  close_host_span(steady_now());
}

void Recorder::memory_changed(const std::vector<MemoryChange>& changes) {
  if (static_cast<std::int64_t>(memory_.size()) < most_) memory_.insert(memory_.end(), changes.begin(), changes.end());
}

void DeviceRecordCounts::add(const DeviceRecordCounts& more) {
  records += more.records;
  dropped += more.dropped;
  untimed += more.untimed;
  unattributed += more.unattributed;
  overhead_ns += more.overhead_ns;
  waits += more.waits;
  events += more.events;
  memory_calls += more.memory_calls;
}

void Recorder::device_recorded(const DeviceRecordCounts& counts) { device_.add(counts); }

RecordingCost Recorder::cost() const {
  RecordingCost cost{static_cast<std::int64_t>(host_.size()), dropped_host_ + device_.dropped + driver_calls_.dropped(),
                     ns_per_span_, device_};
  for (const auto& lane : lanes_) {
    cost.spans += lane->size();
    cost.dropped += lane->dropped();
  }
  return cost;
}

/// One timeline in the making.
class TimelineOfRecords {
 public:
  TimelineOfRecords(const Recorder& recorder, const Plan& plan) : recorder_(recorder), plan_(plan) {
    std::int32_t first = 0;
    for (const PlanIteration& iteration : plan.iterations) {
      first_.push_back(first);
      first += static_cast<std::int32_t>(iteration.instructions.size());
    }
  }

  Timeline build() {
    for (const PlanUnit& unit : plan_.units) timeline_.units.push_back(unit.name);
    // What came before the first step would make the timeline as long as the preparations.
    const std::int64_t begin = recorder_.steps_.empty() ? 0 : recorder_.steps_.front().start;
    for (const DriverCall& call : recorder_.driver_calls_.all())
      if (call.start >= begin) driver_calls_[call.lane].push_back(&call);
    for (auto& [lane, calls] : driver_calls_) {
      std::stable_sort(calls.begin(), calls.end(),
                       [](const DriverCall* a, const DriverCall* b) { return a->start < b->start; });
    }
    host_spans();
    for (const auto& lane : recorder_.lanes_) work_spans(*lane);
    counters();
    for (const RecordedSpan& step : recorder_.steps_) {
      timeline_.marks.push_back({time(step.start), plan_.rank, name(iteration_mark(step.step))});
      timeline_.marks.push_back({time(step.start), plan_.rank, name(issue_mark(step.step, id_of(step)))});
    }
    provenance();
    return std::move(timeline_);
  }

 private:
  SimTime time(std::int64_t steady) const { return steady - recorder_.alignment_.offset - recorder_.alignment_.origin; }

  NameId name(std::string_view text) {
    const auto [it, fresh] = names_.try_emplace(std::string(text), timeline_.names.size());
    if (fresh) timeline_.names.emplace_back(text);
    return NameId(it->second);
  }

  std::size_t iteration_of(std::int32_t step) const {
    return std::min(static_cast<std::size_t>(std::max(step, 0)), plan_.iterations.size() - 1);
  }

  const Instruction* instruction(const RecordedSpan& span) const {
    if (span.instruction < 0 || plan_.iterations.empty()) return nullptr;
    const std::size_t k = iteration_of(span.step);
    const auto& all = plan_.iterations[k].instructions;
    const std::int32_t at = span.instruction - first_[k];
    return at < 0 || static_cast<std::size_t>(at) >= all.size() ? nullptr : &all[static_cast<std::size_t>(at)];
  }

  /// The plan's id, and for a repeated iteration its size further for each time.
  InstructionId id_of(const RecordedSpan& span) const {
    const std::size_t k = iteration_of(span.step);
    const auto repeats = static_cast<std::int64_t>(span.step) - static_cast<std::int64_t>(k);
    const auto id = span.instruction + repeats * static_cast<std::int64_t>(plan_.iterations[k].instructions.size());
    return id > std::numeric_limits<std::int32_t>::max() ? InstructionId()
                                                         : InstructionId(static_cast<std::int32_t>(id));
  }

  Span& add(LaneId lane, const RecordedSpan& recorded, const Instruction* i) {
    Span& span = timeline_.spans.emplace_back();
    span.lane = lane;
    span.start = time(recorded.start);
    span.duration = recorded.end - recorded.start;
    if (i == nullptr) return span;
    span.instruction = id_of(recorded);
    span.unit = i->unit.value;
    span.phase = static_cast<std::int32_t>(i->phase);
    return span;
  }

  /// Calls of the lane that begin before `until`, from `next` on. They have no id: a span of an id is the plan's.
  void add_driver_calls(const RecordedLane* lane, LaneId id, std::size_t& next, std::int64_t until) {
    const auto found = driver_calls_.find(lane);
    if (found == driver_calls_.end()) return;
    for (; next < found->second.size() && found->second[next]->start < until; ++next) {
      const DriverCall& call = *found->second[next];
      const RecordedSpan recorded{call.start, call.end, call.step, call.instruction};
      Span& span = add(id, recorded, instruction(recorded));
      span.instruction = InstructionId();
      span.kind = call.kind;
      span.name = name(call.awaited == nullptr ? std::string(call.name)
                                               : fmt::format("{} ({})", call.name, call.awaited->stream()));
      span.bytes = call.bytes;
    }
  }
  static constexpr std::int64_t kEver = std::numeric_limits<std::int64_t>::max();

  void host_spans() {
    timeline_.lanes.push_back({plan_.rank, "host", 0});
    std::size_t next_call = 0;
    for (const Recorder::HostSpan& host : recorder_.host_) {
      add_driver_calls(nullptr, LaneId(0), next_call, host.span.start);
      const Instruction* i = instruction(host.span);
      Span& span = add(LaneId(0), host.span, i);
      span.kind = host.waited ? SpanKind::HostWait : SpanKind::HostIssue;
      span.name = i != nullptr ? name(host_span_name(plan_, *i)) : name("synchronize");
      if (i != nullptr) host_span_of_[span.instruction.value] = SpanId(timeline_.spans.size() - 1);
    }
    add_driver_calls(nullptr, LaneId(0), next_call, kEver);
  }

  void work_spans(const RecordedLane& lane) {
    const LaneId id(timeline_.lanes.size());
    bool used = driver_calls_.count(&lane) > 0;
    std::int32_t last = -1;
    std::size_t next_call = 0;
    for (std::int64_t k = 0; k < lane.size(); ++k) {
      const Instruction* i = instruction(lane[k]);
      if (i == nullptr || !makes_work(i->kind)) continue;  // attaching memory and the like: no work of the plan
      used = true;
      add_driver_calls(&lane, id, next_call, lane[k].start);
      Span& span = add(id, lane[k], i);
      span.kind = work_span_kind(i->kind);
      span.name = name(work_span_name(plan_, *i));
      span.bytes = is_collective(i->kind) ? instruction_bytes(*i) : i->bytes;
      if (i->communicator.valid()) span.communicator = name(plan_.communicators[i->communicator.index()].name);
      const auto host = host_span_of_.find(span.instruction.value);
      if (span.instruction.value != last && host != host_span_of_.end())
        timeline_.flows.push_back({host->second, SpanId(timeline_.spans.size() - 1)});
      last = span.instruction.value;
    }
    add_driver_calls(&lane, id, next_call, kEver);
    if (used) timeline_.lanes.push_back({plan_.rank, lane.stream(), lane.priority()});
  }

  /// Memory stands still between instructions: a sample of the highest point inside one, and one of its end.
  struct MemoryPoint {
    SimTime time = 0;
    Bytes total = 0;
    CategoryCounts categories{};
  };

  std::vector<MemoryPoint> memory_points() const {
    std::vector<MemoryPoint> points;
    MemoryPoint now, highest;
    const auto& changes = recorder_.memory_;
    for (std::size_t c = 0; c < changes.size(); ++c) {
      const bool begins = c == 0 || changes[c].place != changes[c - 1].place;
      const auto host = host_span_at(changes[c].place);
      if (begins) {
        if (host != nullptr) now.time = std::max(now.time, host->start);
        highest = MemoryPoint();
      }
      now.categories[static_cast<std::size_t>(changes[c].category)] += changes[c].change;
      now.total += changes[c].change;
      if (now.total > highest.total) highest = now;
      if (c + 1 < changes.size() && changes[c + 1].place == changes[c].place) continue;
      if (highest.total > now.total) points.push_back(highest);
      if (host != nullptr) now.time = std::max(now.time, host->start + host->duration);
      points.push_back(now);
    }
    return points;
  }

  const Span* host_span_at(const PlanPlace& place) const {
    if (place.instruction < 0) return nullptr;
    const auto found = host_span_of_.find(id_of({0, 0, place.step, place.instruction}).value);
    return found == host_span_of_.end() ? nullptr : &timeline_.spans[found->second.index()];
  }

  template <class F>
  void counter(const std::string& counter_name, const std::vector<MemoryPoint>& points, F value) {
    const CounterId id(timeline_.counters.size());
    const std::size_t before = timeline_.samples.size();
    Bytes last = 0;
    for (const MemoryPoint& point : points) {
      const Bytes now = value(point);
      if (now == last) continue;
      timeline_.samples.push_back({id, point.time, now});
      last = now;
    }
    if (timeline_.samples.size() > before) timeline_.counters.push_back({plan_.rank, counter_name, "bytes"});
  }

  void counters() {
    const std::vector<MemoryPoint> points = memory_points();
    counter("allocated", points, [](const MemoryPoint& p) { return p.total; });
    for (std::size_t c = 0; c < kMemoryCategoryCount; ++c) {
      counter("category:" + std::string(memory_category_name(static_cast<MemoryCategory>(c))), points,
              [c](const MemoryPoint& p) { return p.categories[c]; });
    }
  }

  void provenance() {
    const RecordingCost cost = recorder_.cost();
    Provenance& p = timeline_.provenance;
    p.source = "executed";
    p.clock = fmt::format("steady_clock; rank {}: offset {} ns, error {} ns; {} spans of {:.0f} ns", plan_.rank,
                          recorder_.alignment_.offset, recorder_.alignment_.error, cost.spans, cost.ns_per_span);
    if (cost.device.records > 0) {
      p.clock += fmt::format(
          "; CUPTI: {} records, {} dropped, {} of no instruction, {} us for them; {} waits, {} events, {} "
          "calls for memory",
          cost.device.records, cost.device.dropped, cost.device.unattributed, cost.device.overhead_ns / 1000,
          cost.device.waits, cost.device.events, cost.device.memory_calls);
    }
    p.dropped_records = cost.dropped;
  }

  const Recorder& recorder_;
  const Plan& plan_;
  std::vector<std::int32_t> first_;                                             // instruction, by iteration
  std::map<const RecordedLane*, std::vector<const DriverCall*>> driver_calls_;  // by lane, then start
  Timeline timeline_;
  std::unordered_map<std::string, std::size_t> names_;
  std::unordered_map<std::int32_t, SpanId> host_span_of_;
};

Timeline Recorder::timeline(const Plan& plan) const { return TimelineOfRecords(*this, plan).build(); }

void align_clocks(Recorder& recorder, Communicator& communicator) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<std::int64_t> before(kAlignmentRounds), after(kAlignmentRounds), stamps(ranks);
  for (std::size_t round = 0; round < kAlignmentRounds; ++round) {
    before[round] = steady_now();
    communicator.all_gather(stamps.data(), &before[round], 1, DType::Int64);
    after[round] = steady_now();
  }
  std::vector<std::int64_t> all_before(ranks * kAlignmentRounds), all_after(ranks * kAlignmentRounds);
  communicator.all_gather(all_before.data(), before.data(), kAlignmentRounds, DType::Int64);
  communicator.all_gather(all_after.data(), after.data(), kAlignmentRounds, DType::Int64);
  // Whoever has left a round has everybody's stamp of it: own clock - rank 0's is at most (own after - rank 0's
  // before), and at least (own before - rank 0's after).
  std::int64_t least = std::numeric_limits<std::int64_t>::min(), most = std::numeric_limits<std::int64_t>::max();
  for (std::size_t round = 0; round < kAlignmentRounds; ++round) {
    least = std::max(least, before[round] - all_after[round]);
    most = std::min(most, after[round] - all_before[round]);
  }
  ClockAlignment alignment;
  if (communicator.rank() != 0) {
    alignment.offset = least + (most - least) / 2;
    alignment.error = (most - least + 1) / 2;
  }
  std::int64_t origin = steady_now();
  communicator.broadcast(&origin, 1, DType::Int64, 0);
  alignment.origin = origin;
  recorder.align(alignment);
}

std::vector<std::string> gather_texts(const std::string& own, Communicator& communicator) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<std::int64_t> sizes(ranks);
  const auto size = static_cast<std::int64_t>(own.size());
  communicator.all_gather(sizes.data(), &size, 1, DType::Int64);
  std::string all(static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})), '\0');
  communicator.all_gather_uneven(all.data(), own.data(), std::vector<Numel>(sizes.begin(), sizes.end()), DType::UInt8);
  std::vector<std::string> texts;
  if (communicator.rank() != 0) return texts;
  std::size_t at = 0;
  for (const std::int64_t length : sizes) {
    texts.push_back(all.substr(at, static_cast<std::size_t>(length)));
    at += static_cast<std::size_t>(length);
  }
  return texts;
}

}  // namespace foreshard::exec
