#include "traces/analysis/critical_path.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <unordered_map>

#include "traces/analysis/range_statistics.h"

namespace foreshard {
namespace {

constexpr std::array<std::string_view, 4> kCauses{"work", "host", "launch", "gap"};

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

  /// Back along the thread to where it last waited for the device.
  std::optional<SpanId> host_from(SpanId call, SimTime time) {
    const auto waits = waits_.find(at(call).lane.value);
    if (waits != waits_.end()) {
      auto it = std::partition_point(waits->second.begin(), waits->second.end(),
                                     [&](SpanId id) { return end_of(id) <= time; });
      while (it != waits->second.begin()) {
        const SpanId wait = *--it;
        const auto awaited = ended_before(end_of(wait), at(wait).start);
        if (!awaited) continue;  // it came back at once: nothing was waited for
        add(PathCause::Host, call, end_of(*awaited), time);
        return awaited;
      }
    }
    add(PathCause::Host, call, begin_, time);
    return std::nullopt;
  }

  const Timeline& t_;
  SimTime begin_, end_, reached_ = std::numeric_limits<SimTime>::max();
  std::vector<SpanId> by_end_;
  std::unordered_map<std::int32_t, SpanId> call_of_;
  std::unordered_map<std::int32_t, std::vector<SpanId>> waits_;  // by lane, by end
  std::vector<PathStep> path_;
};

}  // namespace

std::string_view path_cause_name(PathCause cause) { return kCauses[static_cast<std::size_t>(cause)]; }

std::vector<PathStep> find_critical_path(const Timeline& timeline, std::int32_t rank, SimTime begin, SimTime end) {
  return PathFinder(timeline, rank, begin, end).find();
}

}  // namespace foreshard
