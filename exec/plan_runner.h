// The executor's face: one rank's share of a Plan, run instruction by instruction on a Backend.
//
// The calling thread is the issuer: it walks an iteration's instructions in their order and gives each to its stream;
// the numbers are made on the streams' threads. Buffers, events and streams are exactly those of the plan; an
// operator's own temporaries are LibTorch's. What this version does not run is refused by create(), by instruction,
// before anything is started: so far plans of fsdp2 in one dtype, without accumulation, offload, checkpointing and
// hybrid groups.
//
// Every rank makes its own runner, from the plan for its rank, on its own thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/result.h"
#include "exec/backend.h"
#include "exec/communicator.h"
#include "exec/operator_interpreter.h"

namespace foreshard::exec {

struct PlanRunnerSetup {
  const Model& model;  // all references outlive the runner
  const Plan& plan;
  const OperatorInterpreter& interpreter;
  Backend& backend;
  std::map<Stream, std::shared_ptr<Communicator>> communicators;  // one for each stream that runs collectives
  OptimizerOptions optimizer;
  std::vector<at::Tensor> buffers;  // in the order of Model::buffers
};

struct StepResult {
  double loss = 0;                  // mean over this rank's micro-batches
  std::optional<double> grad_norm;  // of all ranks, before clipping, where the plan clips
};

class PlanRunner {
 public:
  virtual ~PlanRunner() = default;

  /// `full_params(id)` gives the whole starting value of a parameter; each rank keeps its shard of it.
  static Result<std::unique_ptr<PlanRunner>> create(PlanRunnerSetup setup,
                                                    const OperatorInterpreter::ParamTensors& full_params);

  /// One training step: the plan's next iteration, or its last one again. `micro_batches[i]` holds inputs in the order
  /// of Model::inputs. Returns when all streams are done.
  virtual Outcome<StepResult> step(const std::vector<std::vector<at::Tensor>>& micro_batches, double lr) = 0;

  /// This rank's part of a parameter (a view; not while a step runs).
  virtual at::Tensor shard(ParamId param) const = 0;
};

}  // namespace foreshard::exec
