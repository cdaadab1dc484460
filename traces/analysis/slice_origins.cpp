#include "traces/analysis/slice_origins.h"

#include <algorithm>
#include <map>

namespace foreshard {
namespace {

constexpr std::string_view kPython = " python";

std::uint64_t instruction_key(std::int32_t rank, std::int32_t instruction) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(rank)) << 32U) |
         static_cast<std::uint32_t>(instruction);
}

}  // namespace

std::string_view module_of_frame(std::string_view frame) {
  if (!frame.starts_with(kModuleFrame) || frame.find("FullyShardedDataParallel_") != std::string_view::npos) return {};
  return frame.substr(kModuleFrame.size());
}

SliceOrigins::SliceOrigins(const Timeline& timeline) : t_(timeline) {
  find_threads();
  find_parents();
  find_arrows();
}

void SliceOrigins::find_threads() {
  host_.assign(t_.lanes.size(), false);
  python_.assign(t_.lanes.size(), -1);
  of_lane_.assign(t_.lanes.size(), {0, 0});
  std::map<std::pair<std::int32_t, std::string_view>, std::int32_t> frames;
  for (std::size_t i = 0; i < t_.lanes.size(); ++i) {
    const std::string_view stream = t_.lanes[i].stream;
    host_[i] = stream == "host" || stream.starts_with("host ");
    if (host_[i] && stream.ends_with(kPython))
      frames[{t_.lanes[i].rank, stream.substr(0, stream.size() - kPython.size())}] = static_cast<std::int32_t>(i);
  }
  for (std::size_t i = 0; i < t_.lanes.size(); ++i) {
    const auto found = frames.find({t_.lanes[i].rank, t_.lanes[i].stream});
    if (host_[i] && found != frames.end()) python_[i] = found->second;
  }
}

void SliceOrigins::find_parents() {
  parents_.assign(t_.spans.size(), -1);
  std::vector<std::int32_t> open;
  for (std::size_t begin = 0, end = 0; begin < t_.spans.size(); begin = end) {
    const LaneId lane = t_.spans[begin].lane;
    open.clear();
    for (end = begin; end < t_.spans.size() && t_.spans[end].lane == lane; ++end) {
      if (!lane.valid() || !host_[lane.index()]) continue;
      const Span& span = t_.spans[end];
      while (!open.empty()) {
        const Span& last = t_.spans[static_cast<std::size_t>(open.back())];
        if (last.start + last.duration > span.start) break;
        open.pop_back();
      }
      parents_[end] = open.empty() ? -1 : open.back();
      open.push_back(static_cast<std::int32_t>(end));
    }
    if (lane.valid()) of_lane_[lane.index()] = {begin, end};
  }
}

void SliceOrigins::find_arrows() {
  for (const Flow& flow : t_.flows) {
    if (!flow.from.valid() || !flow.to.valid() || !is_host(flow.from)) continue;
    if (is_host(flow.to)) {
      forwards_.push_back({flow.to.value, flow.from.value});
      continue;
    }
    calls_.push_back({flow.to.value, flow.from.value});
    works_.push_back({flow.from.value, flow.to.value});
    const Span& work = at(flow.to);  // of our own timelines only an instruction's first work has an arrow
    if (work.instruction.valid() && work.lane.valid())
      of_instruction_.emplace(instruction_key(t_.lanes[work.lane.index()].rank, work.instruction.value),
                              flow.from.value);
  }
  const auto by_key = [](const Arrow& a, const Arrow& b) { return a.key < b.key; };
  for (std::vector<Arrow>* arrows : {&calls_, &works_, &forwards_})
    if (!std::is_sorted(arrows->begin(), arrows->end(), by_key))
      std::stable_sort(arrows->begin(), arrows->end(), by_key);
}

SpanId SliceOrigins::call_of(SpanId work) const {
  const auto found = std::lower_bound(calls_.begin(), calls_.end(), work.value,
                                      [](const Arrow& arrow, std::int32_t wanted) { return arrow.key < wanted; });
  if (found != calls_.end() && found->key == work.value) return SpanId(found->other);
  if (!at(work).instruction.valid() || !at(work).lane.valid()) return {};
  const auto shared =
      of_instruction_.find(instruction_key(t_.lanes[at(work).lane.index()].rank, at(work).instruction.value));
  return shared == of_instruction_.end() ? SpanId() : SpanId(shared->second);
}

SpanId SliceOrigins::innermost(std::int32_t lane, SimTime time) const {
  const auto [begin, end] = of_lane_[static_cast<std::size_t>(lane)];
  const auto first = t_.spans.begin();
  const auto after =
      std::partition_point(first + static_cast<std::ptrdiff_t>(begin), first + static_cast<std::ptrdiff_t>(end),
                           [&](const Span& span) { return span.start <= time; });
  auto index = static_cast<std::int32_t>(after - first) - 1;
  while (index >= static_cast<std::int32_t>(begin)) {
    const Span& span = t_.spans[static_cast<std::size_t>(index)];
    if (span.start + span.duration > time || (span.start == time && span.duration == 0)) return SpanId(index);
    index = parents_[static_cast<std::size_t>(index)];
  }
  return {};
}

std::vector<SpanId> SliceOrigins::chain(std::int32_t lane, SimTime time) const {
  std::vector<SpanId> all;
  if (lane < 0) return all;
  for (SpanId span = innermost(lane, time); span.valid(); span = parent(span)) all.push_back(span);
  return all;
}

SpanId SliceOrigins::forward_of(const std::vector<SpanId>& chain) const {
  for (const SpanId span : chain) {
    const auto found = std::lower_bound(forwards_.begin(), forwards_.end(), span.value,
                                        [](const Arrow& arrow, std::int32_t wanted) { return arrow.key < wanted; });
    if (found != forwards_.end() && found->key == span.value) return SpanId(found->other);
  }
  return {};
}

void SliceOrigins::add_modules(SliceOrigin& origin, const Span& span) const {
  for (const SpanId frame : origin.frames) {
    const std::string_view module = module_of_frame(t_.name_of(at(frame).name));
    if (!module.empty()) origin.modules.emplace_back(module);
  }
  std::reverse(origin.modules.begin(), origin.modules.end());
  if (!origin.modules.empty() || span.unit < 0 || static_cast<std::size_t>(span.unit) >= t_.units.size()) return;
  const std::string& path = t_.units[static_cast<std::size_t>(span.unit)];
  if (path.empty()) return origin.modules.push_back("root");
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.size(), path.find('.', begin));
    origin.modules.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
}

SliceOrigin SliceOrigins::of(SpanId span) const {
  SliceOrigin origin;
  if (!span.valid() || span.index() >= t_.spans.size() || !at(span).lane.valid()) return origin;
  origin.call = is_host(span) ? span : call_of(span);
  if (!origin.call.valid()) {
    add_modules(origin, at(span));
    return origin;
  }
  const Span& call = at(origin.call);
  std::vector<SpanId> outer;
  for (SpanId up = parent(origin.call); up.valid(); up = parent(up)) outer.push_back(up);
  const bool in_frames = t_.lanes[call.lane.index()].stream.ends_with(kPython);
  if (in_frames) {
    origin.frames = std::move(outer);
    if (!origin.frames.empty() || is_host(span)) origin.frames.insert(origin.frames.begin(), origin.call);
  } else {
    for (const SpanId up : outer)
      (at(up).kind == SpanKind::Annotation ? origin.ranges : origin.operators).push_back(up);
    outer.insert(outer.begin(), origin.call);
    origin.forward = forward_of(outer);
    origin.frames = chain(python_[call.lane.index()], call.start);
    if (origin.frames.empty() && origin.forward.valid())
      origin.frames = chain(python_[at(origin.forward).lane.index()], at(origin.forward).start);
  }
  add_modules(origin, at(span));
  return origin;
}

std::vector<SpanId> SliceOrigins::around(LaneId host, SimTime time) const {
  std::vector<SpanId> all;
  if (!host.valid() || !host_[host.index()]) return all;
  all = chain(host.value, time);
  const std::vector<SpanId> frames = chain(python_[host.index()], time);
  all.insert(all.end(), frames.begin(), frames.end());
  std::reverse(all.begin(), all.end());
  // Frames and operators nest: of equal beginnings the longer is outside, a frame before an operator.
  std::stable_sort(all.begin(), all.end(), [&](SpanId a, SpanId b) {
    if (at(a).start != at(b).start) return at(a).start < at(b).start;
    return at(a).duration > at(b).duration;
  });
  return all;
}

std::vector<SpanId> SliceOrigins::work_of(SpanId span, std::size_t limit) const {
  std::vector<SpanId> work;
  if (!is_host(span)) return work;
  const Span& outer = at(span);
  std::vector<std::int32_t> lanes{outer.lane.value};
  for (std::size_t lane = 0; lane < python_.size(); ++lane)
    if (python_[lane] == outer.lane.value) lanes.push_back(static_cast<std::int32_t>(lane));  // its operators
  for (const std::int32_t lane : lanes) {
    const auto [begin, end] = of_lane_[static_cast<std::size_t>(lane)];
    const bool own = lane == outer.lane.value;
    auto index =
        own ? span.index()
            : static_cast<std::size_t>(std::partition_point(t_.spans.begin() + static_cast<std::ptrdiff_t>(begin),
                                                            t_.spans.begin() + static_cast<std::ptrdiff_t>(end),
                                                            [&](const Span& s) { return s.start < outer.start; }) -
                                       t_.spans.begin());
    for (; index < end && work.size() < limit; ++index) {
      const Span& inner = t_.spans[index];
      if (index != span.index() && inner.start >= outer.start + outer.duration) break;
      const auto key = static_cast<std::int32_t>(index);
      auto found = std::lower_bound(works_.begin(), works_.end(), key,
                                    [](const Arrow& arrow, std::int32_t wanted) { return arrow.key < wanted; });
      for (; found != works_.end() && found->key == key && work.size() < limit; ++found)
        work.emplace_back(found->other);
    }
  }
  return work;
}

}  // namespace foreshard
