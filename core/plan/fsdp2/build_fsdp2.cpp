// The fsdp2 builder: units and script in, a plan with every iteration until two in a row are equal out.
#include <algorithm>

#include "core/plan/build_plan.h"
#include "core/plan/fsdp2/fsdp2_runtime.h"
#include "core/plan/fsdp2/plan_frame.h"

namespace foreshard {
namespace {

// Section 24, the traps that the script decides.
void add_traps(const PlanRequest& request, Plan& plan) {
  bool no_grad = false, held = false;
  for (const IterationScript& iteration : request.script.iterations) {
    for (const Action& action : iteration) {
      no_grad = no_grad || action.kind == Action::Kind::NoGradForward;
      held = held || action.kind == Action::Kind::NoSyncEnter ||
             (action.kind == Action::Kind::Call && action.call.method == UnitMethod::SetRequiresGradientSync &&
              action.call.truth() == false);
    }
  }
  std::vector<std::string> kept, low;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const PlanUnit& unit = plan.units[u];
    if (unit.params.empty()) continue;
    if (unit.reshard_after_forward.kind == ReshardAfterForward::Kind::False) kept.push_back(unit.name);
    if (unit.requires_grad && unit.reduce_dtype == DType::BFloat16) low.push_back(unit.name);
  }
  if (no_grad && !kept.empty()) {
    plan.traps.push_back(
        {7, "parameters stay gathered after a forward without grad", "O2, F2-11", kept,
         "the next forward does not gather these units again: it does not see a change of the parameters made in "
         "between, and their bytes stay allocated",
         "count these bytes in evaluation; change no parameter between the two, or reshard the units first", false});
  }
  if (held && !low.empty()) {
    plan.traps.push_back(
        {10, "micro-batches are added up in bfloat16", "F2-22", low,
         "gradients held without synchronisation are accumulated in the reduce dtype, which loses precision",
         "set fsdp.mixed_precision.reduce = \"float32\"", false});
  }
}

}  // namespace

namespace fsdp2 {

Result<Plan> run_script(const PlanRequest& request, Plan frame, Decisions decide) {
  Plan plan = std::move(frame);
  add_traps(request, plan);
  Fsdp2Runtime runtime(request, plan);
  Result<void> done = runtime.prepare(decide);
  if (!done) return tl::unexpected(done.error());
  std::vector<std::int32_t> first_event;
  done = run_iterations(request, plan, first_event, [&](const IterationScript& script, PlanIteration& iteration) {
    first_event.push_back(runtime.next_event());
    return runtime.run(script, iteration.index, iteration);
  });
  if (!done) return tl::unexpected(done.error());
  return plan;
}

}  // namespace fsdp2

Result<Plan> build_fsdp2_plan(const PlanRequest& request) {
  return fsdp2::run_script(request, fsdp2::frame_with_segments(request));
}

}  // namespace foreshard
