// Collectives: those that the plan issues and those inside the model's program, each on its communicator, of which no
// two overlap (R4). Ranks that wait for each other agree here on when one starts. Part of one PlanPlayer.
#pragma once

#include <optional>
#include <vector>

#include "sim/network/collectives.h"
#include "sim/play/instructions/play_context.h"
#include "sim/play/instructions/stream_order.h"

namespace foreshard {

/// What a rank offers to a collective, and what all have agreed on.
struct CollectiveMeeting {
  CommunicatorId communicator;
  SimTime ready = 0;     // when this rank could start
  SimDuration time = 0;  // as its own profile has it
};

class PlayedCollectives {
 public:
  PlayedCollectives(PlayContext& context, StreamOrder& order);

  void play(const Instruction& i);
  /// Ranks of the unit's last all-gather; 1 before the first.
  std::int32_t gathered_from(UnitId unit) const { return gathered_from_[unit.index()]; }

  /// Before a collective that is to wait for other ranks; meet() tells what came of it, forget_meeting() ends it.
  CollectiveMeeting offer(const Instruction& i);
  void meet(SimTime start, SimDuration time) {
    agreed_start_ = start;
    agreed_time_ = time;
    met_ = true;
  }
  bool met() const { return met_; }
  void forget_meeting() { met_ = false; }

  /// Of a kernel in which ranks meet; -1: it is none.
  std::int32_t communicator_of(const Kernel& kernel) const;
  /// How long the kernel takes. REQUIRES communicator_of(kernel) >= 0.
  SimDuration time_of(const Kernel& kernel) const;
  /// A functional collective: its group's own stream waits for D, and D waits for it before the next kernel. (One
  /// kernel of an embedding may pass it; that gains nothing worth a rule.)
  void play_kernel(const Kernel& kernel, std::int32_t communicator, SimDuration time, ActivitySpan what);

 private:
  struct PlacedCommunicator {
    GroupPlacement placement;
    SimTime tail = 0;  // end of its last collective
  };
  struct KnownDuration {
    CollectiveKind kind = CollectiveKind::AllGather;
    GroupPlacement placement;
    Bytes bytes = 0;
    SimDuration time = 0;
    double at_half = -1;  // CollectiveRun's; -1: not asked for yet
  };
  SimDuration duration_of(const Instruction& i);
  KnownDuration& known(CollectiveKind kind, const GroupPlacement& placement, Bytes bytes);
  double at_half(CollectiveKind kind, const GroupPlacement& placement, Bytes bytes);
  bool symmetric_memory() const { return context_.job.fsdp.symmetric_memory; }

  PlayContext& context_;
  StreamOrder& order_;
  std::vector<PlacedCommunicator> communicators_;  // by CommunicatorId
  std::vector<KnownDuration> durations_;           // a plan has few kinds of them
  const bool measured_;                            // the network (is_network_measured)
  std::optional<HardwareProfile> half_;            // the machine with half of its network
  std::vector<std::int32_t> gathered_from_;        // by unit
  bool met_ = false;
  SimTime agreed_start_ = 0;
  SimDuration agreed_time_ = 0;
};

}  // namespace foreshard
