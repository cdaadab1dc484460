// FSDP1's runtime, played through on paper: hooks, streams, limiter, autograd. Builds the instructions of a plan in the
// order in which the host issues them. Private to core/plan/fsdp1; the face is build_fsdp1_plan in
// core/plan/build_plan.h.
//
// Where to read what: run.h what its parts share, instruction_writer.h emission, gathering.h unshard / reshard /
// limiter / prefetch, forward.h hooks around forward, the walk of the module graph and recomputation, backward.h the
// passes and the hooks in them, gradients.h reduction and what becomes of .grad, summon.h full parameters for the user,
// and here the training loop. traps.cpp is what the user must be told.
#pragma once

#include <vector>

#include "core/plan/fsdp1/backward.h"
#include "core/plan/fsdp1/forward.h"
#include "core/plan/fsdp1/gathering.h"
#include "core/plan/fsdp1/gradients.h"
#include "core/plan/fsdp1/run.h"
#include "core/plan/fsdp1/summon.h"
#include "core/plan/runtime/training_step.h"

namespace foreshard::fsdp1 {

class Runtime {
 public:
  explicit Runtime(const PlanRequest& request);
  /// Runs the whole script.
  Plan build();

 private:
  // runtime.cpp
  void run_iteration(const IterationScript& actions);
  void note_orders(PlanIteration& iteration) const;
  void perform(const Action& action);
  void clear_graph();
  bool is_steady() const;
  void drop_unused_records(std::vector<Instruction>& instructions) const;

  // script_actions.cpp
  void forward_without_grad();
  void backward(const Action& action);
  void leave_offload();
  void enter_no_sync();
  void exit_no_sync();
  void zero();
  StepGradients gradients_there(bool& sharded) const;
  StepGradients gradients_there() const;
  void scale_loss();
  void unscale();
  void update_scale();
  void clip(const Action& action);
  void step();
  void explicit_unshard(const Action& action);
  void wait_unshard();

  Run run_;
  InstructionWriter& out_;
  Gathering gathering_{run_};
  Gradients gradients_{run_, gathering_};
  Forward forward_{run_, gathering_, gradients_};
  Backward backward_{run_, gathering_, gradients_, forward_};
  Summon summon_{run_, gathering_, gradients_};
  TrainingStep step_;
  std::vector<bool> no_sync_stack_;
  std::int32_t explicit_unit_ = -1;        // R18
  std::vector<std::int32_t> first_event_;  // by iteration
};

}  // namespace foreshard::fsdp1
