#include "traces/analysis/step_account.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>

#include "core/plan.h"
#include "traces/analysis/range_statistics.h"
#include "traces/timeline/exposed_comm.h"
#include "traces/timeline/iterations.h"

namespace foreshard {
namespace {

constexpr std::array<std::string_view, kTimeUses> kNames{
    "compute",        "first_gather", "straggler", "late_issue", "limiter", "not_prefetched",
    "compute_stream", "tail",         "bandwidth", "copies",     "data",    "synchronise",
    "allocator",      "held_back",    "host",      "kernel_gap", "other"};

constexpr SimDuration kSoon = 30 * kMicrosecond;     // launching the next kernel takes no longer
constexpr SimDuration kDrained = 20 * kMicrosecond;  // a wait that found nothing to wait for is shorter

bool is_backward(const Span& span) {
  const auto p = static_cast<Phase>(span.phase);
  return p == Phase::PreBackward || p == Phase::Backward || p == Phase::PostBackward;
}
bool reduces(SpanKind kind) { return kind == SpanKind::ReduceScatter || kind == SpanKind::AllReduce; }

TimeUse use_of_host(HostUse use) {
  switch (use) {
    case HostUse::Data: return TimeUse::Data;
    case HostUse::Synchronise: return TimeUse::Synchronise;
    case HostUse::Allocator: return TimeUse::Allocator;
    case HostUse::Limiter: return TimeUse::HeldBack;
    default: return TimeUse::Host;
  }
}

}  // namespace

std::string_view time_use_name(TimeUse use) { return kNames[static_cast<std::size_t>(use)]; }
bool is_exposed_comm(TimeUse use) { return use >= TimeUse::FirstGather && use <= TimeUse::Bandwidth; }
bool is_idle(TimeUse use) { return use >= TimeUse::Data; }

/// What is found once for a rank.
class StepAccountant::Parts {
 public:
  Parts(const Timeline& timeline, std::int32_t of_rank, const std::vector<CollectiveMeeting>& meetings)
      : t(timeline), rank(of_rank), threads(timeline, of_rank), iterations(iterations_of(timeline, of_rank)) {
    find_work();
    find_calls();
    find_windows();
    for (const CollectiveMeeting& meeting : meetings) {
      for (const MeetingMember& member : meeting.members) all_there[member.span.value] = meeting.last;
    }
    find_issue_order();
  }

  const Span& at(SpanId id) const { return t.spans[id.index()]; }
  SimTime end_of(SpanId id) const { return at(id).start + at(id).duration; }
  SpanId call_of(SpanId work_id) const {
    const auto found = calls.find(work_id.value);
    return found == calls.end() ? SpanId() : found->second;
  }
  bool on_compute(const Span& span) const { return t.lanes[span.lane.index()].stream == "D"; }
  bool prefetched(SpanId id) const;

  const Timeline& t;
  std::int32_t rank;
  HostThreads threads;
  std::vector<TimelineIteration> iterations;
  std::vector<Interval> windows;
  std::vector<SpanId> work;                                 // by start
  std::unordered_map<std::int32_t, SpanId> calls;           // by work
  std::unordered_map<std::int32_t, SimTime> all_there;      // by collective: when the last rank came
  std::unordered_map<std::int32_t, SpanId> before_on_lane;  // by collective: what ran before it on its stream
  std::vector<std::pair<SimTime, SpanId>> issued;           // computing work by when it was issued

 private:
  void find_work() {
    for (std::size_t i = 0; i < t.spans.size(); ++i) {
      const Span& span = t.spans[i];
      if (!span.lane.valid() || t.lanes[span.lane.index()].rank != rank || !is_device_work(span.kind)) continue;
      work.emplace_back(i);
    }
    std::stable_sort(work.begin(), work.end(), [&](SpanId a, SpanId b) { return at(a).start < at(b).start; });
  }

  void find_calls() {
    std::unordered_map<std::int32_t, SpanId> host_of;  // by instruction: only its first work has an arrow
    for (const Flow& flow : t.flows) {
      if (!flow.from.valid() || !flow.to.valid() || !is_device_work(at(flow.to).kind)) continue;
      if (!is_device_work(at(flow.from).kind)) calls[flow.to.value] = flow.from;
      if (at(flow.to).instruction.valid() && t.lanes[at(flow.to).lane.index()].rank == rank)
        host_of[at(flow.to).instruction.value] = flow.from;
    }
    std::unordered_map<std::int64_t, SpanId> last;  // collectives by communicator, else by lane
    for (const SpanId id : work) {
      const Span& span = at(id);
      if (span.instruction.valid() && !calls.contains(id.value)) {
        const auto host = host_of.find(span.instruction.value);
        if (host != host_of.end()) calls[id.value] = host->second;
      }
      if (!is_collective(span.kind)) continue;
      const std::int64_t queue =
          span.communicator.valid() ? (std::int64_t{1} << 40U) + span.communicator.value : span.lane.value;
      const auto found = last.find(queue);
      if (found != last.end()) before_on_lane[id.value] = found->second;
      last[queue] = id;
    }
  }

  void find_windows() {
    std::erase_if(iterations, [&](const TimelineIteration& i) {
      return std::none_of(i.spans.begin(), i.spans.end(), [&](SpanId id) { return is_device_work(at(id).kind); });
    });
    for (std::size_t i = 0; i < iterations.size(); ++i) {
      SimTime first = std::numeric_limits<SimTime>::max(), last = 0;
      for (const SpanId id : iterations[i].spans) {
        if (!is_device_work(at(id).kind)) continue;
        first = std::min(first, at(id).start);
        last = std::max(last, end_of(id));
      }
      windows.push_back({first, std::max(first, last)});
      if (i > 0) windows[i - 1].end = std::max(windows[i - 1].begin, first);
    }
  }

  void find_issue_order() {
    for (const SpanId id : work) {
      if (!is_computing(at(id).kind) || at(id).unit < 0) continue;
      const SpanId call = call_of(id);
      if (call.valid()) issued.emplace_back(at(call).start, id);
    }
    std::stable_sort(issued.begin(), issued.end(), [&](const auto& a, const auto& b) {
      if (a.first != b.first) return a.first < b.first;
      return at(a.second).instruction.value < at(b.second).instruction.value;
    });
  }
};

bool StepAccountant::Parts::prefetched(SpanId id) const {
  const SpanId call = call_of(id);
  if (!call.valid() || at(id).unit < 0) return true;  // nothing says that it was not
  const SimTime time = at(call).start;
  const InstructionId own = at(id).instruction;
  const auto later = std::partition_point(issued.begin(), issued.end(), [&](const auto& other) {
    if (other.first != time) return other.first < time;
    return !own.valid() || at(other.second).instruction <= own;
  });
  return later == issued.end() || at(later->second).unit != at(id).unit;
}

namespace {

/// One step taken apart.
class Account {
 public:
  struct Source {
    const Timeline& t;
    const HostThreads& threads;
    const std::vector<SpanId>& work;
    const std::unordered_map<std::int32_t, SpanId>& calls;
    const std::unordered_map<std::int32_t, SimTime>& all_there;
    const std::unordered_map<std::int32_t, SpanId>& before_on_lane;
    std::function<bool(SpanId)> prefetched;
  };

  Account(const Source& source, Interval window) : s_(source), window_(window) {
    const auto first =
        std::partition_point(s_.work.begin(), s_.work.end(), [&](SpanId id) { return at(id).start < window_.begin; });
    for (auto it = first; it != s_.work.end() && at(*it).start < window_.end; ++it) {
      const SpanKind kind = at(*it).kind;
      (is_computing(kind) ? compute_ : is_collective(kind) ? comm_ : copies_).push_back(*it);
      begins_.push_back(*it);
      if (is_computing(kind) && is_backward(at(*it))) last_backward_ = std::max(last_backward_, end_of(*it));
    }
    after_ = first;
    while (after_ != s_.work.end() && at(*after_).start < window_.end) ++after_;
    if (!compute_.empty()) first_compute_ = at(compute_.front()).start;
  }

  std::vector<UseStretch> take() {
    SimTime reached = window_.begin;
    for (const SpanId id : compute_) {
      const SimTime start = std::max(at(id).start, reached), end = std::min(end_of(id), window_.end);
      if (start > reached) gap({reached, start});
      if (end > start) stretches_.push_back({{start, end}, TimeUse::Compute, id, {}});
      reached = std::max(reached, end);
    }
    if (window_.end > reached) gap({reached, window_.end});
    std::stable_sort(stretches_.begin(), stretches_.end(),
                     [](const UseStretch& a, const UseStretch& b) { return a.time.begin < b.time.begin; });
    return std::move(stretches_);
  }

 private:
  const Span& at(SpanId id) const { return s_.t.spans[id.index()]; }
  SimTime end_of(SpanId id) const { return at(id).start + at(id).duration; }
  SpanId call_of(SpanId id) const {
    const auto found = s_.calls.find(id.value);
    return found == s_.calls.end() ? SpanId() : found->second;
  }

  std::vector<SpanId> running_in(const std::vector<SpanId>& spans, std::size_t& from, Interval time) const {
    // What began long before may still run: `from` only passes what ended.
    while (from < spans.size() && end_of(spans[from]) <= time.begin) ++from;
    std::vector<SpanId> found;
    for (std::size_t i = from; i < spans.size() && at(spans[i]).start < time.end; ++i) {
      if (end_of(spans[i]) > time.begin) found.push_back(spans[i]);
    }
    return found;
  }

  /// Nothing computes in `time`.
  void gap(Interval time) {
    std::vector<Interval> left{time};
    std::vector<SpanId> comm = running_in(comm_, comm_at_, time);
    // What ended last before computing went on is what it waited for.
    std::stable_sort(comm.begin(), comm.end(), [&](SpanId a, SpanId b) {
      const bool in_a = end_of(a) <= time.end, in_b = end_of(b) <= time.end;
      if (in_a != in_b) return in_a;
      return in_a ? end_of(a) > end_of(b) : at(a).start < at(b).start;
    });
    waited_prefetch_ = false;
    for (const SpanId id : comm) {
      left = claim(left, id, [&](Interval part) { exposed(id, part, time); });
    }
    for (const SpanId id : running_in(copies_, copies_at_, time)) {
      left = claim(left, id, [&](Interval part) { stretches_.push_back({part, TimeUse::Copies, id, {}}); });
    }
    for (const Interval& part : left) idle(part);
  }

  template <class Take>
  std::vector<Interval> claim(const std::vector<Interval>& free, SpanId id, const Take& take) const {
    const Interval own{at(id).start, end_of(id)};
    std::vector<Interval> left;
    for (const Interval& part : free) {
      const Interval both{std::max(part.begin, own.begin), std::min(part.end, own.end)};
      if (both.begin >= both.end) {
        left.push_back(part);
        continue;
      }
      take(both);
      if (part.begin < both.begin) left.push_back({part.begin, both.begin});
      if (both.end < part.end) left.push_back({both.end, part.end});
    }
    return left;
  }

  struct Reason {
    TimeUse use = TimeUse::Bandwidth;
    SpanId host;  // the call that came late, or what it came late for
  };

  /// A collective alone: what it spent waiting for other ranks, and the rest.
  void exposed(SpanId id, Interval part, Interval gap) {
    const auto there = s_.all_there.find(id.value);
    if (there != s_.all_there.end() && there->second > part.begin) {
      const Interval waits{part.begin, std::min(part.end, there->second)};
      stretches_.push_back({waits, TimeUse::Straggler, id, call_of(id)});
      part.begin = waits.end;
    }
    if (part.begin >= part.end) return;
    Reason why = why_alone(id, gap);
    // The reduction that the gather queues behind would run beside computing, had the gather come first.
    if (waited_prefetch_ && why.use == TimeUse::Bandwidth && reduces(at(id).kind)) why.use = TimeUse::NotPrefetched;
    waited_prefetch_ = waited_prefetch_ || why.use == TimeUse::NotPrefetched;
    stretches_.push_back({part, why.use, id, why.host});
  }

  Reason why_alone(SpanId id, Interval gap) const {
    const Span& span = at(id);
    const SpanId call = call_of(id);
    if (on_compute(span)) return {TimeUse::ComputeStream, call};
    if (span.start < first_compute_) return {TimeUse::FirstGather, call};
    if (last_backward_ > 0 && gap.begin >= last_backward_) return {TimeUse::Tail, call};
    if (!call.valid()) return {};
    const SimTime called = at(call).start;
    const auto before = s_.before_on_lane.find(id.value);
    const bool queued = before != s_.before_on_lane.end() && end_of(before->second) > called &&
                        span.start - end_of(before->second) < kSoon;
    // What it gathers is copied together first: it begins later than its call, and was late all the same.
    if (called > gap.begin && !queued) return issued_late(call, gap.begin);
    if (queued && on_compute(at(before->second)))
      return {TimeUse::ComputeStream, call};  // it cannot run beside computing
    if (!queued) {
      if (const SpanId wait = lead_lost(call); wait.valid()) return {TimeUse::Synchronise, wait};
    }
    const bool behind_reduction = queued && reduces(at(before->second).kind);
    if (span.kind == SpanKind::AllGather && behind_reduction && !s_.prefetched(id))
      return {TimeUse::NotPrefetched, call};
    return {TimeUse::Bandwidth, call};
  }

  /// Behind a wait that drained the device or held the host, held by the limiter just before, or late by itself.
  Reason issued_late(SpanId call, SimTime since) const {
    if (const HostThreads::Doing drain = drain_before(at(call).lane, since); drain.span.valid())
      return {use_of_host(drain.use), drain.span};
    SimDuration limited = 0, waited = 0, longest = 0;
    SpanId wait;
    for (const HostThreads::Doing& doing : s_.threads.doing(at(call).lane, since, at(call).start)) {
      const SimDuration time = doing.time.end - doing.time.begin;
      if (doing.use == HostUse::Limiter) limited += time;
      if (doing.use != HostUse::Synchronise) continue;
      waited += time;
      if (time > longest) longest = time, wait = doing.span;
    }
    const SimDuration all = at(call).start - since;
    if (limited > 0 && 2 * limited >= all) return {TimeUse::Limiter, call};
    return waited > 0 && 2 * waited >= all ? Reason{TimeUse::Synchronise, wait} : Reason{TimeUse::LateIssue, call};
  }

  bool on_compute(const Span& span) const { return s_.t.lanes[span.lane.index()].stream == "D"; }

  /// A wait for the device, shortly before the call: had the host not stood there, it would have called so much
  /// earlier.
  SpanId lead_lost(SpanId call) const {
    constexpr SimDuration kShortly = 5 * kMillisecond;
    const SimTime called = at(call).start;
    SpanId last;
    for (const HostThreads::Doing& doing : s_.threads.doing(at(call).lane, called - kShortly, called)) {
      if (doing.use == HostUse::Synchronise && at(doing.span).duration >= kDrained) last = doing.span;
    }
    const bool recovered = last.valid() && called - end_of(last) > at(last).duration;
    return recovered ? SpanId() : last;
  }

  SpanId next_after(SimTime time) const {
    const auto next =
        std::partition_point(begins_.begin(), begins_.end(), [&](SpanId id) { return at(id).start < time; });
    if (next != begins_.end()) return *next;
    return after_ != s_.work.end() ? *after_ : SpanId();
  }

  void idle(Interval part) {
    const SpanId next = next_after(part.end);
    const SpanId call = next.valid() ? call_of(next) : SpanId();
    const auto add = [&](Interval time, TimeUse use, SpanId host) {
      if (time.begin < time.end) stretches_.push_back({time, use, next, host});
    };
    // A launch is one when its call returns: calls may take longer than the kernels that they launch.
    if (!call.valid() || end_of(call) <= part.begin) {
      recovery_ = 0;
      const bool soon = next.valid() && part.end - part.begin < kSoon;
      return add(part, soon ? TimeUse::KernelGap : TimeUse::Other, call);
    }
    const SimTime called = std::clamp(at(call).start, part.begin, part.end);
    note_drain(at(call).lane, part.begin);
    for (const HostThreads::Doing& doing : s_.threads.doing(at(call).lane, part.begin, called))
      host_stretch(doing, add);
    host_stretch({{called, part.end}, HostUse::Issue, call}, add);
  }

  /// The device ran dry while the host waited for it: as long as it waited, the host would have been ahead.
  void note_drain(LaneId lane, SimTime dry) {
    const HostThreads::Doing wait = drain_before(lane, dry);
    if (wait.span.valid()) recovery_ = dry - at(wait.span).start, recovered_from_ = wait;
  }

  /// Of the driver's calls for memory those that give back wait for the device.
  HostThreads::Doing drain_before(LaneId lane, SimTime dry) const {
    for (const HostThreads::Doing& doing : s_.threads.doing(lane, dry - 1, dry + 1)) {
      const bool waits = doing.use == HostUse::Synchronise || doing.use == HostUse::Allocator;
      if (waits && dry - at(doing.span).start >= kDrained) return doing;
    }
    return {};
  }

  /// After a wait the host has lost its lead: until it has it again, the wait is what the device waits for.
  template <class Add>
  void host_stretch(HostThreads::Doing doing, const Add& add) {
    if (recovery_ > 0 && (doing.use == HostUse::Issue || doing.use == HostUse::Nothing)) {
      const SimTime until = std::min(doing.time.end, doing.time.begin + recovery_);
      recovery_ -= until - doing.time.begin;
      add({doing.time.begin, until}, use_of_host(recovered_from_.use), recovered_from_.span);
      doing.time.begin = until;
    }
    add(doing.time, use_of_host(doing.use), doing.span);
  }

  const Source& s_;
  Interval window_;
  std::vector<SpanId> compute_, comm_, copies_, begins_;
  std::vector<SpanId>::const_iterator after_;  // what begins after the step
  std::size_t comm_at_ = 0, copies_at_ = 0;
  SimTime last_backward_ = 0, first_compute_ = std::numeric_limits<SimTime>::max();
  SimDuration recovery_ = 0;
  HostThreads::Doing recovered_from_;
  bool waited_prefetch_ = false;  // in this gap
  std::vector<UseStretch> stretches_;
};

}  // namespace

StepAccountant::StepAccountant(const Timeline& timeline, std::int32_t rank,
                               const std::vector<CollectiveMeeting>& meetings)
    : parts_(std::make_unique<Parts>(timeline, rank, meetings)) {}
StepAccountant::~StepAccountant() = default;

std::size_t StepAccountant::steps() const { return parts_->windows.size(); }

std::size_t StepAccountant::steady() const {
  const TimelineIteration& steady = steady_iteration(parts_->t, parts_->iterations);
  return static_cast<std::size_t>(&steady - parts_->iterations.data());
}

Interval StepAccountant::window(std::size_t step) const { return parts_->windows[step]; }
const HostThreads& StepAccountant::threads() const { return parts_->threads; }
SpanId StepAccountant::call_of(SpanId work) const { return parts_->call_of(work); }
const std::vector<SpanId>& StepAccountant::work() const { return parts_->work; }
bool StepAccountant::was_prefetched(SpanId collective) const { return parts_->prefetched(collective); }

std::vector<SpanId> StepAccountant::work_in(std::size_t step) const {
  const Interval window = parts_->windows[step];
  const auto starts_before = [&](SimTime time) {
    return std::partition_point(parts_->work.begin(), parts_->work.end(),
                                [&](SpanId id) { return parts_->at(id).start < time; });
  };
  // The last step ends with its last work, however short.
  const bool last = step + 1 == parts_->windows.size();
  return {starts_before(window.begin), starts_before(window.end + (last ? 1 : 0))};
}

StepAccount StepAccountant::account(std::size_t step) const {
  StepAccount account;
  account.rank = parts_->rank;
  account.iteration = parts_->iterations[step].index;
  account.time = parts_->windows[step];
  const Account::Source source{parts_->t,
                               parts_->threads,
                               parts_->work,
                               parts_->calls,
                               parts_->all_there,
                               parts_->before_on_lane,
                               [this](SpanId id) { return was_prefetched(id); }};
  account.stretches = Account(source, account.time).take();
  for (const UseStretch& stretch : account.stretches)
    account.sums[static_cast<std::size_t>(stretch.use)] += stretch.time.end - stretch.time.begin;
  return account;
}

}  // namespace foreshard
