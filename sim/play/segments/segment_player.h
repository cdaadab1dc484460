// Runs segments: lowered kernels with the storages they make and drop. Part of one PlanPlayer.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "sim/play/initialisation.h"
#include "sim/play/instructions/plan_buffers.h"
#include "sim/play/instructions/play_context.h"
#include "sim/play/instructions/played_collectives.h"
#include "sim/play/prediction.h"
#include "sim/play/segments/activation_copies.h"
#include "sim/play/segments/blas_workspaces.h"
#include "sim/play/segments/deferred_launches.h"
#include "sim/play/segments/early_kernels.h"
#include "sim/play/segments/gradient_additions.h"
#include "sim/play/segments/gradient_sums.h"
#include "sim/play/segments/instruction_runs.h"
#include "sim/play/segments/launch_lists.h"
#include "sim/play/segments/run_follower.h"
#include "sim/play/segments/run_recorder.h"
#include "sim/play/segments/segment_storages.h"
#include "sim/play/segments/template_times.h"
#include "sim/play/work_count.h"

namespace foreshard {

class SegmentPlayer {
 public:
  struct Options {
    bool per_kernel = true;  // false: one span a segment
    RankSpeed speed = {};
    PoolTape* record_runs = nullptr;
    const PoolTape* follow_runs = nullptr;
  };
  SegmentPlayer(PlayContext& context, PlanBuffers& buffers, PlayedCollectives& collectives, DataMovement& movement,
                const Options& options);

  /// Forward, Recompute, Backward. False: out of memory.
  bool play(const Instruction& i, Pass pass);
  EarlyKernels& early() { return early_; }
  InstructionRuns& instructions() { return instructions_; }
  /// A segment that was played has done the instruction at this position.
  bool played(std::int32_t position) const { return additions_.played(position); }

  /// The loop drops storages that are held beyond backward: first, when the engine returns, the gradients among them,
  /// then all.
  void free_held(bool only_gradients);
  /// Buffers that modules put others in the place of: they lie where those will be made. The list is empty afterwards.
  void replace_buffers(std::vector<ResidentBuffer>& buffers);
  /// Loss and outputs, which somebody holds beyond the micro-batch, the loss first: the caller's from now on.
  std::vector<BlockHandle> take_held();

  /// Since begin(), which is called for every iteration.
  const WorkCount& work() const { return work_; }
  void begin() {
    work_.begin();
    additions_.forget();
  }

 private:
  /// One run of a segment.
  struct Run {
    const Instruction& instruction;
    const KernelList& list;
    const std::vector<TimedKernel>& times;
    const SegmentTemplate& segment;
    std::int32_t instance;
    double slowness;
    ActivitySpan what;
    std::size_t number = 0;          // of the list among those of all templates and passes
    std::size_t first = 0, end = 0;  // kernels
    bool keep = false;               // spans and samples
    SimTime start = -1;              // of its first kernel
    LedgerSample highest = {};
    // Gradients to be added to those that are there, and the kernel at which the next of them is (kNone: at no
    // further).
    std::span<const GradientAdditions::Addition> additions = {};
    std::size_t next_addition = 0, due = kNone;
    std::size_t added = 0;      // kernels that they were
    std::size_t ready = kNone;  // kernels that have run when the last gradient is final that another stream waits for
    static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
    std::size_t place_of_next() const;
  };
  Run run_of(const Instruction& i, Pass pass, std::size_t first);
  void await_gradients(Run& run);
  void note_ready(const Run& run);
  bool follow(const Run& run);
  bool begin_backward();
  bool play_run(Run& run);
  bool play_kernels(Run& run, std::size_t first);
  const DeferrableList& deferrable_of(const Run& run);
  bool defer(const Run& run);
  bool play_deferred(Run& run);
  bool play_rest(Run& run, std::int32_t event);
  bool play_kernel(Run& run, std::size_t k);
  bool run_kernel(Run& run, std::size_t k);
  bool issue_kernel(Run& run, std::size_t k);
  bool play_additions(Run& run, std::size_t k);
  bool add(Run& run, const GradientAdditions::Addition& addition);
  bool memory_events(const Run& run, std::int32_t begin, std::int32_t end) {
    return begin == end || play_events(run, begin, end);
  }
  bool play_events(const Run& run, std::int32_t begin, std::int32_t end);
  bool play_event(const Run& run, const MemoryEvent& event) {
    if (event.noted)
      storages_.note_use(storages_.place_of_freed(event, run.instance));
    else if (!event.alloc)
      storages_.free(storages_.place_of_freed(event, run.instance));
    else
      return storages_.allocate(run.segment, run.instance, event.slot);
    return true;
  }
  void launch(Run& run, const TimedKernel& timed, const Kernel& kernel);
  bool gradients_without_operators(const Instruction& i);
  /// What a module keeps until the next forward makes another of it.
  bool stays(const ImportBinding& held) const;

  PlayContext& context_;
  PlanBuffers& buffers_;
  PlayedCollectives& collectives_;
  WorkCount work_;
  std::vector<TemplateTimes> times_;
  RunRecorder recorder_;
  SegmentStorages storages_;
  LaunchLists lists_;
  RunFollower follower_;
  DeferredLaunches deferred_;
  InstructionRuns instructions_;
  BlasWorkspaces workspaces_;
  EarlyKernels early_;
  GradientSums sums_;
  ActivationCopies copies_;
  GradientAdditions additions_;
  bool per_kernel_;
  RankSpeed speed_;
  bool defers_;  // runs are whole, and nobody writes down when memory is asked for
  std::vector<std::optional<DeferrableList>> deferrable_;  // by number of the list, once asked
  std::uint64_t runs_ = 0;
  std::vector<bool> begun_;  // by instance: its backward's early kernels have run; empty where no segment has any
};

}  // namespace foreshard
