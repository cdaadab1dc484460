// fsdp2 step by step: what fully_shard of PyTorch 2.11 issues from the host, hook by hook (rules F2-1..F2-29).
//
// Where to read what: run.h what the parts share, prepare.cpp sizes, switches and refusals, gathering.h streams,
// all-gather, copy-out and reshard, forward.h hooks around module calls and recomputation, backward.h autograd's order,
// hooks and the final callback, reduction.h reduce-scatter, all-reduce and sharded gradients; here the training loop,
// unit_calls.cpp the method calls of units. Private to core/plan.
#pragma once

#include <optional>
#include <vector>

#include "core/plan/fsdp2/backward.h"
#include "core/plan/fsdp2/forward.h"
#include "core/plan/fsdp2/gathering.h"
#include "core/plan/fsdp2/loose_gradients.h"
#include "core/plan/fsdp2/muon_step.h"
#include "core/plan/fsdp2/plan_frame.h"
#include "core/plan/fsdp2/reduction.h"
#include "core/plan/fsdp2/run.h"
#include "core/plan/runtime/training_step.h"

namespace foreshard::fsdp2 {

class Fsdp2Runtime {
 public:
  Fsdp2Runtime(const PlanRequest& request, Plan& plan);

  /// Units' sizes and switches. Errors: what fully_shard refuses when it is called or initialised.
  Result<void> prepare(Decisions decide = nullptr);
  /// Runs one iteration's actions into `into`. `index` selects the steps of the module graph that run.
  Result<void> run(const IterationScript& actions, std::int32_t index, PlanIteration& into);
  std::int32_t next_event() const { return run_.out.next_event(); }

 private:
  // script_actions.cpp
  Result<void> act(const Action& action);
  Result<void> backward(const Action& action);
  void keep_over_micro_batches(bool more);
  Result<void> user_unshard(const std::string& unit);
  void wait_unshard();
  struct GradientAmount {
    StepGradients gradients;
    Numel sharded = 0, plain = 0;  // gradients of units, and of no unit
  };
  GradientAmount gradients_there() const;
  struct OnMesh {
    std::int32_t dimension = -1;
    std::int64_t gradients = 0;
  };
  std::vector<OnMesh> gradients_by_mesh() const;
  void complete_norm(const OnMesh& mesh, DType dtype, bool infinity);
  void scale_loss();
  Result<void> unscale();
  void update_scale();
  Result<void> clip(const Action& action);
  Result<void> check_lists(const char* op, const char* key) const;
  Result<void> check_step() const;
  void state_dict();
  Result<void> step();
  void zero_grad();

  // unit_calls.cpp
  Result<void> call(const Action& action);
  bool call_recursive(const UnitCall& call, UnitId target);
  Result<bool> call_setup(const Action& action, UnitState& u);
  Result<bool> set_flag(const Action& action, bool& flag);
  Result<void> set_prefetch(const UnitCall& call, std::vector<UnitId>& list);
  std::vector<UnitId> units_below(UnitId id) const;
  void unshard(UnitState& u, bool async);

  Run run_;
  InstructionWriter& out_;
  Gathering gathering_{run_};
  Reduction reduction_{run_};
  LooseGradients loose_{run_};
  std::optional<Forward> forward_;  // once the units are prepared
  std::optional<Backward> backward_;
  std::optional<MuonStep> muon_;
  TrainingStep step_;
  UnitId awaited_;  // unit of the last asynchronous unshard of the script
};

}  // namespace foreshard::fsdp2
