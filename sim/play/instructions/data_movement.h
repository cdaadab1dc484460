// FSDP's own copies, casts, sums and fills, and copies to and from the host (C1, C2, F2-26). Part of one PlanPlayer.
#pragma once

#include <optional>
#include <set>
#include <vector>

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
  /// How long the device takes.
  SimDuration device_time(const Instruction& i) const;
  bool is_waived(const Instruction& i) const;

 private:
  bool take_copy_arguments(const Instruction& i);
  Bytes split_arguments(const PlanUnit& unit, UnitId id, std::int64_t ranks);
  Bytes cat_arguments(const Instruction& i, const PlanUnit& unit);
  void stage(Bytes bytes, int stream);
  bool move(const Instruction& i);
  void cross(const Instruction& i, Bytes bytes);

  /// A block of torch's allocator of pinned memory that has been used once.
  struct Staged {
    Bytes bytes = 0;
    EventStamp last_use;
    bool free = false;
  };

  struct KnownSplit {
    std::int64_t ranks = -1;
    Bytes bytes = 0;
  };

  struct KnownCat {
    std::optional<DType> dtype;
    Bytes bytes = 0;
  };

  PlayContext& context_;
  const PlanBuffers& buffers_;
  const PlayedCollectives& collectives_;
  StreamOrder& order_;
  std::set<std::size_t> pinned_;    // buffers on the host that have been made
  std::vector<Staged> staged_;      // in the order of their latest uses
  std::vector<KnownSplit> splits_;  // by unit: of its latest gather
  std::vector<KnownCat> cats_;      // by unit: of its latest reduction
};

}  // namespace foreshard
