// Plays a plan's instructions, in host issue order, on a simulated device: the host pays issue costs, streams advance,
// buffers live and die, segments run their lowered kernels. Out of memory and a wait that nobody ends stop it; both are
// answers.
//
// Instructions need no event queue: a stream's work starts at max(host, end of its previous work, awaited events), and
// all of these are known when the host issues it. What plays each kind of instruction stands in instructions/ and
// segments/; here is their order, the loop's phases and the steps of ranks that wait for each other. Owned by one
// simulation.
#pragma once

#include <vector>

#include "core/lowering/lowering.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "sim/device/device.h"
#include "sim/play/initialisation.h"
#include "sim/play/instructions/data_movement.h"
#include "sim/play/instructions/optimizer_steps.h"
#include "sim/play/instructions/plan_buffers.h"
#include "sim/play/instructions/play_context.h"
#include "sim/play/instructions/played_collectives.h"
#include "sim/play/instructions/stream_order.h"
#include "sim/play/loop_phase.h"
#include "sim/play/micro_batch.h"
#include "sim/play/prediction.h"
#include "sim/play/prepared_plan.h"
#include "sim/play/segments/segment_player.h"
#include "sim/play/work_count.h"

namespace foreshard {

/// Everything that is played; outlives the player.
struct PlayRequest {
  const Plan& plan;
  const Model& model;
  const LoweredProgram& lowered;
  const Job& job;
  const PreparedPlan& prepared;  // this one
  bool per_kernel = true;
  RankSpeed speed = {};
  const Arena* arena = nullptr;  // its blocks have been allocated
  bool meets = false;            // pauses before every collective until it is told when all ranks are there
  // Runs of segments are summed up on this one, or passed over as that one has them: the tapes of the allocator's
  // compute stream. Not while spans, holders or draws are wanted.
  PoolTape* record_runs = nullptr;
  const PoolTape* follow_runs = nullptr;
  Waived waived = Waived::Nothing;
};

class PlanPlayer {
 public:
  PlanPlayer(const PlayRequest& request, Device& device, std::vector<ResidentBuffer> buffers);
  PlanPlayer(const PlanPlayer&) = delete;
  PlanPlayer& operator=(const PlanPlayer&) = delete;

  enum class Outcome : std::uint8_t { Done, OutOfMemory, Deadlock };
  /// A phase has ended and another begins: memory statistics are read here.
  struct PhaseEnd {
    LoopPhase phase = LoopPhase::None;
    AllocatorStats stats;
  };
  struct HostSpan {
    SimTime start = 0, end = 0;
    std::int32_t instruction = -1;
    bool waiting = false;
  };

  /// Plays iteration `index` of the plan; with `repeats` > 0 the steady one again, its events renamed. In steps, for
  /// ranks that wait for each other: begin, then advance until it is Done or Stopped; at every Meeting, meet() says
  /// when the collective starts and how long it takes.
  enum class Progress : std::uint8_t { Meeting, Done, Stopped };
  using Meeting = CollectiveMeeting;
  void begin(std::size_t index, std::int32_t repeats, std::int32_t first_instruction);
  Progress advance();
  const Meeting& meeting() const { return meeting_; }
  void meet(SimTime start, SimDuration time) { collectives_.meet(start, time); }
  /// REQUIRES Done or Stopped.
  Outcome outcome() const;

  const PlayStop& stop() const { return context_.stop; }
  const std::vector<PhaseEnd>& phases() const { return phases_; }
  SimDuration host_wait() const { return order_.host_wait(); }
  const std::vector<LedgerSample>& samples() const { return context_.samples; }
  const std::vector<HostSpan>& host_spans() const { return host_spans_; }
  /// Of the last iteration played.
  const WorkCount& work() const { return segments_.work(); }

 private:
  bool begins_loss(const Instruction& i) const;
  bool execute(const Instruction& i);
  bool enter_phase(LoopPhase next);

  PlayContext context_;
  PlanBuffers buffers_;
  StreamOrder order_;
  PlayedCollectives collectives_;
  DataMovement movement_;
  OptimizerSteps optimizer_;
  SegmentPlayer segments_;
  MicroBatch batch_;
  bool meets_;

  // Of the iteration being played.
  const PlayList* list_ = nullptr;
  std::size_t next_ = 0;  // of its steps
  bool stopped_ = false;
  std::int32_t repeats_ = 0;
  Meeting meeting_;
  std::vector<PhaseEnd> phases_;
  std::vector<HostSpan> host_spans_;
};

}  // namespace foreshard
