// Runs the plans of core/plan/actions on a Backend: wrapping from meta, host or device with rank 0's values, showing
// full parameters and taking changes back, saving and loading the three kinds of state dicts. Buffers, streams and
// collectives are those of the plan; each instruction does what its name says to the memory that it names.
//
// One runner per rank, used by the thread that made its backend. The shards that init makes, or make_state and
// set_state, stay from action to action. Of a model that a mesh cuts, state dicts are gathered over its dimensions and
// cut again as PyTorch's DTensors are. What is not run is refused by create(), by instruction: CPU offload after init,
// gradients in summon, whole tensors of what a mesh cuts outside of every unit.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/plan.h"
#include "core/plan/actions/state_dict.h"
#include "core/result.h"
#include "exec/backend/backend.h"
#include "exec/checkpoint/train_state.h"
#include "exec/step/plan_groups.h"

namespace foreshard::exec {

/// A state dict on one rank: keys and shapes as model_state gives them (K1, K4), whole tensors or this rank's part. The
/// optimizer's stand beside, as optimizer_state gives them, under "NAME.exp_avg" (K5; the step counter is no tensor
/// here).
using StateDict = std::map<std::string, at::Tensor, std::less<>>;

/// What a parameter is where nobody has sharded it yet.
using WholeParam = std::function<at::Tensor(ParamId)>;

struct ActionSetup {
  StateSource source;  // what it names outlives the runner, as does the plan
  const Plan& plan;    // of build_action_plan, for this rank
  Backend& backend;
  Communicators communicators;      // those that the plan meets in; a group of one may be left out
  WholeParam initial;               // reset_parameters, or the values that the module was made with, of them what this
                                    // rank has of a mesh; init only
  std::vector<at::Tensor> buffers;  // in the order of Model::buffers
};

class ActionRunner {
 public:
  virtual ~ActionRunner() = default;

  static Result<std::unique_ptr<ActionRunner>> create(ActionSetup setup);

  /// What training leaves between two steps, where no init makes it: shards and parameters without a unit, zero, module
  /// buffers with their values, and the optimizer's state, zero, where it is wanted.
  virtual void make_state(bool optimizer) = 0;

  /// The shards of a run, before summon, save and load: parameters and optimizer state are copied.
  virtual void set_state(const TrainState& state) = 0;
  /// This rank's parameters as they are now; locals are copies.
  virtual TrainState state() const = 0;

  /// What load reads: for its kind and this rank the keys and shapes of model_state (rank0_only: rank 0's counts).
  virtual void set_dict(StateDict dict) = 0;
  /// What the last save returned; empty where rank0_only leaves this rank without.
  virtual const StateDict& dict() const = 0;

  /// Called inside summon, when all that it shows is there: each parameter, whole (of one that a mesh
  /// cuts this rank's part), to read and to change.
  virtual void on_shown(std::function<void(ParamId, at::Tensor)> visit) = 0;

  /// One action: that iteration of the plan. Returns when all streams are done.
  virtual Outcome<void> run(std::size_t iteration) = 0;
};

}  // namespace foreshard::exec
