#include "sim/play/exposure.h"

#include <algorithm>
#include <array>
#include <string>

namespace foreshard {
namespace {

constexpr std::array<InstructionKind, 4> kKinds{InstructionKind::AllGather, InstructionKind::ReduceScatter,
                                                InstructionKind::AllReduce, InstructionKind::Broadcast};

struct Window {
  SimTime begin, end;
};

Window common(const Window& a, const Window& b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

/// Gaps of the compute stream inside the window, cut to it.
std::vector<ComputeGap> gaps_in(const Activity& activity, const Window& of) {
  std::vector<ComputeGap> result;
  for (const ComputeGap& gap : activity.gaps) {
    if (gap.end <= of.begin || gap.begin >= of.end) continue;
    result.push_back({std::max(gap.begin, of.begin), std::min(gap.end, of.end), gap.host_late, gap.phase});
  }
  return result;
}

/// The first gap that ends behind `time`. Gaps lie one behind the other.
std::vector<ComputeGap>::const_iterator gap_behind(const std::vector<ComputeGap>& gaps, SimTime time) {
  return std::lower_bound(gaps.begin(), gaps.end(), time,
                          [](const ComputeGap& g, SimTime begin) { return g.end <= begin; });
}

void add(std::vector<ExposedCause>& causes, const char* cause, InstructionKind kind, SimDuration time) {
  if (time <= 0) return;
  const std::string name(instruction_kind_name(kind));
  for (ExposedCause& known : causes) {
    if (known.cause != cause || known.kind != name) continue;
    known.time += time;
    return;
  }
  causes.push_back({cause, name, time});
}

bool is_backward(Phase phase) {
  return phase == Phase::Backward || phase == Phase::PreBackward || phase == Phase::PostBackward;
}

const char* cause_of(const CollectiveRun& run, const ComputeGap& gap, bool first_gather, SimTime last_backward) {
  if (gap.begin >= last_backward) return "tail";
  if (first_gather) return "first_gather";
  if (run.after_host_wait) return "limiter";
  return gap.host_late ? "host" : "bandwidth";
}

/// The time in which at least one of the windows runs, from `begin` on. They are sorted here.
SimDuration covered_by(std::vector<Window>& windows, SimTime begin) {
  std::sort(windows.begin(), windows.end(), [](const Window& a, const Window& b) { return a.begin < b.begin; });
  SimDuration time = 0;
  SimTime covered = begin;
  for (const Window& part : windows) {
    time += std::max<SimDuration>(0, part.end - std::max(part.begin, covered));
    covered = std::max(covered, part.end);
  }
  return time;
}

/// A collective between nodes.
struct NetworkRun {
  Window window;
  bool backward = false;
  double at_half = 1;
};

/// Those of the window, by start.
std::vector<NetworkRun> network_runs(const Activity& activity, const Window& of) {
  std::vector<NetworkRun> result;
  for (const CollectiveRun& run : activity.collectives) {
    if (run.at_half <= 0 || run.start < of.begin || run.start >= of.end) continue;
    result.push_back({{run.start, std::min(run.end, of.end)}, is_backward(run.phase), run.at_half});
  }
  std::sort(result.begin(), result.end(),
            [](const NetworkRun& a, const NetworkRun& b) { return a.window.begin < b.window.begin; });
  return result;
}

/// When they run while the compute stream stands idle, or on that stream.
std::vector<Window> exposed_windows(const Activity& activity, const Window& of) {
  const std::vector<ComputeGap> gaps = gaps_in(activity, of);
  std::vector<Window> result;
  for (const CollectiveRun& run : activity.collectives) {
    if (run.at_half <= 0 || run.start < of.begin || run.start >= of.end) continue;
    const Window window{run.start, std::min(run.end, of.end)};
    if (run.on_compute) {
      result.push_back(window);
      continue;
    }
    for (auto gap = gap_behind(gaps, window.begin); gap != gaps.end() && gap->begin < window.end; ++gap)
      result.push_back(common(window, {gap->begin, gap->end}));
  }
  return result;
}

/// How long at least one of the windows runs inside of one.
SimDuration covered_inside(const std::vector<Window>& windows, const Window& of) {
  std::vector<Window> parts;
  for (const Window& one : windows) {
    const Window part = common(one, of);
    if (part.begin < part.end) parts.push_back(part);
  }
  return covered_by(parts, of.begin);
}

double mean_at_half(const std::vector<NetworkRun>& runs, const Window& of) {
  double time = 0, at_half = 0;
  for (const NetworkRun& run : runs) {
    if (run.window.begin < of.begin || run.window.begin >= of.end) continue;
    const auto length = static_cast<double>(run.window.end - run.window.begin);
    time += length;
    at_half += length * run.at_half;
  }
  return time > 0 ? at_half / time : 1;
}

}  // namespace

SimDuration NetworkUse::busy() const {
  SimDuration time = 0;
  for (const NetworkPart& part : parts) time += part.busy;
  return time;
}

SimDuration NetworkUse::exposed() const {
  SimDuration time = 0;
  for (const NetworkPart& part : parts) time += part.exposed;
  return time;
}

SimDuration NetworkUse::step_at_half() const {
  auto time = static_cast<double>(apart);
  for (const NetworkPart& part : parts) {
    const double exposes = static_cast<double>(part.length) + (part.at_half - 1) * static_cast<double>(part.exposed);
    time += std::max(exposes, part.at_half * static_cast<double>(part.busy));
  }
  return static_cast<SimDuration>(time);
}

Exposure find_exposure(const Activity& activity, SimTime begin, SimTime end) {
  Exposure result;
  const std::vector<ComputeGap> gaps = gaps_in(activity, {begin, end});
  SimTime last_backward = begin;
  for (const ComputeGap& gap : gaps)
    if (is_backward(gap.phase)) last_backward = gap.end;
  for (const ComputeGap& gap : gaps) result.idle += gap.end - gap.begin;

  std::vector<Window> exposed;
  bool gathered = false;
  for (const InstructionKind kind : kKinds) {
    CommResult comm;
    comm.kind = std::string(instruction_kind_name(kind));
    for (const CollectiveRun& run : activity.collectives) {
      if (run.kind != kind || run.start < begin || run.start >= end) continue;
      ++comm.count;
      comm.bytes += run.bytes;
      comm.busy += run.end - run.start;
      const bool first_gather = kind == InstructionKind::AllGather && !gathered;
      gathered = gathered || kind == InstructionKind::AllGather;
      if (run.on_compute) {
        comm.exposed += run.end - run.start;
        exposed.push_back({run.start, run.end});
        add(result.causes, "compute_stream", kind, run.end - run.start);
        continue;
      }
      const Window window{run.start, std::min(run.end, end)};
      for (auto gap = gap_behind(gaps, window.begin); gap != gaps.end() && gap->begin < window.end; ++gap) {
        const Window part = common(window, {gap->begin, gap->end});
        comm.exposed += part.end - part.begin;
        exposed.push_back(part);
        add(result.causes, cause_of(run, *gap, first_gather, last_backward), kind, part.end - part.begin);
      }
    }
    if (comm.count > 0) result.comm.push_back(comm);
  }
  result.exposed = covered_by(exposed, begin);
  std::stable_sort(result.causes.begin(), result.causes.end(),
                   [](const ExposedCause& a, const ExposedCause& b) { return a.time > b.time; });
  return result;
}

NetworkUse find_network_use(const Activity& activity, SimTime begin, SimTime end) {
  NetworkUse result;
  const std::vector<NetworkRun> runs = network_runs(activity, {begin, end});
  if (runs.empty()) return result;
  std::vector<Window> busy;
  SimTime last = begin;
  for (const NetworkRun& run : runs) {
    busy.push_back(run.window);
    last = std::max(last, run.window.end);
  }
  const std::vector<Window> exposed = exposed_windows(activity, {begin, end});
  for (auto run = runs.begin(); run != runs.end();) {
    const auto next =
        std::find_if(run, runs.end(), [&](const NetworkRun& other) { return other.backward != run->backward; });
    const Window part{run->window.begin, next == runs.end() ? last : next->window.begin};
    result.parts.push_back(
        {part.end - part.begin, covered_inside(busy, part), covered_inside(exposed, part), mean_at_half(runs, part)});
    run = next;
  }
  result.apart = (runs.front().window.begin - begin) + (end - last);
  return result;
}

BetweenNodes find_between_nodes(const Activity& activity, SimTime begin, SimTime end) {
  const NetworkUse use = find_network_use(activity, begin, end);
  if (use.parts.empty()) return {};
  return {use.busy(), use.exposed(), use.step_at_half()};
}

}  // namespace foreshard
