// FSDP's own copies, casts, sums and fills, and copies to and from the host (C1, C2, F2-26). Part of one PlanPlayer.
#pragma once

#include <set>

#include "sim/play/instructions/plan_buffers.h"
#include "sim/play/instructions/play_context.h"
#include "sim/play/instructions/played_collectives.h"
#include "sim/play/instructions/stream_order.h"

namespace foreshard {

class DataMovement {
 public:
  DataMovement(PlayContext& context, const PlanBuffers& buffers, const PlayedCollectives& collectives,
               StreamOrder& order)
      : context_(context), buffers_(buffers), collectives_(collectives), order_(order) {}

  /// False: out of memory.
  bool play(const Instruction& i) { return take_copy_arguments(i) && move(i); }

 private:
  bool take_copy_arguments(const Instruction& i);
  bool move(const Instruction& i);
  void cross(const Instruction& i, Bytes bytes);

  PlayContext& context_;
  const PlanBuffers& buffers_;
  const PlayedCollectives& collectives_;
  StreamOrder& order_;
  std::set<std::size_t> pinned_;  // buffers on the host that have been made
};

}  // namespace foreshard
