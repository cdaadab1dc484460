// What calibration measures on a host alone: a rank's own work by the size of its tensors, what a thread needs to go on
// after it slept, and collectives beside compute, where threads and ranks take the cores from each other.
//
// Called on the thread of each rank, by all ranks at once. Nanoseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "core/job.h"
#include "core/units.h"
#include "exec/calibrate/calibration.h"
#include "exec/communicators/communicator.h"
#include "exec/operators/operator_interpreter.h"

namespace foreshard::exec {

/// Copies, the optimizer's step with these options, norms: by the code that trains. Copies go through as many tensors
/// as a unit has, the optimizer through `shards` bytes of parameters, as it does in training: caches keep what they
/// would keep there. `ranks` = parts of a gradient.
std::vector<WorkCurve> time_work(const OptimizerOptions& optimizer, int ranks, Bytes shards, int repeats);

/// From the end of work on one stream of the host backend to the begin of what waits for it on another.
SimDuration time_handover(int repeats);

/// A rank's compute for as long as something is measured beside it: the model's forward pass, again and again, on a
/// thread of its own.
class ComputeLoad {
 public:
  /// Learns what each operator takes with nothing beside it but the other ranks' operators: all ranks at once.
  ComputeLoad(const CalibrationSetup& setup, const OperatorInterpreter& interpreter);
  ~ComputeLoad() { stop(); }
  ComputeLoad(const ComputeLoad&) = delete;
  ComputeLoad& operator=(const ComputeLoad&) = delete;

  void start();
  void stop();
  /// What has been done so far, as time that it takes alone.
  std::int64_t done() const { return done_.load(std::memory_order_relaxed); }

 private:
  template <class Visit>
  void pass(Visit visit) const;

  const CalibrationSetup& setup_;
  const OperatorInterpreter& interpreter_;
  std::vector<std::int64_t> alone_;  // by operator
  std::atomic<std::int64_t> done_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// Adds to curves of this group what they are to the cores: CollectiveCurve::beside_ns, taken_ns, cpu_ns.
void load_collectives(std::vector<CollectiveCurve>& curves, Communicator& group, ComputeLoad& load, int repeats);

}  // namespace foreshard::exec
