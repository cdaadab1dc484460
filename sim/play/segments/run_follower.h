// Passes over runs of segments that a tape has summed up (sim/device/allocator/pool_tape.h), until one is not as the
// tape has it. Memory first, then time: inside a run the one reaches the other only where the driver is asked for a
// segment. Part of one PlanPlayer.
#pragma once

#include <vector>

#include "sim/device/allocator/pool_tape.h"
#include "sim/play/instructions/plan_buffers.h"
#include "sim/play/segments/segment_storages.h"
#include "sim/play/segments/template_times.h"

namespace foreshard {

class RunFollower {
 public:
  /// `tape` nullptr: nothing is followed.
  RunFollower(PlayContext& context, PlanBuffers& buffers, SegmentStorages& storages, const PoolTape* tape)
      : context_(context), buffers_(buffers), storages_(storages), tape_(tape) {}

  bool follows() const { return tape_ != nullptr; }
  /// False: the run has to be played, and from here on all others. `additions`: of
  /// gradients to those that are there, which `times` has among the kernels; `workspaces`: those that the thread has.
  bool skip(const Instruction& i, const KernelList& list, const std::vector<TimedKernel>& times, std::int32_t instance,
            std::size_t additions, std::uint8_t& workspaces, Bytes workspace);

 private:
  const SegmentRun* next_run(const Instruction& i, const KernelList& list, std::int32_t instance, std::size_t additions,
                             std::uint8_t workspaces, Bytes workspace);
  void keep(const SegmentRun& run, std::int32_t instance);
  void make_skipped_blocks();

  PlayContext& context_;
  PlanBuffers& buffers_;
  SegmentStorages& storages_;
  const PoolTape* tape_;
  std::size_t next_ = 0;  // run; all before it were passed over
};

}  // namespace foreshard
