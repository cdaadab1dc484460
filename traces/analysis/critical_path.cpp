#include "traces/analysis/critical_path.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>

#include "traces/analysis/range_statistics.h"
#include "traces/timeline/intervals.h"

namespace foreshard {
namespace {

constexpr std::array<std::string_view, 4> kCauses{"work", "host", "launch", "gap"};

constexpr SimDuration kBlocking = 50 * kMicrosecond;  // a call of the runtime that only queues takes less
constexpr SimDuration kReturned = 20 * kMicrosecond;  // within which a call comes back when what it waits for is done
constexpr SimDuration kHandOver = 10 * kMicrosecond;  // a thread that has no slice for longer had another one's turn

/// A call into the driver, as opposed to an operator: only those are held back by the device.
bool is_runtime_call(std::string_view name) { return name.starts_with("cu") || name.starts_with("hip"); }

class PathFinder {
 public:
  PathFinder(const Timeline& timeline, std::int32_t rank, SimTime begin, SimTime end)
      : t_(timeline), begin_(begin), end_(end) {
    for (std::size_t i = 0; i < t_.spans.size(); ++i) {
      const Span& span = t_.spans[i];
      if (!span.lane.valid() || t_.lanes[span.lane.index()].rank != rank) continue;
      if (span.start < begin || span.start + span.duration > end) continue;
      const SpanId id(i);
      if (is_device_work(span.kind)) by_end_.push_back(id);
      if (span.kind == SpanKind::HostWait) waits_[span.lane.value].push_back(id);
      if (span.kind != SpanKind::HostIssue && span.kind != SpanKind::HostWait) continue;
      // Of simulated and of our own recordings every slice is an instruction: none of them waits unsaid.
      const bool blocks = span.kind == SpanKind::HostIssue && !span.instruction.valid() && span.duration >= kBlocking &&
                          is_runtime_call(t_.name_of(span.name));
      if (blocks) waits_[span.lane.value].push_back(id);
      if (!t_.lanes[span.lane.index()].stream.ends_with("python")) add_busy(id);
    }
    std::stable_sort(by_end_.begin(), by_end_.end(), [&](SpanId a, SpanId b) { return end_of(a) < end_of(b); });
    for (const Flow& flow : t_.flows) {
      if (flow.from.valid() && flow.to.valid() && is_device_work(at(flow.to).kind)) call_of_[flow.to.value] = flow.from;
    }
    for (auto& [lane, waits] : waits_)
      std::stable_sort(waits.begin(), waits.end(), [&](SpanId a, SpanId b) { return end_of(a) < end_of(b); });
  }

  std::vector<PathStep> find() {
    std::optional<SpanId> work = ended_before(end_, begin_);
    // Every round goes back in time or the path is done: at most one step a span.
    for (std::size_t rounds = 0; work && rounds <= t_.spans.size(); ++rounds) work = step_from(*work);
    std::reverse(path_.begin(), path_.end());
    return std::move(path_);
  }

 private:
  const Span& at(SpanId id) const { return t_.spans[id.index()]; }
  SimTime end_of(SpanId id) const { return at(id).start + at(id).duration; }

  void add(PathCause cause, SpanId span, SimTime begin, SimTime end) {
    if (end > begin) path_.push_back({cause, span, begin, end});
    reached_ = std::min(reached_, begin);
  }

  /// The work that ended last in (after, until]; of zero length only if it began before.
  std::optional<SpanId> ended_before(SimTime until, SimTime after, std::optional<SpanId> other_than = {}) const {
    auto it = std::partition_point(by_end_.begin(), by_end_.end(), [&](SpanId id) { return end_of(id) <= until; });
    while (it != by_end_.begin()) {
      --it;
      if (end_of(*it) < after) break;
      if (*it != other_than && at(*it).start < until) return *it;
    }
    return std::nullopt;
  }

  /// Puts the work on the path, then what it waited for; gives the work before it on the path.
  std::optional<SpanId> step_from(SpanId work) {
    const Span& span = at(work);
    add(PathCause::Work, work, span.start, std::min(end_of(work), reached_));
    const auto call = call_of_.find(work.value);
    const std::optional<SpanId> before = ended_before(span.start, begin_, work);
    const SimTime ended = before ? end_of(*before) : begin_;
    if (call == call_of_.end() || at(call->second).start < begin_) {
      if (before) add(PathCause::Gap, work, ended, span.start);
      return before;
    }
    // Work that ended after the launch had begun held the kernel back longer than the host did.
    const SimTime called = std::min(at(call->second).start, span.start);
    if (before && ended >= called) {
      add(PathCause::Gap, work, ended, span.start);
      return before;
    }
    add(PathCause::Launch, work, called, span.start);
    return host_from(call->second, called);
  }

  /// Where a thread has slices: the outermost ones, those that touch as one.
  struct Busy {
    Interval time;
    SpanId last;  // of the stretch
  };

  /// REQUIRES that a lane's slices come by start, as they stand in a timeline.
  void add_busy(SpanId id) {
    std::vector<Busy>& busy = busy_[at(id).lane.value];
    const Interval time{at(id).start, end_of(id)};
    if (!busy.empty() && time.begin <= busy.back().time.end + kHandOver) {
      if (time.end > busy.back().time.end) busy.back().last = id;
      busy.back().time.end = std::max(busy.back().time.end, time.end);
    } else {
      busy.push_back({time, id});
    }
  }

  /// The stretch of the lane that holds or precedes the moment.
  const Busy* busy_at(std::int32_t lane, SimTime time) const {
    const auto busy = busy_.find(lane);
    if (busy == busy_.end()) return nullptr;
    const auto after = std::partition_point(busy->second.begin(), busy->second.end(),
                                            [&](const Busy& b) { return b.time.begin < time; });
    return after == busy->second.begin() ? nullptr : &*std::prev(after);
  }

  /// The last of the other threads to stop before `begin`, where the thread took its turn. It must have worked while
  /// this one had nothing: a thread that worked all along handed nothing over.
  const Busy* handed_over(std::int32_t lane, SimTime begin) const {
    const Busy* before = busy_at(lane, begin);
    const SimTime since = before != nullptr ? before->time.end : begin_;
    const Busy* best = nullptr;
    for (const auto& [other, stretches] : busy_) {
      if (other == lane) continue;
      const Busy* there = busy_at(other, begin);
      if (there == nullptr || there->time.end <= since || there->time.end > begin + kHandOver) continue;
      if (best == nullptr || there->time.end > best->time.end) best = there;
    }
    return best;
  }

  /// The device's work for which the thread waited last in [from, time), and the end of that wait.
  std::optional<SpanId> waited_for(std::int32_t lane, SimTime from, SimTime time) const {
    const auto waits = waits_.find(lane);
    if (waits == waits_.end()) return std::nullopt;
    auto it =
        std::partition_point(waits->second.begin(), waits->second.end(), [&](SpanId id) { return end_of(id) <= time; });
    while (it != waits->second.begin()) {
      const SpanId wait = *--it;
      if (end_of(wait) <= from) break;
      const auto awaited = ended_before(end_of(wait), at(wait).start);
      if (!awaited) continue;  // it came back at once: nothing was waited for
      // A launch returns when the queue has room again: just then something ended.
      if (at(wait).kind == SpanKind::HostIssue && end_of(wait) - end_of(*awaited) > kReturned) continue;
      return awaited;
    }
    return std::nullopt;
  }

  /// Back along the thread to where it last waited for the device, or took over from another thread.
  std::optional<SpanId> host_from(SpanId call, SimTime time) {
    SpanId led_to = call;
    for (std::size_t rounds = 0; rounds <= t_.spans.size(); ++rounds) {
      const std::int32_t lane = at(led_to).lane.value;
      const Busy* own = busy_at(lane, time);
      const SimTime turn =
          own != nullptr && own->time.end + kHandOver >= time ? std::max(own->time.begin, begin_) : time;
      if (const auto awaited = waited_for(lane, turn, time)) {
        add(PathCause::Host, led_to, end_of(*awaited), time);
        return awaited;
      }
      const Busy* before = turn > begin_ ? handed_over(lane, turn) : nullptr;
      // Nobody else worked: what the thread did without slices (Python) counts as its own.
      if (before == nullptr && turn > begin_) before = busy_at(lane, turn);
      if (before == nullptr || std::min(before->time.end, turn) >= time) break;
      const SimTime reached = std::min(before->time.end, turn);
      add(PathCause::Host, led_to, reached, time);
      led_to = before->last;
      time = reached;
    }
    if (const auto awaited = waited_for(at(led_to).lane.value, begin_, time)) {
      add(PathCause::Host, led_to, end_of(*awaited), time);
      return awaited;
    }
    add(PathCause::Host, led_to, begin_, time);
    return std::nullopt;
  }

  const Timeline& t_;
  SimTime begin_, end_, reached_ = std::numeric_limits<SimTime>::max();
  std::vector<SpanId> by_end_;
  std::unordered_map<std::int32_t, SpanId> call_of_;
  std::unordered_map<std::int32_t, std::vector<SpanId>> waits_;  // by lane, by end
  std::map<std::int32_t, std::vector<Busy>> busy_;               // by lane, in order of time
  std::vector<PathStep> path_;
};

}  // namespace

std::string_view path_cause_name(PathCause cause) { return kCauses[static_cast<std::size_t>(cause)]; }

std::vector<PathStep> find_critical_path(const Timeline& timeline, std::int32_t rank, SimTime begin, SimTime end) {
  return PathFinder(timeline, rank, begin, end).find();
}

}  // namespace foreshard
