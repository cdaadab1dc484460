// What a simulation is asked and what it answers: options, steps, memory, communication, causes. Plain values; times in
// nanoseconds, memory in bytes. Out of memory and deadlock are answers (Prediction::oom, ::deadlock), not errors.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/memory_log.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/timeline.h"
#include "core/units.h"
#include "sim/device/allocator/allocator_stats.h"
#include "sim/device/allocator/pool_tape.h"
#include "sim/device/retime.h"
#include "sim/machine/profile.h"
#include "sim/play/work_count.h"

namespace foreshard {

struct PreparedPlan;

/// What is for nothing in a simulation that no schedule gets below: what the host pays for the plan's own instructions,
/// and of every gather what comes before it (the copy into it, its way from the host), or the gather itself and the
/// copies into it and out of it.
enum class Waived : std::uint8_t { Nothing, Sources, Gathers };

struct SimulateOptions {
  bool timeline = false;                // spans and counters are only kept when asked for
  bool per_kernel = true;               // false: one span a segment
  int iterations = 0;                   // 0 = those of the plan, and more until the allocator has settled
  Bytes memory = 0;                     // 0 = the profile's
  bool synchronize_each_step = false;   // the loop waits for the device at the end of every iteration
  bool holders = false;                 // who holds what at the peak: PeakMemory::holders
  MemoryLog* memory_log = nullptr;      // takes down what the allocator did, from wrapping on; outlives the call
  IssueTape* tape = nullptr;            // takes down what is issued from the first iteration on: sim/device/retime.h
  bool empty_cache_after_init = false;  // torch.cuda.empty_cache() once, before the first iteration
  // What the allocator does on the compute stream: written down, or answered as it was
  // (sim/device/allocator/pool_tape.h). Answers do not change; the tapes outlive the call.
  PoolTape* record_pools = nullptr;
  const PoolTape* follow_pools = nullptr;
  // The same of the other streams, by stream: where the same plan is played with other kernels, or on another card.
  std::vector<PoolTape>* record_others = nullptr;
  const std::vector<PoolTape>* follow_others = nullptr;
  Waived waived = Waived::Nothing;
  // Whoever looks for a step shorter than this: where the allocator does not settle and two steps in turn beyond the
  // plan's take longer, no more are played.
  double below_ns = std::numeric_limits<double>::infinity();
  const PreparedPlan* prepared = nullptr;  // of this plan, where it is simulated again and again
};

/// Whether steps that were played, of a plan of so many iterations, are too long by SimulateOptions::below_ns.
bool gives_up(const std::vector<SimDuration>& steps, std::size_t planned, double below_ns);

struct Estimate {
  double value = 0, low = 0, high = 0;  // 90 % interval
};

struct PhaseMemory {
  std::string name;  // forward, backward, clip, optimizer, end
  Bytes peak_allocated = 0, end_allocated = 0, peak_reserved = 0;
  AllocatorStats stats = {};  // when it ended; peaks are those of the phase
};

struct IterationResult {
  int index = 0;
  SimDuration step_time = 0, exposed_comm = 0, host_wait = 0, compute = 0, idle = 0;
  Bytes peak_allocated = 0, peak_active = 0, peak_reserved = 0, peak_requested = 0;
  Bytes end_allocated = 0, end_active = 0, end_reserved = 0, end_requested = 0;
  std::int64_t alloc_retries = 0, ooms = 0;
  std::vector<PhaseMemory> phases;
  AllocatorStats stats;                    // when it ended; peaks are those of the iteration
  Bytes device_used = 0, device_peak = 0;  // taken from the device; the peak is since the start
};

struct CommResult {
  std::string kind;
  std::int64_t count = 0;
  Bytes bytes = 0;
  SimDuration busy = 0, exposed = 0;
};

struct CategoryBytes {
  std::string category;
  Bytes bytes = 0;
};

/// Blocks alive at the peak that one instruction made for one unit in one category; -1: before the first iteration.
struct MemoryHolder {
  std::string unit, category, phase;
  InstructionId instruction;  // of its iteration's, counted over all iterations played
  int iteration = -1;
  std::int64_t blocks = 0;
  Bytes bytes = 0;
};

struct PeakMemory {
  Bytes allocated = 0, active = 0, reserved = 0;  // from wrapping to the end, or to where memory ran out
  Bytes growth = 0;  // of the reserved peak from the last step but one to the last: it goes on
  Estimate outside_allocator;
  Bytes pinned_host = 0;  // beside the device: what offloading pins of the host's memory for this rank, rounded up
  InstructionId instruction;
  std::string unit, phase;
  std::vector<CategoryBytes> categories;  // at the moment of the allocated peak
  std::vector<MemoryHolder> holders;      // then, largest first; only if asked for
};

struct OutOfMemory {
  int iteration = 0;
  InstructionId instruction;
  std::string unit, phase;
  Bytes requested = 0, free = 0;
};

/// Collectives between nodes in the steady step, where the profile is of no measured machine. What a network gives is
/// the least known of such: ports are shared, paths cross (docs/measurements/2026-11-30-network-between-nodes.md).
struct BetweenNodes {
  SimDuration busy = 0;          // at least one of them runs; 0: there are none
  SimDuration exposed = 0;       // ... and nothing is computed
  SimDuration step_at_half = 0;  // the step, about, where the network gives half
};

/// Exposed communication by what made it so.
struct ExposedCause {
  std::string cause;  // "first_gather", "bandwidth", "host", "limiter", "tail", ...
  std::string kind;
  SimDuration time = 0;
};

struct Prediction {
  bool fits = true;
  std::optional<OutOfMemory> oom;
  std::string deadlock;  // empty, or who waits for whom
  Estimate step_time_ns, tokens_per_s;
  Estimate mfu, hfu;            // the time that `work` takes at its peaks, over the step; hfu: recomputation counted in
  std::vector<WorkShare> work;  // of the last step
  Bytes init_allocated = 0, init_active = 0, init_reserved = 0;
  AllocatorStats init;  // before the first iteration
  std::vector<IterationResult> iterations;
  std::optional<IterationResult> unfinished;  // the iteration in which memory ran out: its phases until then
  PeakMemory memory;
  std::vector<CommResult> comm;
  std::vector<ExposedCause> exposed;
  BetweenNodes between_nodes;
  CalibrationLevel level = CalibrationLevel::Datasheet;
  std::vector<std::string> unknown_ops;
  Lifetimes lifetimes = Lifetimes::Built;  // the model's: until when values are named
  bool assumes_choices = false;            // the model's
  std::int64_t events = 0;                 // simulated, for benchmarks
  Timeline timeline;

  // Out of line: dozens of sources copy and drop one.
  Prediction();
  Prediction(const Prediction&);
  Prediction(Prediction&&) noexcept;
  Prediction& operator=(const Prediction&);
  Prediction& operator=(Prediction&&) noexcept;
  ~Prediction();
};

/// How a rank's compute differs from the profile's.
struct RankSpeed {
  double slow = 1.0;         // durations times this
  double jitter = 0.0;       // standard deviation of a segment's duration, relative, drawn anew at every run of one
  std::uint64_t seed = 0;    // equal seeds, equal draws
  std::int64_t members = 1;  // ranks that this one stands for: what counts is the slowest of as many draws
  bool plain() const { return slow == 1.0 && jitter == 0.0; }
  bool operator==(const RankSpeed&) const = default;
};

/// By iteration.
std::vector<SimDuration> steps_of(const Prediction& prediction);

/// What the duration of run `number` of a segment is multiplied by.
double draw_slowness(const RankSpeed& speed, std::uint64_t number);

}  // namespace foreshard
