// Plays a plan's instructions, in host issue order, on a simulated device: the host pays issue costs, streams advance,
// buffers live and die, segments run their lowered kernels. Out of memory and a wait that nobody ends stop it; both are
// answers.
//
// Instructions need no event queue: a stream's work starts at max(host, end of its previous work, awaited events), and
// all of these are known when the host issues it. Owned by one simulation.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/lowering/lowering.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "sim/device/device.h"
#include "sim/play/initialisation.h"
#include "sim/play/prediction.h"
#include "sim/play/resident_state.h"
#include "sim/play/work_count.h"

namespace foreshard {

/// Everything that is played; outlives the player.
struct PlayRequest {
  const Plan& plan;
  const Model& model;
  const LoweredProgram& lowered;
  const Job& job;
  bool per_kernel = true;
  RankSpeed speed = {};
  bool meets = false;  // pauses before every collective until it is told when all ranks are there
  // Runs of segments are summed up on this one, or passed over as that one has them: the tapes of the allocator's
  // compute stream. Not while spans, holders or draws are wanted.
  PoolTape* record_runs = nullptr;
  const PoolTape* follow_runs = nullptr;
};

/// Which of the loop's phases an instruction belongs to, as the recordings name them.
enum class LoopPhase : std::uint8_t { None, Forward, Backward, Clip, Optimizer, End };
std::string_view loop_phase_name(LoopPhase phase);  // "forward", ...
LoopPhase loop_phase_of(const Instruction& instruction);

class PlanPlayer {
 public:
  PlanPlayer(const PlayRequest& request, Device& device, std::vector<ResidentBuffer> buffers);

  enum class Outcome : std::uint8_t { Done, OutOfMemory, Deadlock };
  /// What stopped it, when something did.
  struct Stop {
    std::int32_t instruction = -1;  // position in the iteration
    LoopPhase phase = LoopPhase::None;
    Bytes requested = 0, free = 0;
    std::string text;  // deadlock: who waits for whom
  };
  /// A phase has ended and another begins: memory statistics are read here.
  struct PhaseEnd {
    LoopPhase phase = LoopPhase::None;
    AllocatorStats stats;
  };
  /// The ledger at one moment, for counters.
  struct LedgerSample {
    SimTime time = 0;
    Bytes allocated = 0, active = 0, reserved = 0;
    MemoryBook::Categories categories{};
  };
  struct HostSpan {
    SimTime start = 0, end = 0;
    std::int32_t instruction = -1;
    bool waiting = false;
  };

  /// Plays iteration `index` of the plan; with `repeats` > 0 the steady one again, its events renamed.
  Outcome play(std::size_t index, std::int32_t repeats, std::int32_t first_instruction);

  /// The same in steps, for ranks that wait for each other: begin, then advance until it is Done or Stopped; at every
  /// Meeting, meet() says when the collective starts and how long it takes.
  enum class Progress : std::uint8_t { Meeting, Done, Stopped };
  struct Meeting {
    CommunicatorId communicator;
    SimTime ready = 0;     // when this rank could start
    SimDuration time = 0;  // as its own profile has it
  };
  void begin(std::size_t index, std::int32_t repeats, std::int32_t first_instruction);
  Progress advance();
  const Meeting& meeting() const { return meeting_; }
  void meet(SimTime start, SimDuration time);
  /// REQUIRES Done or Stopped.
  Outcome outcome() const;

  const Stop& stop() const { return stop_; }
  const std::vector<PhaseEnd>& phases() const { return phases_; }
  SimDuration host_wait() const { return host_wait_; }
  const std::vector<LedgerSample>& samples() const { return samples_; }
  const std::vector<HostSpan>& host_spans() const { return host_spans_; }
  /// Of the last iteration played.
  const WorkCount& work() const { return work_; }

 private:
  /// What a simulation needs of a lowered kernel, kept together.
  struct TimedKernel {
    SimDuration host = 0, device = 0;
    std::int32_t before_begin = 0, before_end = 0, after_begin = 0, after_end = 0;  // memory events
    bool launches = false, gemm = false, lt = false;                                // lt: through cuBLASLt
    bool sums = false;               // the gradients of a parameter's uses
    std::int32_t communicator = -1;  // of a collective of the program
  };
  /// A kernel that is played before its segment: the engine's first gradient, which precedes all hooks of backward, and
  /// the cast of the batch, which precedes those of forward.
  struct Seed {
    TimedKernel kernel;
    std::int32_t instance = -1, slot = -1, op = -1;
  };
  bool execute(const Instruction& i);
  bool memory_instruction(const Instruction& i);
  bool synchronisation(const Instruction& i);
  bool data_movement(const Instruction& i);
  bool collective(const Instruction& i);
  SimDuration duration_of(const Instruction& i);
  Meeting offer(const Instruction& i);
  bool run_segment(const Instruction& i, Pass pass);
  bool run_kernels(const Instruction& i, const KernelList& list, const std::vector<TimedKernel>& times,
                   std::int32_t instance);
  std::int32_t communicator_of(const Kernel& kernel) const;
  void meet_in_program(const TimedKernel& timed, const Kernel& kernel, ActivitySpan what);
  bool run_memory_events(const KernelList& list, std::int32_t begin, std::int32_t end, std::int32_t instance,
                         const SegmentTemplate& segment);
  bool allocate_slot(const SegmentTemplate& segment, std::int32_t instance, std::int32_t slot);
  bool allocate_gradient(const Slot& made, std::int32_t instance, std::int32_t slot, Stream pool = Stream::D);
  Stream views_stream(const BufferName& gradient) const;
  bool sum_gradients(const TimedKernel& timed, const KernelList& list, std::int32_t instance,
                     const SegmentTemplate& segment, Stream views, const ActivitySpan& what);
  const Slot* summed_gradient(const TimedKernel& timed, const KernelList& list, const SegmentTemplate& segment) const;
  void free_slot(std::int32_t instance, std::int32_t slot);
  bool pieces_without_operators(const Instruction& i);

  // Runs on a tape: sim/play/segment_runs.cpp.
  void begin_run(const KernelList& list, std::int32_t instance, std::uint8_t had_workspaces);
  void note_made(std::int32_t slot, BlockHandle block, std::int32_t gradient);
  void note_dropped(std::int32_t slot);
  void note_change();
  void end_run(bool ok);
  bool skip_run(const Instruction& i, const KernelList& list, const std::vector<TimedKernel>& times,
                std::int32_t instance, std::uint8_t& workspaces);
  void make_skipped_blocks();
  bool is_held(std::int32_t slot) const;
  Bytes workspace_bytes() const;
  bool ensure_workspaces(std::uint8_t& made, bool lt);
  bool take_copy_arguments(const Instruction& i);
  void take_seed(const ImportBinding& held);
  void take_cast();
  bool make_seed();
  bool make_early(const Seed& early, Phase phase);
  std::int32_t reader_of(Phase phase) const;
  LoopPhase next_phase(const Instruction& i) const;
  bool enter_phase(LoopPhase next);
  bool begin_micro_batch();
  bool make_inputs();
  bool initialise_lazily();
  LedgerSample ledger_now() const;
  void free_held(bool only_gradients);
  void zero_gradients();

  std::size_t buffer_index(const BufferName& buffer) const;
  bool allocate_buffer(const BufferName& buffer, std::int32_t instance, Stream pool, Bytes bytes);
  void own_buffer(const BufferName& buffer, std::int32_t instance, BlockHandle block);
  BufferName gradient_buffer(const Slot& made, std::int32_t instance) const;
  BlockHandle find_buffer(const BufferName& buffer, std::int32_t instance) const;
  void forget_state_copies();
  BlockHandle take_buffer(const BufferName& buffer, std::int32_t instance);
  EventStamp& event(EventId id);
  bool out_of_memory(Bytes requested);
  bool deadlock(const Instruction& i);
  ActivitySpan span_of(const Instruction& i, SpanKind kind) const;
  void time_templates();
  Bytes bytes_of(const Instruction& i) const;

  const Plan& plan_;
  const Model& model_;
  const LoweredProgram& lowered_;
  const Job& job_;
  Device& device_;
  bool per_kernel_;
  OptimizerState optimizer_;
  StepsInBackward in_backward_;
  std::optional<OptimizerState> beside_muon_;
  std::vector<ResidentBuffer> model_buffers_;  // until they are cast

  // By template: forward, recompute, backward.
  struct TemplateTimes {
    std::vector<TimedKernel> forward, recompute, backward;
  };
  std::vector<TemplateTimes> times_;
  WorkCount work_;
  std::vector<std::size_t> slot_base_;  // by instance, into slots_
  std::vector<BlockHandle> slots_;

  struct NamedBuffer {
    BlockHandle block = kNoBlock;
    std::int32_t instance = 0;
    std::size_t index = 0;
  };
  std::vector<BlockHandle> buffers_;  // by buffer_index, instance 0
  std::vector<NamedBuffer> more_;     // further buffers of one name
  std::set<std::size_t> pinned_;      // buffers on the host that have been made
  std::vector<EventStamp> events_;
  std::vector<bool> recorded_;
  std::vector<BlockHandle> inputs_;
  std::vector<std::int32_t> gathered_from_;  // by unit: ranks of its last all-gather
  std::vector<bool> made_in_backward_;       // by held storage: the engine's first gradient
  struct PlacedCommunicator {
    GroupPlacement placement;
    SimTime tail = 0;  // end of its last collective
  };
  std::vector<PlacedCommunicator> communicators_;  // by CommunicatorId
  Seed seed_, cast_;
  std::uint8_t workspaces_ = 0, backward_workspaces_ = 0;  // kBlasWorkspace, kLtWorkspace
  bool plan_owns_inputs_ = false, lazy_initialised_ = false, seeded_ = false, cast_due_ = false;

  struct KnownDuration {
    CollectiveKind kind = CollectiveKind::AllGather;
    GroupPlacement placement;
    Bytes bytes = 0;
    SimDuration time = 0;
  };
  std::vector<KnownDuration> durations_;  // of collectives; a plan has few kinds of them

  // Ranks that wait for each other.
  RankSpeed speed_;
  bool meets_ = false, met_ = false;
  Meeting meeting_, agreed_;
  std::uint64_t runs_ = 0;  // of segments

  /// The run that is being summed up, and what there was before it.
  struct OpenRun {
    SegmentRun run;
    AllocatorStats before;
    MemoryBook::Categories categories{};
    Bytes reserved = 0;
    std::int64_t events = 0;
    std::uint32_t kernel = 0;
    bool open = false;
  };
  PoolTape* record_runs_ = nullptr;        // until one cannot be summed up
  const PoolTape* follow_runs_ = nullptr;  // until one cannot be passed over
  std::size_t next_run_ = 0;               // of follow_runs_; all before it were passed over
  OpenRun open_run_;

  // State of the iteration being played.
  bool stepped_ = false, stopped_ = false;
  const PlanIteration* iteration_ = nullptr;
  std::int32_t position_ = 0, first_instruction_ = 0, event_shift_ = 0, repeats_ = 0;
  LoopPhase phase_ = LoopPhase::None;
  bool host_waited_ = false;
  SimDuration host_wait_ = 0;
  Stop stop_;
  bool deadlocked_ = false;
  std::vector<PhaseEnd> phases_;
  std::vector<LedgerSample> samples_;
  std::vector<HostSpan> host_spans_;
};

}  // namespace foreshard
