// Runtime "none": the same walk as fsdp2 without any unit, then the buckets of plain data parallelism when there are
// ranks.
#include <algorithm>

#include "core/plan/build_plan.h"
#include "core/plan/fsdp2/fsdp2_runtime.h"
#include "core/plan/fsdp2/plan_frame.h"
#include "core/plan/unsharded/bucket_reducer.h"
#include "core/runtime_layouts.h"

namespace foreshard {
namespace {

/// Nothing is managed: no hooks, no gathered parameters; every gradient is the parameter's own.
UnitTable without_units(const UnitTable& table) {
  UnitTable bare = table;
  bare.units.resize(1);
  bare.units[0].params.clear();
  bare.units[0].sharded.clear();
  bare.units[0].shard_size = 1;
  std::fill(bare.unit_of_param.begin(), bare.unit_of_param.end(), UnitId());
  std::fill(bare.unit_of_module.begin(), bare.unit_of_module.end(), UnitId());
  return bare;
}

/// Which backward passes of an iteration synchronise: those outside of no_sync.
std::vector<bool> reducing_passes(const IterationScript& script) {
  std::vector<bool> reduces;
  int held = 0;
  for (const Action& action : script) {
    if (action.kind == Action::Kind::NoSyncEnter) ++held;
    if (action.kind == Action::Kind::NoSyncExit) --held;
    if (action.kind == Action::Kind::Backward || action.kind == Action::Kind::BackwardAll ||
        action.kind == Action::Kind::BackwardKeep) {
      reduces.push_back(held == 0);
    }
  }
  return reduces;
}

}  // namespace

Result<Plan> build_unsharded_plan(const PlanRequest& request) {
  const UnitTable bare = without_units(request.table);
  const PlanRequest inner{request.model, request.job, bare, request.graph, request.script, request.max_iterations};
  Plan plan = fsdp2::frame_with_segments(inner);
  plan.runtime = Runtime::None;
  const bool replicated = !leaves_gradients_unsummed(request.job);  // by DDP around the model
  const auto world =
      replicated ? static_cast<std::int32_t>(request.job.cluster.world_size / request.job.mesh.tensor) : 1;  // of data
  fsdp2::Fsdp2Runtime runtime(inner, plan);
  Result<void> done = runtime.prepare();
  if (!done) return tl::unexpected(done.error());
  unsharded::BucketReducer reducer(request.model, bare.trainable, world, plan);
  std::vector<std::int32_t> first_event;
  done =
      fsdp2::run_iterations(request, plan, first_event, [&](const IterationScript& script, PlanIteration& iteration) {
        const std::int32_t base = reducer.next_event();
        Result<void> ran = runtime.run(script, iteration.index, iteration);
        const std::vector<bool> reduces = reducing_passes(script);  // none: an evaluation leaves the buckets alone
        if (ran && world > 1 && !reduces.empty()) reducer.apply(iteration, reduces);
        first_event.push_back(base);
        return ran;
      });
  if (!done) return tl::unexpected(done.error());
  if (world > 1) plan.streams = {{Stream::H, 0}};
  plan.units = request.table.units;
  return plan;
}

}  // namespace foreshard
