// Where a rank's time went: busy, compute, communication, how much of it was hidden, and why the device stood idle.
//
// The numbers are those of Meta's Holistic Trace Analysis (HTA), checked against it by benchmarks/peers/trace_hta.py.
// Time that two spans share counts once. Idle time has a cause: the next work had not been launched yet when the one
// before ended (host); it had, and came within `kernel_gap` (kernel); else other. Times in nanoseconds.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/timeline.h"
#include "traces/analysis/critical_path.h"
#include "traces/timeline/intervals.h"

namespace foreshard {

struct AnalysisOptions {
  std::optional<std::int32_t> rank;  // else all
  std::optional<SimTime> from, to;   // spans that begin in [from, to); else all
  SimDuration kernel_gap = 30'000;   // HTA's 30 (of its microseconds): launching the next kernel takes no longer
};

struct IdleTime {
  SimDuration host = 0, kernel = 0, other = 0;
  SimDuration total() const { return host + kernel + other; }
  bool operator==(const IdleTime&) const = default;
};

/// Why no stream of a rank works, stretch by stretch, in order of time.
enum class IdleCause : std::uint8_t { Host, Limiter, Kernel, Other };
struct IdleGap {
  Interval time;
  IdleCause cause = IdleCause::Other;
  bool operator==(const IdleGap&) const = default;
};

struct StreamAnalysis {
  LaneId lane;
  std::int64_t spans = 0;
  SimDuration busy = 0, compute = 0, comm = 0, copies = 0;
  IdleTime idle;  // between its own first and last work. Overlapping kernels count as negative gaps, as HTA does
};

/// Busy time by unit and phase, as in traces/analysis/comparison.h: summed over spans.
struct UnitTime {
  std::string unit;  // "root"; "" = of no unit
  std::int32_t phase = 0;
  std::int64_t spans = 0;
  SimDuration compute = 0, comm = 0, copies = 0;
  Bytes comm_bytes = 0;
  SimDuration busy() const { return compute + comm + copies; }
};

struct CollectiveTime {
  SpanKind kind = SpanKind::AllGather;
  std::int64_t count = 0;
  SimDuration busy = 0, exposed = 0;  // exposed: nothing computes meanwhile
  Bytes bytes = 0;
};

struct MemoryPeak {
  std::string counter, unit;
  std::int64_t peak = 0, at_end = 0;
  SimTime time = 0;
  std::string during;  // the work that ran then, or the host's call
};

struct RankAnalysis {
  std::int32_t rank = 0;
  SimTime begin = 0, end = 0;  // of the first and the last work on a device
  SimDuration busy = 0, compute = 0, comm = 0, overlap = 0;
  IdleTime idle;            // no stream of the rank works
  SimDuration limiter = 0;  // of idle.host: while FSDP's limiter held the thread
  std::vector<StreamAnalysis> streams;
  std::vector<CollectiveTime> collectives;
  std::vector<UnitTime> units;  // longest first
  std::vector<MemoryPeak> memory;
  std::vector<PathStep> critical_path;
  SimDuration length() const { return end - begin; }
  SimDuration exposed() const { return comm - overlap; }
};

/// By rank; a rank without work on a device has none. A stretch in which the host was held back for a part is cut.
std::map<std::int32_t, std::vector<IdleGap>> find_idle_gaps(const Timeline& timeline,
                                                            SimDuration kernel_gap = AnalysisOptions{}.kernel_gap);

/// Errors: no such rank; an empty window. A rank without work on a device has zeros.
Result<std::vector<RankAnalysis>> analyse_timeline(const Timeline& timeline, const AnalysisOptions& options = {});

}  // namespace foreshard
