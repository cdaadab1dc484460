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

}  // namespace

Exposure find_exposure(const Activity& activity, SimTime begin, SimTime end) {
  Exposure result;
  std::vector<ComputeGap> gaps;
  SimTime last_backward = begin;
  for (const ComputeGap& gap : activity.gaps) {
    if (gap.end <= begin || gap.begin >= end) continue;
    gaps.push_back({std::max(gap.begin, begin), std::min(gap.end, end), gap.host_late, gap.phase});
    if (is_backward(gap.phase)) last_backward = gap.end;
  }
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
        const Window part{std::max(window.begin, gap->begin), std::min(window.end, gap->end)};
        comm.exposed += part.end - part.begin;
        exposed.push_back(part);
        add(result.causes, cause_of(run, *gap, first_gather, last_backward), kind, part.end - part.begin);
      }
    }
    if (comm.count > 0) result.comm.push_back(comm);
  }
  std::sort(exposed.begin(), exposed.end(), [](const Window& a, const Window& b) { return a.begin < b.begin; });
  SimTime covered = begin;
  for (const Window& part : exposed) {
    result.exposed += std::max<SimDuration>(0, part.end - std::max(part.begin, covered));
    covered = std::max(covered, part.end);
  }
  std::stable_sort(result.causes.begin(), result.causes.end(),
                   [](const ExposedCause& a, const ExposedCause& b) { return a.time > b.time; });
  return result;
}

}  // namespace foreshard
