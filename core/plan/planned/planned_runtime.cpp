#include "core/plan/planned/planned_runtime.h"

#include <utility>

#include "core/plan/fsdp2/fsdp2_runtime.h"
#include "core/plan/fsdp2/plan_frame.h"

namespace foreshard {
namespace {

/// Into the units that fsdp2 has prepared, prefetch lists among them.
void prepare(fsdp2::Run& run) {
  for (fsdp2::UnitState& u : run.units) u.keeps_over = std::erase(u.forward_prefetch, u.id) > 0;
  if (run.separate_reduce) run.reductions_in_flight = 2;
}

}  // namespace

Result<Plan> build_planned_plan(const PlanRequest& request) {
  Plan plan = fsdp2::frame_with_segments(request);
  plan.runtime = Runtime::Planned;
  return fsdp2::run_script(request, std::move(plan), prepare);
}

}  // namespace foreshard
