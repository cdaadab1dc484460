// The face of core/plan: a model and a job in, a checked plan out.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/plan/graph/module_graph.h"
#include "core/plan/graph/node_autograd.h"
#include "core/plan/graph/script.h"
#include "core/plan/units/units.h"
#include "core/result.h"

namespace foreshard {

/// What a runtime's builder is given. All of it outlives the call.
struct PlanRequest {
  const Model& model;
  const Job& job;
  const UnitTable& table;
  const ModuleGraph& graph;
  const Script& script;
  int max_iterations = 12;            // a repeating script stops here even if two iterations in a row still differ
  GraphAutograd* autograd = nullptr;  // of the graph, where other plans of it ask too
};

/// The runtimes: functions from units to a plan (units, streams, groups, segments, iterations, traps are filled in).
Result<Plan> build_fsdp1_plan(const PlanRequest& request);
Result<Plan> build_fsdp2_plan(const PlanRequest& request);
Result<Plan> build_unsharded_plan(const PlanRequest& request);  // runtime "none": plain data parallel or one rank

/// Units, graph, script, the runtime of job.fsdp.runtime, then the checks V1..V15 and the traps. Refused traps are an
/// Error with code Refused unless listed in job.fsdp.allow_traps.
Result<Plan> build_plan(const Model& model, const Job& job);

/// What a caller that plans many jobs of one model keeps between them, and what it gets back for lowering.
struct PlanParts {
  using GraphMaker = std::function<Result<std::shared_ptr<const ModuleGraph>>(
      const std::vector<bool>& boundary, const std::vector<CheckpointKind>& checkpoint, bool checkpoint_inside,
      const std::vector<bool>& differentiated)>;
  GraphMaker graph;                          // in place of build_module_graph; empty = that
  GraphAutograd* autograd = nullptr;         // of the graph that `graph` has given, which may set this
  bool checks = true;                        // false: Plan::checks stays empty
  std::shared_ptr<const UnitTable> units;    // the units that the plan is made from; made if nobody knows them yet
  std::vector<CheckpointKind> checkpointed;  // out, by ModuleId
};
Result<Plan> build_plan(const Model& model, const Job& job, PlanParts& parts);

/// The job without what its units do not depend on (prefetch, checkpointing, the loop, ...): jobs of one model with
/// equal ones have equal units.
Job units_key(const Job& job);

/// The blocks of the model, which checkpointing.policy "block" wraps, by ModuleId.
std::vector<bool> block_modules(const Model& model, const Job& job);

/// The modules that job.checkpointing wraps, by ModuleId.
Result<std::vector<CheckpointKind>> checkpointed_modules(const Model& model, const Job& job, const UnitTable& table);

}  // namespace foreshard
