#include "core/plan/fsdp2/plan_frame.h"

#include <algorithm>

#include "core/plan/runtime/plan_frame.h"

namespace foreshard::fsdp2 {
namespace {

void add_segments(const PlanRequest& request, Plan& plan) {
  std::vector<bool> checkpointed(request.graph.nodes.size(), false);
  std::vector<bool> inside(request.graph.calls.size(), false);
  for (std::size_t c = 0; c < request.graph.calls.size(); ++c) {  // callers stand before what they call
    const GraphCall& call = request.graph.calls[c];
    if (call.checkpoint != CheckpointKind::None) inside[c] = true;
    for (const GraphStep& step : call.steps) {
      if (!inside[c]) continue;
      (step.is_call ? inside : checkpointed)[static_cast<std::size_t>(step.index)] = true;
    }
  }
  plan.segments.reserve(request.graph.nodes.size());
  for (std::size_t n = 0; n < request.graph.nodes.size(); ++n) {
    const GraphNode& node = request.graph.nodes[n];
    Segment segment{node.label, node.module, UnitId(0), node.op_begin, node.op_end, node.params, checkpointed[n]};
    for (ModuleId m = node.module; m.valid(); m = request.model.modules[m.index()].parent) {
      const UnitId unit = request.table.unit_of_module[m.index()];
      if (!unit.valid()) continue;
      segment.unit = unit;
      break;
    }
    plan.segments.push_back(std::move(segment));
  }
}

}  // namespace

Plan frame_with_segments(const PlanRequest& request) {
  Plan plan = frame_of(request.model, request.job, request.table);
  plan.runtime = Runtime::Fsdp2;
  add_segments(request, plan);
  return plan;
}

Result<void> run_iterations(const PlanRequest& request, Plan& plan, const std::vector<std::int32_t>& first_event,
                            const IterationRunner& run) {
  const std::size_t scripted = request.script.iterations.size();
  const auto limit = static_cast<std::size_t>(std::max(request.max_iterations, static_cast<int>(scripted)));
  plan.iterations.reserve(std::min<std::size_t>(limit, scripted + 3));
  for (std::size_t i = 0; scripted > 0 && i < (request.script.repeat ? limit : scripted); ++i) {
    PlanIteration iteration;
    iteration.index = static_cast<std::int32_t>(i);
    // A unit's hooks are about 80 instructions, its parameters about 10 each over forward and backward.
    const std::size_t guess = 80 * plan.units.size() + 10 * request.model.params.size();
    iteration.instructions.reserve(plan.iterations.empty() ? guess : plan.iterations.back().instructions.size() + 64);
    const Result<void> done = run(request.script.iterations[std::min(i, scripted - 1)], iteration);
    if (!done) return done;
    plan.iterations.push_back(std::move(iteration));
    if (i == 0) continue;
    plan.steady = same_but_events(plan.iterations[i - 1], first_event[i - 1], plan.iterations[i], first_event[i]);
    if (request.script.repeat && i + 1 >= scripted && plan.steady) break;
  }
  return {};
}

}  // namespace foreshard::fsdp2
