#include "traces/analysis/host_threads.h"

#include <algorithm>
#include <array>

#include "traces/timeline/exposed_comm.h"
#include "traces/timeline/trace_names.h"

namespace foreshard {
namespace {

constexpr std::array<std::string_view, 6> kUses{"issue", "data", "synchronise", "allocator", "limiter", "nothing"};
constexpr SimDuration kBlockingCopy = 50 * kMicrosecond;  // a call that only queues a copy takes less

bool is_host(const Span& span) {
  return span.kind == SpanKind::HostIssue || span.kind == SpanKind::HostWait || span.kind == SpanKind::Annotation;
}

}  // namespace

std::string_view host_use_name(HostUse use) { return kUses[static_cast<std::size_t>(use)]; }

HostUse host_use_of_name(std::string_view name) {
  if (contains(name, "DataLoader")) return HostUse::Data;
  if (contains(name, "rate_limiter")) return HostUse::Limiter;
  for (const std::string_view call : {"cudaMalloc", "cudaFree", "cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease",
                                      "cuMemSetAccess", "hipMalloc", "hipFree"}) {
    // Those of pinned and of asynchronous memory do not wait for the device.
    if (name.starts_with(call) && !contains(name, "Async") && !contains(name, "Host")) return HostUse::Allocator;
  }
  return HostUse::Issue;
}

HostThreads::HostThreads(const Timeline& timeline, std::int32_t rank) : t_(timeline) {
  for (const std::string& name : t_.names) name_use_.push_back(host_use_of_name(name));
  for (std::size_t i = 0; i < t_.spans.size(); ++i) {
    const Span& span = t_.spans[i];
    if (!span.lane.valid() || !is_host(span)) continue;
    const Lane& lane = t_.lanes[span.lane.index()];
    if (lane.rank != rank || !lane.stream.starts_with("host") || lane.stream.ends_with("python")) continue;
    threads_[span.lane.value].spans.emplace_back(i);
  }
  for (auto& entry : threads_) {
    auto& thread = entry.second;
    std::vector<std::int32_t> open;
    for (std::size_t i = 0; i < thread.spans.size(); ++i) {
      const SimTime start = at(thread.spans[i]).start;
      const auto ended = [&](std::int32_t o) {
        const Span& span = at(thread.spans[static_cast<std::size_t>(o)]);
        return span.start + span.duration <= start;
      };
      while (!open.empty() && ended(open.back())) open.pop_back();
      thread.parents.push_back(open.empty() ? -1 : open.back());
      open.push_back(static_cast<std::int32_t>(i));
    }
  }
}

std::int32_t HostThreads::index_at(const Thread& thread, SimTime time) const {
  const auto after =
      std::partition_point(thread.spans.begin(), thread.spans.end(), [&](SpanId id) { return at(id).start <= time; });
  auto index = static_cast<std::int32_t>(after - thread.spans.begin()) - 1;
  while (index >= 0) {
    const Span& span = at(thread.spans[static_cast<std::size_t>(index)]);
    if (span.start + span.duration > time) return index;
    index = thread.parents[static_cast<std::size_t>(index)];
  }
  return -1;
}

SpanId HostThreads::innermost(LaneId lane, SimTime time) const {
  const auto thread = threads_.find(lane.value);
  if (thread == threads_.end()) return {};
  const std::int32_t index = index_at(thread->second, time);
  return index < 0 ? SpanId() : thread->second.spans[static_cast<std::size_t>(index)];
}

SpanId HostThreads::parent(SpanId span) const {
  const auto thread = threads_.find(at(span).lane.value);
  if (thread == threads_.end()) return {};
  const auto& spans = thread->second.spans;
  const auto found = std::lower_bound(spans.begin(), spans.end(), span);  // spans of a lane stand by start
  if (found == spans.end() || *found != span) return {};
  const std::int32_t index = thread->second.parents[static_cast<std::size_t>(found - spans.begin())];
  return index < 0 ? SpanId() : spans[static_cast<std::size_t>(index)];
}

SpanId HostThreads::operator_of(SpanId call) const {
  SpanId best = call;
  for (SpanId outer = parent(call); outer.valid(); outer = parent(outer)) {
    if (at(outer).kind != SpanKind::Annotation) best = outer;
  }
  return best;
}

HostUse HostThreads::use_of(const Span& span) const {
  const HostUse named = span.name.valid() ? name_use_[span.name.index()] : HostUse::Issue;
  if (named != HostUse::Issue) return named;
  if (is_limiter_wait(t_, span)) return HostUse::Limiter;
  if (span.kind == SpanKind::HostWait) return HostUse::Synchronise;
  const std::string_view name = t_.name_of(span.name);
  const bool copy = name.starts_with("cudaMemcpy") || name.starts_with("hipMemcpy");
  return copy && span.duration >= kBlockingCopy ? HostUse::Synchronise : HostUse::Issue;
}

HostThreads::Doing HostThreads::doing_at(const Thread& thread, SimTime time, SimTime end) const {
  std::int32_t index = index_at(thread, time);
  const auto after =
      std::partition_point(thread.spans.begin(), thread.spans.end(), [&](SpanId id) { return at(id).start <= time; });
  if (after != thread.spans.end()) end = std::min(end, at(*after).start);
  if (index < 0) return {{time, end}, HostUse::Nothing, {}};
  const SpanId inner = thread.spans[static_cast<std::size_t>(index)];
  end = std::min(end, at(inner).start + at(inner).duration);
  Doing doing{{time, end}, HostUse::Issue, inner};
  // The outermost that is no plain work names it: a wait inside the limiter's range is the limiter's.
  for (; index >= 0; index = thread.parents[static_cast<std::size_t>(index)]) {
    const SpanId id = thread.spans[static_cast<std::size_t>(index)];
    const HostUse use = use_of(at(id));
    if (use != HostUse::Issue) doing.use = use, doing.span = id;
  }
  return doing;
}

std::vector<HostThreads::Doing> HostThreads::doing(LaneId lane, SimTime begin, SimTime end) const {
  std::vector<Doing> all;
  const auto add = [&](const Doing& doing) {
    if (!all.empty() && all.back().use == doing.use && all.back().span == doing.span)
      all.back().time.end = doing.time.end;
    else
      all.push_back(doing);
  };
  const auto own = threads_.find(lane.value);
  while (begin < end) {
    Doing doing{{begin, end}, HostUse::Nothing, {}};
    if (own != threads_.end()) doing = doing_at(own->second, begin, end);
    for (const auto& [other, thread] : threads_) {
      if (doing.use != HostUse::Nothing) break;
      if (other == lane.value) continue;
      const Doing there = doing_at(thread, begin, doing.time.end);
      if (there.use != HostUse::Issue && there.use != HostUse::Nothing)
        doing = there;
      else
        doing.time.end = there.time.end;
    }
    add(doing);
    begin = doing.time.end;
  }
  return all;
}

}  // namespace foreshard
