// The executor's face: one rank's share of a Plan, run instruction by instruction on a Backend.
//
// The calling thread is the issuer: it walks an iteration's instructions in their order and gives each to its stream;
// the numbers are made on the streams. Buffers, events and streams are exactly those of the plan; an operator's own
// temporaries are LibTorch's. What an instruction does to parameters and gradients depends on how a unit lies in
// memory: exec/units/unit_tensors.h, with one implementation for fsdp1, one for fsdp2 and one for parameters of no
// unit. What is not run is refused by create(), by instruction, before anything is started.
//
// Every rank makes its own runner, from the plan for its rank, on its own thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/result.h"
#include "exec/backend/backend.h"
#include "exec/checkpoint/train_state.h"
#include "exec/operators/operator_interpreter.h"
#include "exec/step/plan_groups.h"
#include "exec/units/comm_hook.h"

namespace foreshard::exec {

struct PlanRunnerSetup {
  const Model& model;  // all references outlive the runner
  const Plan& plan;
  const OperatorInterpreter& interpreter;
  Backend& backend;
  Communicators communicators;  // one for each of communicators_to_connect(plan)
  OptimizerOptions optimizer;
  std::vector<at::Tensor> buffers;   // in the order of Model::buffers
  std::vector<bool> trainable = {};  // by ParamId, as UnitTable::trainable; empty: as the model says
  std::uint64_t seed = 0;            // of random operators: each draws from it, the step, the micro-batch and the rank
  /// What a micro-batch's loss is multiplied with before backward; nullopt: 1 / micro-batches.
  std::optional<double> loss_factor = std::nullopt;
  /// What the model's floating inputs are cast to, if to anything (M8, F2-27); not given: the root's parameter type.
  std::optional<std::optional<DType>> input_dtype = std::nullopt;
  std::int64_t ranks_per_node = 8;  // cluster.ranks_per_node, by which the plan has laid out Muon's products
  GradScalerOptions scaler = {};
  CommHook comm_hook = {};  // the user's own, where the plan calls one (fsdp.comm_hook = "own:NAME")
};

struct StepResult {
  double loss = 0;  // of this rank: the sum over its micro-batches, each times PlanRunnerSetup::loss_factor
  std::optional<double> grad_norm;  // of all ranks, before clipping, where the plan clips
  std::vector<double> losses = {};  // of each forward
  // With a gradient scaler that was updated: what the next step scales with, and whether this one was left out.
  std::optional<double> loss_scale = std::nullopt;
  bool skipped = false;
};

/// Inputs of one forward, in the order of Model::inputs.
using MicroBatch = std::vector<at::Tensor>;

class PlanRunner {
 public:
  virtual ~PlanRunner() = default;

  /// `full_params(id)` gives the whole starting value of a parameter; each rank keeps its shard of it. Called on
  /// threads of the backend, one at a time.
  static Result<std::unique_ptr<PlanRunner>> create(PlanRunnerSetup setup,
                                                    const OperatorInterpreter::ParamTensors& full_params);

  /// One training step: the plan's next iteration, or its steady one again. One micro-batch for each forward of the
  /// iteration. Returns when all streams are done.
  virtual Outcome<StepResult> step(const std::vector<MicroBatch>& micro_batches, double lr) = 0;

  /// Forwards alone, between steps: the first iteration of `plan`, which was made from the same model and job with a
  /// script of forwards without grad. What it leaves gathered is given back. A failure names that plan's instruction;
  /// a recorder leaves it out.
  virtual Outcome<StepResult> evaluate(const Plan& plan, const std::vector<MicroBatch>& micro_batches) = 0;

  /// clip_grad_norm_ between steps, over the gradients that the last one left: the norm before, as PyTorch returns it.
  virtual Outcome<at::Tensor> clip_grad_norm(double max_norm, double p) = 0;

  /// This rank's part of a parameter (a view; not while a step runs).
  virtual at::Tensor shard(ParamId param) const = 0;

  /// This rank's training state: views, so that writing them loads it. Moments that no step has made yet are made here.
  virtual Outcome<TrainState> state() = 0;
  /// After the state was written: how many steps the optimizer has done.
  virtual void set_optimizer_steps(std::int64_t steps) = 0;
  virtual void set_scaler(const ScalerState& state) = 0;
  /// Gradients as the optimizer would find them now, slot "grad"; parameters without one have no pieces.
  virtual TrainState gradients() const = 0;
};

}  // namespace foreshard::exec
