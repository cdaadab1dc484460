#include "traces/timeline/exposed_comm.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>

#include "core/plan.h"
#include "traces/timeline/intervals.h"

namespace foreshard {
namespace {

struct Stretch {
  SimTime begin = 0, end = 0;
};

/// Time in which the compute stream is idle, and the span that ends it.
struct Gap {
  Stretch time;
  const Span* next = nullptr;  // null: the iteration's end
};

bool is_backward(std::int32_t phase) {
  const auto p = static_cast<Phase>(phase);
  return p == Phase::PreBackward || p == Phase::Backward || p == Phase::PostBackward;
}

class Finder {
 public:
  Finder(const Timeline& timeline, const TimelineIteration& iteration) : t_(timeline), iteration_(iteration) {
    // Between issue and start a measured clock has a thread's waking up; a simulated one has nothing.
    wake_up_ = is_predicted(timeline) ? 0 : 50'000;
    SimTime first = std::numeric_limits<SimTime>::max(), last = std::numeric_limits<SimTime>::min();
    for (const SpanId id : iteration.spans) {
      sort_in(id);
      first = std::min(first, t_.spans[id.index()].start);
      last = std::max(last, t_.spans[id.index()].start);
    }
    for (const Flow& flow : t_.flows) {
      // Recordings of others have no instructions, but arrows from the call to the work.
      if (!flow.from.valid() || !flow.to.valid()) continue;
      const Span &call = t_.spans[flow.from.index()], &work = t_.spans[flow.to.index()];
      const bool host = call.kind == SpanKind::HostIssue || call.kind == SpanKind::HostWait;
      const bool within = work.start >= first && work.start <= last;
      if (host && within && !work.instruction.valid()) call_of_.try_emplace(&work, &call);
    }
    const auto by_start = [](const Span* a, const Span* b) { return a->start < b->start; };
    std::stable_sort(compute_.begin(), compute_.end(), by_start);
    std::stable_sort(collectives_.begin(), collectives_.end(), by_start);
    find_gaps();
  }

  ExposedComm find() {
    std::vector<Stretch> exposed;
    bool gathered = false;
    for (const Span* run : collectives_) {
      comm_.push_back({run->start, run->start + run->duration});
      const bool first_gather = run->kind == SpanKind::AllGather && !gathered;
      gathered = gathered || run->kind == SpanKind::AllGather;
      if (on_compute(*run)) {
        exposed.push_back({run->start, run->start + run->duration});
        add("compute_stream", run->kind, run->duration);
        continue;
      }
      const bool limited = after_host_wait(*run);
      for (const Gap& gap : gaps_) {
        const Stretch part{std::max(run->start, gap.time.begin), std::min(run->start + run->duration, gap.time.end)};
        if (part.begin >= part.end) continue;
        exposed.push_back(part);
        // Without a backward (a recording of inference, or of half a step) only what nothing follows is its tail.
        const bool tail = last_backward_ ? gap.time.begin >= *last_backward_ : gap.next == nullptr;
        const char* cause = tail             ? "tail"
                            : first_gather   ? "first_gather"
                            : limited        ? "limiter"
                            : host_late(gap) ? "host"
                                             : "bandwidth";
        add(cause, run->kind, part.end - part.begin);
      }
    }
    result_.comm = length_of(merge_intervals(std::move(comm_)));
    result_.busy = length_of(merge_intervals(std::move(busy_)));
    std::sort(exposed.begin(), exposed.end(), [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; });
    SimTime covered = iteration_.begin;
    for (const Stretch& part : exposed) {
      result_.exposed += std::max<SimDuration>(0, part.end - std::max(part.begin, covered));
      covered = std::max(covered, part.end);
    }
    std::stable_sort(result_.causes.begin(), result_.causes.end(),
                     [](const CauseTime& a, const CauseTime& b) { return a.time > b.time; });
    return std::move(result_);
  }

 private:
  bool on_compute(const Span& span) const { return t_.lanes[span.lane.index()].stream == "D"; }

  void sort_in(SpanId id) {
    const Span& span = t_.spans[id.index()];
    if (is_limiter_wait(t_, span)) limiter_.push_back(&span);
    if (span.kind == SpanKind::HostIssue || span.kind == SpanKind::HostWait) {
      if (span.instruction.valid()) host_of_.try_emplace(span.instruction.value, &span);
      return;
    }
    if (on_compute(span) && span.kind != SpanKind::Wait) {
      compute_.push_back(&span);
      busy_.push_back({span.start, span.start + span.duration});
      if (is_backward(span.phase)) last_backward_ = std::max(last_backward_.value_or(0), span.start + span.duration);
    }
    if (is_collective(span.kind)) collectives_.push_back(&span);
  }

  void find_gaps() {
    SimTime free_at = iteration_.begin;
    for (const Span* span : compute_) {
      if (span->start > free_at) gaps_.push_back({{free_at, span->start}, span});
      free_at = std::max(free_at, span->start + span->duration);
    }
    if (iteration_.end > free_at) gaps_.push_back({{free_at, iteration_.end}, nullptr});
  }

  /// The work that ended the gap ran as soon as the host had issued it: nothing else was waited for.
  bool host_late(const Gap& gap) const {
    const Span* call = gap.next != nullptr ? call_of(*gap.next) : nullptr;
    return call != nullptr && gap.next->start <= call->start + call->duration + wake_up_;
  }

  /// Where the host issued it; null if nothing says so.
  const Span* call_of(const Span& work) const {
    if (work.instruction.valid()) {
      const auto host = host_of_.find(work.instruction.value);
      return host != host_of_.end() ? host->second : nullptr;
    }
    const auto call = call_of_.find(&work);
    return call != call_of_.end() ? call->second : nullptr;
  }

  /// The host was held back between the issue of the collective before and of this one.
  bool after_host_wait(const Span& run) {
    const Span* issue = call_of(run);
    if (issue == nullptr) return false;
    const SimTime until = issue->start;
    const bool waited = std::any_of(limiter_.begin(), limiter_.end(), [&](const Span* wait) {
      return wait->start >= issued_until_ && wait->start < until;
    });
    issued_until_ = std::max(issued_until_, until);
    return waited;
  }

  void add(const char* cause, SpanKind kind, SimDuration time) {
    for (CauseTime& known : result_.causes) {
      if (known.cause != cause || known.kind != kind) continue;
      known.time += time;
      return;
    }
    result_.causes.push_back({cause, kind, time});
  }

  const Timeline& t_;
  const TimelineIteration& iteration_;
  std::vector<const Span*> compute_, collectives_, limiter_;
  std::unordered_map<std::int32_t, const Span*> host_of_;  // by instruction
  std::unordered_map<const Span*, const Span*> call_of_;   // by work without one
  std::vector<Gap> gaps_;
  std::vector<Interval> comm_, busy_;
  std::optional<SimTime> last_backward_;
  SimTime issued_until_ = 0;
  SimDuration wake_up_ = 0;
  ExposedComm result_;
};

}  // namespace

bool is_collective(SpanKind kind) {
  return kind == SpanKind::AllGather || kind == SpanKind::ReduceScatter || kind == SpanKind::AllReduce ||
         kind == SpanKind::Broadcast || kind == SpanKind::SendRecv;
}

bool is_limiter_wait(const Timeline& timeline, const Span& span) {
  if (span.kind == SpanKind::HostWait && span.instruction.valid()) return true;
  return !span.instruction.valid() && timeline.name_of(span.name) == "FullyShardedDataParallel.rate_limiter";
}

ExposedComm find_exposed_comm(const Timeline& timeline, const TimelineIteration& iteration) {
  return Finder(timeline, iteration).find();
}

}  // namespace foreshard
