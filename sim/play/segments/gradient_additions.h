// Gradients that are there already when a segment makes them anew: micro-batches without synchronisation, parameters of
// no unit. Autograd's node adds the new one to them where it is final and lets it go (accumulateGrad of
// torch/csrc/autograd/functions/accumulate_grad.h); what need not be kept is not copied first. The plan writes both
// down behind the segment: they are played inside of it. Part of one PlanPlayer.
//
//   kernel 0 .. k | add, free | kernel k + 1 ..     |  Accumulate, Free of the plan: done
#pragma once

#include <cstdint>
#include <vector>

#include "sim/play/instructions/data_movement.h"
#include "sim/play/instructions/plan_buffers.h"
#include "sim/play/instructions/play_context.h"
#include "sim/play/segments/segment_storages.h"
#include "sim/play/segments/template_times.h"

namespace foreshard {

class GradientAdditions {
 public:
  /// The plan's instruction at `position` and the free behind it, where autograd does them.
  struct Addition {
    FinishedGradient gradient;
    std::int32_t position = 0;
  };

  GradientAdditions(PlayContext& context, PlanBuffers& buffers, DataMovement& movement, const SegmentStorages& storages)
      : context_(context), buffers_(buffers), movement_(movement), storages_(storages) {}

  /// Of the backward that stands at the player's position, in order; none on a host, whose executor adds behind the
  /// segment. Until the next call.
  const std::vector<Addition>& find(const SegmentTemplate& segment, std::int32_t instance);
  /// The sum's kernel; then free_addend, unless none was made (FinishedGradient::copied). False: out of memory.
  bool play_sum(const Addition& addition);
  BlockHandle addend(const Addition& addition) const { return buffers_.newest(at(addition.position).buffer); }
  /// SegmentStorages::place_of_buffer; -1: others lie in its buffer too.
  std::int32_t place_of_addend(const Addition& addition) const;
  void free_addend(const Addition& addition);
  /// The segment's kernels with those of find() among them, and without the copies that these replace.
  std::vector<TimedKernel> among(const std::vector<TimedKernel>& kernels) const;
  /// None has been played in the iteration that begins.
  void forget() {
    found_.clear();
    last_played_ = -1;
  }
  /// The instruction at this position was played inside of its segment.
  bool played(std::int32_t position) const { return position <= last_played_ && is_played(position); }

 private:
  const Instruction& at(std::int32_t position) const {
    return context_.iteration->instructions[static_cast<std::size_t>(position)];
  }
  bool is_played(std::int32_t position) const;

  PlayContext& context_;
  PlanBuffers& buffers_;
  DataMovement& movement_;
  const SegmentStorages& storages_;
  std::vector<Addition> found_;
  std::int32_t last_played_ = -1;  // position
};

}  // namespace foreshard
