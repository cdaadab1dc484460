// Instructions beside segments whose memory lies in the compute stream's pools alone: groups of them over the plan's
// buffers (what a gather fills, what a reshard frees), and the optimizer's clip and step. They are summed up on a tape
// as runs of segments are, or passed over as the tape has them. Part of one PlanPlayer.
#pragma once

#include <utility>
#include <vector>

#include "sim/play/instructions/optimizer_steps.h"
#include "sim/play/instructions/plan_buffers.h"
#include "sim/play/segments/run_follower.h"
#include "sim/play/segments/run_recorder.h"

namespace foreshard {

class InstructionRuns {
 public:
  InstructionRuns(PlayContext& context, PlanBuffers& buffers, SegmentStorages& storages, RunRecorder& recorder,
                  RunFollower& follower)
      : context_(context), buffers_(buffers), storages_(storages), recorder_(recorder), follower_(follower) {}

  /// Alloc, Resize, Free, NoteUse, with as many as follow that belong to it: the context then stands at the last.
  /// False: out of memory.
  bool play_buffers(const Instruction& i);
  /// What OptimizerSteps plays. False: out of memory.
  bool play_step(const Instruction& i, OptimizerSteps& optimizer);
  /// Gradients are dropped by name: whatever buffer was passed over must be there.
  void before_zero() {
    if (follower_.passed_buffers() > 0) follower_.make_skipped_blocks();
  }

 private:
  bool pass_buffers();
  std::size_t pass_all(const SegmentRun& run);
  bool pass(const SegmentRun::Buffer& buffer, const BufferStep& step);
  bool record_buffers(const Instruction& first);
  bool can_record(const BufferStep& step) const;
  bool record(const Instruction& i, const BufferStep& step);

  PlayContext& context_;
  PlanBuffers& buffers_;
  SegmentStorages& storages_;
  RunRecorder& recorder_;
  RunFollower& follower_;
  // Of the group that is being passed over.
  std::vector<BlockHandle> before_;  // what its buffers had, in order
  std::int64_t passed_ = 0;          // more of them have a block that nobody made
  bool has_real_ = false;            // one had a block that somebody made
};

}  // namespace foreshard
