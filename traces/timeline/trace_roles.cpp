#include "traces/timeline/trace_roles.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "core/instruction_spans.h"
#include "core/plan.h"
#include "traces/timeline/exposed_comm.h"
#include "traces/timeline/fsdp1_backward.h"
#include "traces/timeline/trace_names.h"

namespace foreshard {
namespace {

constexpr std::string_view kModuleFrame = "nn.Module: ";  // where Python's stack was recorded

/// What a name means, found once for each name.
struct NameMeaning {
  std::optional<FsdpRange> fsdp;
  std::optional<std::int32_t> step;
  bool optimizer = false, backward = false;
  bool module = false;  // a Python frame of a module that is no wrapper
};

NameMeaning meaning_of(std::string_view name) {
  NameMeaning meaning;
  meaning.fsdp = fsdp_range(name);
  meaning.step = profiler_step(name);
  meaning.optimizer = name.starts_with("Optimizer.step");
  meaning.backward = name.starts_with("autograd::engine::evaluate_function");
  meaning.module = name.starts_with(kModuleFrame) && name.find("FullyShardedDataParallel") == std::string_view::npos;
  return meaning;
}

/// What surrounds a moment on a thread.
struct Context {
  std::int32_t unit = -1;
  Phase phase = Phase::None;
  bool in_fsdp = false, copies = false, optimizer = false;
  bool in_forward = false;  // of FSDP1: of some unit
};

/// Where the modules of a thread begin, in order of time.
using ModuleFrames = std::vector<std::pair<SimTime, NameId>>;

struct Frame {
  SimTime end = 0;
  Context context;
};

/// Walks one thread's nested slices in order and tells each one's context.
class ThreadWalk {
 public:
  ThreadWalk(TimelineBuilder& builder, const std::vector<NameMeaning>& meanings, const ModuleFrames& modules)
      : builder_(builder), meanings_(meanings), modules_(modules) {}

  Context enter(const Span& span) {
    while (!frames_.empty() && frames_.back().end <= span.start) frames_.pop_back();
    Context context = frames_.empty() ? Context{} : frames_.back().context;
    if (span.name.valid()) apply(meanings_[span.name.index()], context, span);
    frames_.push_back({span.start + span.duration, context});
    return resolved(context);
  }

 private:
  void apply(const NameMeaning& meaning, Context& context, const Span& span) {
    if (meaning.optimizer) context.phase = Phase::Optimizer, context.optimizer = true;
    if (meaning.backward && context.phase == Phase::None) context.phase = Phase::Backward;
    if (!meaning.fsdp) return;
    const FsdpRange& range = *meaning.fsdp;
    if (range.runtime == FsdpRange::Runtime::Fsdp1)
      apply_fsdp1(range, context, span);
    else
      apply_fsdp2(range, context);
    context.copies = range.copies;
    context.in_fsdp = true;
  }

  void apply_fsdp2(const FsdpRange& range, Context& context) {
    context.unit = builder_.unit(range.unit);
    if (!context.in_fsdp || context.phase == Phase::None || context.phase == Phase::Forward)
      context.phase = range.phase != Phase::None ? range.phase : context.phase;
    const auto leave = [&](std::vector<std::int32_t>& units) {
      const auto found = std::find(units.begin(), units.end(), context.unit);
      if (found != units.end()) units.erase(found, units.end());
    };
    if (range.what == "pre_forward") forward_.push_back(context.unit);
    if (range.what == "post_forward") leave(forward_);
    if (range.what == "pre_backward") backward_.push_back(context.unit);
    if (range.what.starts_with("post_backward")) leave(backward_);
    if (range.what == "root_post_backward_callback") backward_.clear();
  }

  /// FSDP1 does not say the module: its forwards nest, and come in the order of the plan's units. A forward outside the
  /// root's is one of a checkpoint: which one, nothing says.
  void apply_fsdp1(const FsdpRange& range, Context& context, const Span& span) {
    if (range.what == "forward") {
      const bool again = context.phase == Phase::Backward;
      if (!context.in_forward && !again) forwards_ = 0;
      context.in_forward = true;
      context.unit = again ? -1 : builder_.unit(fmt::format("fsdp {}{}", forwards_++, module_in(span)));
    }
    if (range.phase != Phase::None && (range.what != "forward" || context.phase == Phase::None))
      context.phase = range.phase;
  }

  /// " (TransformerBlock_3)": the first module that a unit's forward enters; "" where no stack was recorded.
  std::string module_in(const Span& span) const {
    const auto first = std::lower_bound(modules_.begin(), modules_.end(), std::pair(span.start, NameId()),
                                        [](const auto& a, const auto& b) { return a.first < b.first; });
    if (first == modules_.end() || first->first >= span.start + span.duration) return {};
    return fmt::format(" ({})", std::string_view(builder_.timeline.name_of(first->second)).substr(kModuleFrame.size()));
  }

  /// Between a unit's hooks its module computes.
  Context resolved(Context context) const {
    if (context.in_fsdp || context.optimizer) return context;
    if (!backward_.empty() && (context.phase == Phase::Backward || forward_.empty())) {
      context.unit = backward_.back();
      context.phase = Phase::Backward;
    } else if (!forward_.empty()) {
      context.unit = forward_.back();
      context.phase = Phase::Forward;
    }
    return context;
  }

  TimelineBuilder& builder_;
  const std::vector<NameMeaning>& meanings_;
  std::vector<Frame> frames_;
  std::vector<std::int32_t> forward_, backward_;  // units whose module runs, innermost last
  const ModuleFrames& modules_;
  int forwards_ = 0;  // of FSDP1, in the root's
};

class Roles {
 public:
  Roles(TimelineBuilder& builder, std::int32_t rank) : b_(builder), t_(builder.timeline), rank_(rank) {
    for (const std::string& name : t_.names) meanings_.push_back(meaning_of(name));
    fsdp2_ = std::any_of(meanings_.begin(), meanings_.end(),
                         [](const NameMeaning& m) { return m.fsdp && m.fsdp->runtime == FsdpRange::Runtime::Fsdp2; });
  }

  std::int64_t assign() {
    walk_threads();
    hand_over();
    name_device_lanes();
    name_other_lanes();
    mark_steps();
    return device_;
  }

 private:
  bool is_device(const Span& span) const { return b_.lanes[span.lane.index()].role == LaneRole::Device; }

  void walk_threads() {
    contexts_.resize(t_.spans.size());
    std::map<std::pair<std::int64_t, std::int64_t>, ModuleFrames> modules;  // by process and thread
    const auto thread_of = [&](const Span& span) {
      const auto& about = b_.lanes[span.lane.index()];
      return std::pair(about.process, about.thread);
    };
    for (const Span& span : t_.spans) {
      if (b_.lanes[span.lane.index()].role == LaneRole::HostPython && span.name.valid() &&
          meanings_[span.name.index()].module)
        modules[thread_of(span)].emplace_back(span.start, span.name);
    }
    std::optional<ThreadWalk> walk;
    LaneId lane;
    for (std::size_t i = 0; i < t_.spans.size(); ++i) {
      Span& span = t_.spans[i];
      if (b_.lanes[span.lane.index()].role != LaneRole::Host) continue;
      if (span.lane != lane) walk.emplace(b_, meanings_, modules[thread_of(span)]);
      lane = span.lane;
      contexts_[i] = walk->enter(span);
      span.unit = contexts_[i].unit;
      span.phase = static_cast<std::int32_t>(contexts_[i].phase);
    }
    join_fsdp1_backward(b_);
    for (std::size_t i = 0; i < t_.spans.size(); ++i) contexts_[i].unit = t_.spans[i].unit;
  }

  /// The device's work belongs to what its launch stood in.
  void hand_over() {
    for (const Flow& flow : t_.flows) {
      Span& work = t_.spans[flow.to.index()];
      if (!is_device(work)) continue;
      const Context& context = contexts_[flow.from.index()];
      work.unit = context.unit;
      work.phase = static_cast<std::int32_t>(context.phase);
      if (work.kind != SpanKind::Compute) continue;
      if (context.optimizer) work.kind = SpanKind::Optimizer;
      if (context.copies) work.kind = SpanKind::Copy;
    }
  }

  struct Tally {
    std::array<SimDuration, static_cast<std::size_t>(kLastSpanKind) + 1> time{};
    SimDuration of(SpanKind kind) const { return time[static_cast<std::size_t>(kind)]; }
  };

  void name_device_lanes() {
    std::vector<Tally> tallies(t_.lanes.size());
    std::map<std::int64_t, SimDuration> busy;
    for (const Span& span : t_.spans) {
      if (!is_device(span)) continue;
      tallies[span.lane.index()].time[static_cast<std::size_t>(span.kind)] += span.duration;
      busy[b_.lanes[span.lane.index()].process] += span.duration + 1;
    }
    SimDuration most = -1;
    for (const auto& [device, time] : busy) {
      if (time > most) device_ = device, most = time;
    }
    const auto take = [&](char letter, auto size) {
      std::size_t best = t_.lanes.size();
      SimDuration largest = 0;
      for (std::size_t i = 0; i < t_.lanes.size(); ++i) {
        if (b_.lanes[i].role != LaneRole::Device || b_.lanes[i].process != device_ || !t_.lanes[i].stream.empty())
          continue;
        if (const SimDuration own = size(tallies[i]); own > largest) best = i, largest = own;
      }
      if (best < t_.lanes.size()) t_.lanes[best].stream.assign(1, letter);
    };
    take('D', [](const Tally& t) { return t.of(SpanKind::Compute) + t.of(SpanKind::Optimizer); });
    take(fsdp2_ ? 'A' : 'U', [](const Tally& t) { return main_share(t, SpanKind::AllGather); });
    take(fsdp2_ ? 'S' : 'G', [](const Tally& t) { return main_share(t, SpanKind::ReduceScatter); });
    take('H', [](const Tally& t) { return main_share(t, SpanKind::AllReduce); });
    take(fsdp2_ ? 'C' : 'Q', [](const Tally& t) { return main_share(t, SpanKind::Copy); });
    for (std::size_t i = 0; i < t_.lanes.size(); ++i) {
      if (b_.lanes[i].role == LaneRole::Device && t_.lanes[i].stream.empty())
        t_.lanes[i].stream = fmt::format("stream {}", b_.lanes[i].thread);
      if (b_.lanes[i].role == LaneRole::Device && b_.lanes[i].process != device_)
        t_.lanes[i].stream = fmt::format("gpu {} {}", b_.lanes[i].process, t_.lanes[i].stream);
    }
  }

  /// The stream's time of that kind if it is there for that kind.
  static SimDuration main_share(const Tally& tally, SpanKind kind) {
    SimDuration all = 0;
    for (const SimDuration time : tally.time) all += time;
    return 2 * tally.of(kind) >= all - tally.of(SpanKind::Wait) ? tally.of(kind) : 0;
  }

  void name_other_lanes() {
    std::vector<std::int64_t> launches(t_.lanes.size(), 0);
    for (const Flow& flow : t_.flows) {
      if (is_device(t_.spans[flow.to.index()])) ++launches[t_.spans[flow.from.index()].lane.index()];
    }
    const auto host = [&](std::size_t lane) { return b_.lanes[lane].role == LaneRole::Host; };
    std::size_t main = t_.lanes.size();
    for (std::size_t i = 0; i < t_.lanes.size(); ++i) {
      const bool first_thread = b_.lanes[i].process == b_.lanes[i].thread;  // where a process begins: Python's
      if (first_thread && launches[i] > 0) launches[i] = std::numeric_limits<std::int64_t>::max();
      if (host(i) && (main == t_.lanes.size() || launches[i] > launches[main])) main = i;
    }
    std::set<std::string> used;
    for (std::size_t i = 0; i < t_.lanes.size(); ++i) {
      const auto& about = b_.lanes[i];
      Lane& lane = t_.lanes[i];
      lane.rank = rank_;
      const bool of_main =
          main < t_.lanes.size() && about.process == b_.lanes[main].process && about.thread == b_.lanes[main].thread;
      if (about.role == LaneRole::Host) lane.stream = i == main ? "host" : fmt::format("host {}", about.thread);
      if (about.role == LaneRole::HostPython)
        lane.stream = of_main ? "host python" : fmt::format("host {} python", about.thread);
      if (about.role == LaneRole::DeviceRanges) lane.stream = stream_of(about) + " ranges";
      if (about.role == LaneRole::Other)
        lane.stream = lane.label.empty() ? fmt::format("row {}", about.thread) : lane.label;
      for (const std::string wanted = lane.stream; !used.insert(lane.stream).second;)
        lane.stream = fmt::format("{} ({})", wanted, used.size());
    }
  }

  std::string stream_of(const TimelineBuilder::LaneAbout& about) const {
    for (std::size_t i = 0; i < t_.lanes.size(); ++i) {
      if (b_.lanes[i].role == LaneRole::Device && b_.lanes[i].process == about.process &&
          b_.lanes[i].thread == about.thread)
        return t_.lanes[i].stream;
    }
    return fmt::format("stream {}", about.thread);
  }

  struct Step {
    std::int32_t index = 0;
    SimTime start = 0, end = 0;
    std::optional<SimTime> begin;  // of its first work on the device
  };

  /// A step begins where its first kernel does; the host issues it earlier.
  void mark_steps() {
    std::vector<Step> steps;
    for (const Span& span : t_.spans) {
      if (!span.name.valid() || b_.lanes[span.lane.index()].role != LaneRole::Host) continue;
      if (const auto index = meanings_[span.name.index()].step)
        steps.push_back({*index, span.start, span.start + span.duration, std::nullopt});
    }
    std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.start < b.start; });
    for (const Flow& flow : t_.flows) {
      const Span& call = t_.spans[flow.from.index()];
      const Span& work = t_.spans[flow.to.index()];
      if (!is_device(work)) continue;
      auto step =
          std::partition_point(steps.begin(), steps.end(), [&](const Step& s) { return s.start <= call.start; });
      if (step == steps.begin() || call.start >= (--step)->end) continue;
      step->begin = std::min(step->begin.value_or(work.start), work.start);
    }
    SimTime before = 0;
    for (const Step& step : steps) {
      before = std::max(before, step.begin.value_or(step.start));
      add_mark(iteration_mark(step.index), before);
      add_mark(issue_mark(step.index, InstructionId(0)), step.start);
    }
    std::stable_sort(t_.marks.begin(), t_.marks.end(),
                     [](const TimeMark& a, const TimeMark& b) { return a.time < b.time; });
  }

  void add_mark(const std::string& name, SimTime time) {
    t_.marks.push_back({time, rank_, NameId(t_.names.size())});
    t_.names.push_back(name);
  }

  TimelineBuilder& b_;
  Timeline& t_;
  std::int32_t rank_;
  std::vector<NameMeaning> meanings_;
  std::vector<Context> contexts_;
  bool fsdp2_ = false;
  std::int64_t device_ = 0;
};

}  // namespace

std::int64_t assign_roles(TimelineBuilder& builder, std::int32_t rank) { return Roles(builder, rank).assign(); }

}  // namespace foreshard
