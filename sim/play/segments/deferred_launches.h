// Memory first, then time: while the memory events of a run are played its launches wait, and are placed all at once
// behind them. Inside a run time reaches memory where the driver is asked, where a block begins to wait for other
// streams, and where a poll of those that wait finds one done. Before the first two everything is launched that is due
// (CachingAllocator::before_time_matters); begin() refuses where the third may happen.
//
//   events 0 | events 1 | ... | launches 0 1 2 ...          instead of         events 0 | launch 0 | events 1 | ...
//
// Part of one PlanPlayer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/play/instructions/play_context.h"
#include "sim/play/segments/template_times.h"

namespace foreshard {

/// A list of kernels whose launches may wait: all on the compute stream, its events in the kernels' order.
struct DeferrableList {
  bool possible = false;
  std::vector<std::int32_t> polls;  // allocations before each launch, from the one before it on
  std::int64_t all_polls = 0;
  std::uint8_t workspaces = 0, engine_workspaces = 0;  // BlasWorkspaces' bits: there must be these
};

DeferrableList deferrable_list(const KernelList& list, const std::vector<TimedKernel>& times);

class DeferredLaunches {
 public:
  explicit DeferredLaunches(PlayContext& context);
  ~DeferredLaunches();
  DeferredLaunches(const DeferredLaunches&) = delete;
  DeferredLaunches& operator=(const DeferredLaunches&) = delete;

  /// A run of kernels, as time_templates, launches_of and deferrable_list have it.
  struct Run {
    const KernelList* list = nullptr;
    const std::vector<TimedKernel>* times = nullptr;
    const LaunchList* launches = nullptr;
    const DeferrableList* deferrable = nullptr;
    Phase phase = Phase::None;
  };
  /// From now on the run's launches wait. False: they may not.
  bool begin(const Run& run);
  /// False: everything has been launched that was due when the last event began.
  bool open() const { return run_.list != nullptr; }
  /// The event that is played now. REQUIRES open().
  void at(std::int32_t event) { event_ = event; }
  /// Behind all events. REQUIRES open().
  void end();

 private:
  void launch_due();

  PlayContext& context_;
  Run run_;
  std::int32_t event_ = 0;
  SimTime begun_ = 0;                     // of the host
  SimDuration poll_ = 0;                  // what one costs
  std::vector<SimDuration> host_before_;  // each launch
};

}  // namespace foreshard
