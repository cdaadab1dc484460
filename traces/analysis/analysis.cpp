#include "traces/analysis/analysis.h"

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>

#include "traces/analysis/range_statistics.h"
#include "traces/timeline/exposed_comm.h"
#include "traces/timeline/intervals.h"
#include "traces/timeline/iterations.h"

namespace foreshard {
namespace {

constexpr SimTime kNever = std::numeric_limits<SimTime>::max();

/// When FSDP's limiter held a thread, by rank: sorted, merged.
std::map<std::int32_t, std::vector<Interval>> limiter_waits(const Timeline& timeline) {
  std::map<std::int32_t, std::vector<Interval>> waits;
  for (const Span& span : timeline.spans) {
    if (span.lane.valid() && is_limiter_wait(timeline, span))
      waits[timeline.lanes[span.lane.index()].rank].push_back({span.start, span.start + span.duration});
  }
  for (auto& [rank, times] : waits) times = merge_intervals(std::move(times));
  return waits;
}

using CallTimes = std::unordered_map<std::int32_t, SimTime>;  // when the host called for a span

CallTimes call_times(const Timeline& timeline) {
  CallTimes called;
  for (const Flow& flow : timeline.flows) {
    if (flow.from.valid() && flow.to.valid()) called[flow.to.value] = timeline.spans[flow.from.index()].start;
  }
  return called;
}

Interval time_of(const Span& span) { return {span.start, span.start + span.duration}; }

/// Of a gap from `begin` that `next` ends.
IdleCause cause_of(SimTime begin, const Span& next, SpanId id, const CallTimes& called, SimDuration kernel_gap) {
  const auto call = called.find(id.value);
  if (call != called.end() && call->second > begin) return IdleCause::Host;
  return next.start - begin < kernel_gap ? IdleCause::Kernel : IdleCause::Other;
}

/// Between the stretches of `busy`, which `work` fills.
std::vector<IdleGap> gaps_between(const Timeline& timeline, std::vector<SpanId> work, const std::vector<Interval>& busy,
                                  const CallTimes& called, SimDuration kernel_gap) {
  const auto at = [&](SpanId id) -> const Span& { return timeline.spans[id.index()]; };
  std::stable_sort(work.begin(), work.end(), [&](SpanId a, SpanId b) { return at(a).start < at(b).start; });
  std::vector<IdleGap> gaps;
  auto next = work.begin();
  for (std::size_t i = 1; i < busy.size(); ++i) {
    while (at(*next).start < busy[i].begin) ++next;
    gaps.push_back({{busy[i - 1].end, busy[i].begin}, cause_of(busy[i - 1].end, at(*next), *next, called, kernel_gap)});
  }
  return gaps;
}

class RankAnalyser {
 public:
  RankAnalyser(const Timeline& timeline, const RangeStatistics& statistics, const CallTimes& called, std::int32_t rank,
               const AnalysisOptions& options)
      : t_(timeline), statistics_(statistics), called_(called), options_(options) {
    result_.rank = rank;
    const SimTime from = options.from.value_or(std::numeric_limits<SimTime>::min()), to = options.to.value_or(kNever);
    for (std::size_t i = 0; i < t_.spans.size(); ++i) {
      const Span& span = t_.spans[i];
      if (!span.lane.valid() || t_.lanes[span.lane.index()].rank != rank) continue;
      if (is_device_work(span.kind) && span.start >= from && span.start < to) work_.push_back(SpanId(i));
    }
  }

  RankAnalysis analyse() {
    std::vector<Interval> all, compute, comm;
    for (const SpanId id : work_) {
      const Span& span = at(id);
      all.push_back(time_of(span));
      if (is_computing(span.kind)) compute.push_back(time_of(span));
      if (is_collective(span.kind)) comm.push_back(time_of(span));
    }
    compute_ = merge_intervals(std::move(compute));
    comm = merge_intervals(std::move(comm));
    busy_ = merge_intervals(std::move(all));
    result_.busy = length_of(busy_);
    result_.compute = length_of(compute_);
    result_.comm = length_of(comm);
    result_.overlap = length_of(intersect_intervals(compute_, comm));
    find_extent();
    find_device_idle();
    find_streams();
    find_collectives();
    find_units();
    find_memory();
    result_.critical_path = find_critical_path(t_, result_.rank, options_.from.value_or(first_moment()), result_.end);
    return std::move(result_);
  }

 private:
  const Span& at(SpanId id) const { return t_.spans[id.index()]; }

  void find_extent() {
    for (const SpanId id : work_) {
      const Interval time = time_of(at(id));
      result_.begin = id == work_.front() ? time.begin : std::min(result_.begin, time.begin);
      result_.end = id == work_.front() ? time.end : std::max(result_.end, time.end);
    }
  }

  /// The host may have begun before the device did.
  SimTime first_moment() const {
    SimTime first = result_.begin;
    for (const Span& span : t_.spans) {
      if (span.lane.valid() && t_.lanes[span.lane.index()].rank == result_.rank) first = std::min(first, span.start);
    }
    return first;
  }

  void add_gap(IdleTime& idle, SimTime begin, const Span& next, SpanId id) const {
    const SimDuration gap = next.start - begin;
    amount_of(idle, cause_of(begin, next, id, called_, options_.kernel_gap)) += gap;
  }

  static SimDuration& amount_of(IdleTime& idle, IdleCause cause) {
    return cause == IdleCause::Kernel ? idle.kernel : cause == IdleCause::Other ? idle.other : idle.host;
  }

  void find_device_idle() {
    std::vector<Interval> host;
    for (const IdleGap& gap : gaps_between(t_, work_, busy_, called_, options_.kernel_gap)) {
      if (gap.cause == IdleCause::Host) host.push_back(gap.time);
      amount_of(result_.idle, gap.cause) += gap.time.end - gap.time.begin;
    }
    if (host.empty()) return;
    const auto waits = limiter_waits(t_);
    if (const auto own = waits.find(result_.rank); own != waits.end())
      result_.limiter = length_of(intersect_intervals(host, own->second));
  }

  void find_streams() {
    std::map<std::int32_t, std::vector<SpanId>> by_lane;
    for (const SpanId id : work_) by_lane[at(id).lane.value].push_back(id);
    for (auto& [lane, spans] : by_lane) {
      StreamAnalysis stream;
      stream.lane = LaneId(lane);
      stream.spans = static_cast<std::int64_t>(spans.size());
      std::vector<Interval> times;
      for (std::size_t i = 0; i < spans.size(); ++i) {
        const Span& span = at(spans[i]);
        times.push_back(time_of(span));
        if (is_computing(span.kind))
          stream.compute += span.duration;
        else
          (is_collective(span.kind) ? stream.comm : stream.copies) += span.duration;
        if (i > 0) add_gap(stream.idle, time_of(at(spans[i - 1])).end, span, spans[i]);
      }
      stream.busy = length_of(merge_intervals(std::move(times)));
      result_.streams.push_back(stream);
    }
  }

  void find_collectives() {
    const IntervalIndex computing(compute_);
    std::map<SpanKind, CollectiveTime> kinds;
    for (const SpanId id : work_) {
      const Span& span = at(id);
      if (!is_collective(span.kind)) continue;
      CollectiveTime& time = kinds[span.kind];
      time.kind = span.kind;
      ++time.count;
      time.busy += span.duration;
      time.bytes += span.bytes;
      time.exposed += span.duration - computing.covered(span.start, span.start + span.duration);
    }
    for (const auto& [kind, time] : kinds) result_.collectives.push_back(time);
  }

  void find_units() {
    std::map<std::pair<std::int32_t, std::int32_t>, UnitTime> units;
    for (const SpanId id : work_) {
      const Span& span = at(id);
      if (span.unit < 0 && span.phase == 0) continue;
      UnitTime& time = units[{span.unit, span.phase}];
      if (time.spans++ == 0) {
        time.phase = span.phase;
        if (span.unit >= 0 && static_cast<std::size_t>(span.unit) < t_.units.size()) {
          time.unit = t_.units[static_cast<std::size_t>(span.unit)];
          if (time.unit.empty()) time.unit = "root";
        }
      }
      if (is_computing(span.kind))
        time.compute += span.duration;
      else
        (is_collective(span.kind) ? time.comm : time.copies) += span.duration;
      if (is_collective(span.kind)) time.comm_bytes += span.bytes;
    }
    for (auto& [key, time] : units) result_.units.push_back(std::move(time));
    std::stable_sort(result_.units.begin(), result_.units.end(),
                     [](const UnitTime& a, const UnitTime& b) { return a.busy() > b.busy(); });
  }

  void find_memory() {
    SimTime first = statistics_.begin();
    for (const CounterSample& sample : t_.samples) first = std::min(first, sample.time);
    const SimTime from = options_.from.value_or(first - 1), to = options_.to.value_or(kNever);
    for (std::size_t c = 0; c < t_.counters.size(); ++c) {
      if (t_.counters[c].rank != result_.rank) continue;
      const CounterStatistics counter = statistics_.counter(CounterId(c), from, to);
      result_.memory.push_back({t_.counters[c].name, t_.counters[c].unit, counter.peak, counter.at_end, counter.peak_at,
                                running_at(counter.peak_at)});
    }
  }

  /// Memory is taken when the host asks for it: the innermost of its spans, else the device's work.
  std::string running_at(SimTime time) const {
    const Span* best = nullptr;
    for (const Span& span : t_.spans) {
      if (!span.lane.valid() || t_.lanes[span.lane.index()].rank != result_.rank || !span.name.valid()) continue;
      if (span.start > time || span.start + span.duration < time || span.kind == SpanKind::Annotation) continue;
      const bool host = span.kind == SpanKind::HostIssue,
                 best_host = best != nullptr && best->kind == SpanKind::HostIssue;
      if (best == nullptr || (host && !best_host) || (host == best_host && span.duration < best->duration))
        best = &span;
    }
    return best != nullptr ? std::string(t_.name_of(best->name)) : std::string();
  }

  const Timeline& t_;
  const RangeStatistics& statistics_;
  const CallTimes& called_;
  const AnalysisOptions& options_;
  RankAnalysis result_;
  std::vector<SpanId> work_;  // in the timeline's order: by lane, then start
  std::vector<Interval> busy_, compute_;
};

}  // namespace

namespace {

/// Cuts the stretches in which the host was late where it was held back.
std::vector<IdleGap> with_limiter(const std::vector<IdleGap>& gaps, const std::vector<Interval>& waits) {
  std::vector<IdleGap> all;
  auto wait = waits.begin();
  for (const IdleGap& gap : gaps) {
    SimTime at = gap.time.begin;
    const auto add = [&](SimTime until, IdleCause cause) {
      if (until > at) all.push_back({{at, until}, cause});
      at = std::max(at, until);
    };
    while (wait != waits.end() && wait->end <= at) ++wait;
    for (auto part = wait; gap.cause == IdleCause::Host && part != waits.end() && part->begin < gap.time.end; ++part) {
      add(part->begin, IdleCause::Host);
      add(std::min(part->end, gap.time.end), IdleCause::Limiter);
    }
    add(gap.time.end, gap.cause);
  }
  return all;
}

}  // namespace

std::map<std::int32_t, std::vector<IdleGap>> find_idle_gaps(const Timeline& timeline, SimDuration kernel_gap) {
  struct Work {
    std::vector<SpanId> spans;
    std::vector<Interval> busy;
  };
  std::map<std::int32_t, Work> ranks;
  for (std::size_t i = 0; i < timeline.spans.size(); ++i) {
    const Span& span = timeline.spans[i];
    if (!span.lane.valid() || !is_device_work(span.kind)) continue;
    Work& work = ranks[timeline.lanes[span.lane.index()].rank];
    work.spans.push_back(SpanId(i));
    work.busy.push_back(time_of(span));
  }
  const CallTimes called = call_times(timeline);
  auto waits = limiter_waits(timeline);
  std::map<std::int32_t, std::vector<IdleGap>> gaps;
  for (auto& [rank, work] : ranks)
    gaps[rank] = with_limiter(
        gaps_between(timeline, std::move(work.spans), merge_intervals(std::move(work.busy)), called, kernel_gap),
        waits[rank]);
  return gaps;
}

Result<std::vector<RankAnalysis>> analyse_timeline(const Timeline& timeline, const AnalysisOptions& options) {
  Error error;
  error.code = ErrorCode::OutOfRange;
  if (options.from && options.to && *options.to <= *options.from) {
    error.place = "--from, --to";
    error.message = "the window ends before it begins";
    error.expected = "from < to";
    error.got = std::to_string(*options.from) + " ns to " + std::to_string(*options.to) + " ns";
    return fail(std::move(error));
  }
  std::vector<std::int32_t> ranks = ranks_of(timeline);
  if (options.rank) {
    if (!std::binary_search(ranks.begin(), ranks.end(), *options.rank)) {
      error.message = "the timeline has no such rank";
      for (const std::int32_t rank : ranks)
        error.expected += (error.expected.empty() ? "" : ", ") + std::to_string(rank);
      error.got = std::to_string(*options.rank);
      return fail(std::move(error));
    }
    ranks = {*options.rank};
  }
  std::vector<RankAnalysis> all;
  const RangeStatistics statistics(timeline);
  const CallTimes called = call_times(timeline);
  for (const std::int32_t rank : ranks)
    all.push_back(RankAnalyser(timeline, statistics, called, rank, options).analyse());
  return all;
}

}  // namespace foreshard
