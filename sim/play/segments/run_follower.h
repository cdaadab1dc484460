// Passes over runs of segments that a tape has summed up (sim/device/allocator/pool_tape.h), until one is not as the
// tape has it. Memory first, then time: inside a run the one reaches the other only where the driver is asked for a
// segment. Part of one PlanPlayer.
#pragma once

#include <vector>

#include "sim/device/allocator/pool_tape.h"
#include "sim/play/instructions/plan_buffers.h"
#include "sim/play/segments/launch_lists.h"
#include "sim/play/segments/segment_storages.h"
#include "sim/play/segments/template_times.h"

namespace foreshard {

class RunFollower {
 public:
  /// `tape` nullptr: nothing is followed.
  RunFollower(PlayContext& context, PlanBuffers& buffers, SegmentStorages& storages, LaunchLists& lists,
              const PoolTape* tape)
      : context_(context), buffers_(buffers), storages_(storages), lists_(lists), tape_(tape) {}

  bool follows() const { return tape_ != nullptr; }
  /// False: the run has to be played, and from here on all others. `number` is the list's among those of all templates
  /// and passes, whose launches are kept (kOwnLaunches: `times` has `additions` of gradients to those that are there
  /// among the kernels); `workspaces`: those that the thread has.
  static constexpr std::size_t kOwnLaunches = static_cast<std::size_t>(-1);
  bool skip(const Instruction& i, const KernelList& list, const std::vector<TimedKernel>& times, std::size_t number,
            std::int32_t instance, std::size_t additions, std::uint8_t& workspaces, Bytes workspace);

  /// The run that is due; nullptr: there is none. REQUIRES pass() for one of instructions.
  const SegmentRun* next() const {
    return tape_ != nullptr && next_ < tape_->runs.size() ? &tape_->runs[next_] : nullptr;
  }
  /// All that next() did in memory. False: it cannot be passed over, and nothing was done.
  bool pass(const SegmentRun& run);
  /// Buffers of the plan whose block is kPassedBlock.
  std::int64_t passed_buffers() const { return passed_; }
  void count_buffers(std::int64_t change) { passed_ += change; }
  /// Nothing is passed over any more: what the runs so far hold is there, block by block. REQUIRES follows().
  void make_skipped_blocks();

 private:
  const SegmentRun* next_run(const Instruction& i, const KernelList& list, std::int32_t instance, std::size_t additions,
                             std::uint8_t workspaces, Bytes workspace);
  void keep(const SegmentRun& run, std::int32_t instance);
  bool pass_gradient(const SegmentRun::Holding& holding);
  void place(const SegmentRun& run, Phase phase, const std::vector<TimedKernel>& times, std::size_t number);

  PlayContext& context_;
  PlanBuffers& buffers_;
  SegmentStorages& storages_;
  LaunchLists& lists_;
  const PoolTape* tape_;
  std::size_t next_ = 0;  // run; all before it were passed over
  std::int64_t passed_ = 0;
};

}  // namespace foreshard
