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
  bool belongs(const Instruction& i, const Instruction& first) const;
  bool pass_buffers(const Instruction& first);
  bool pass(const SegmentRun::Buffer& buffer, const Instruction& i);
  void undo();
  bool record_buffers(const Instruction& first);
  bool can_record(const Instruction& i) const;
  bool record(const Instruction& i);

  PlayContext& context_;
  PlanBuffers& buffers_;
  SegmentStorages& storages_;
  RunRecorder& recorder_;
  RunFollower& follower_;
  // Of the group that is being passed over.
  std::vector<std::pair<std::size_t, BlockHandle>> undo_;  // buffers as they were, in order
  std::int64_t passed_ = 0;                                // more of them have a block that nobody made
  bool has_real_ = false;                                  // one had a block that somebody made
};

}  // namespace foreshard
