#include "core/plan/fsdp2/plan_frame.h"

#include <algorithm>

namespace foreshard::fsdp2 {
namespace {

/// Equal but for event names: events count from each iteration's own first one.
bool same_but_events(const PlanIteration& a, std::int32_t a_base, const PlanIteration& b, std::int32_t b_base) {
  if (a.instructions.size() != b.instructions.size()) return false;
  for (std::size_t i = 0; i < a.instructions.size(); ++i) {
    const Instruction& x = a.instructions[i];
    const Instruction& y = b.instructions[i];
    if (x.event.valid() && y.event.valid() && x.event.value - a_base == y.event.value - b_base) {
      Instruction shifted = y;
      shifted.event = x.event;
      if (x == shifted) continue;
      return false;
    }
    if (!(x == y)) return false;
  }
  return true;
}

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

Plan frame_of(const PlanRequest& request) {
  Plan plan;
  plan.runtime = Runtime::Fsdp2;
  plan.world_size = static_cast<std::int32_t>(request.job.cluster.world_size);
  plan.rank = static_cast<std::int32_t>(request.job.cluster.rank);
  plan.units = request.table.units;
  plan.groups = request.table.groups;
  plan.pre_divide = request.table.pre_divide;
  plan.post_divide = request.table.post_divide;
  plan.traps = request.table.traps;
  plan.warnings = request.table.warnings;
  plan.param_names.reserve(request.model.params.size());
  for (const ParamInfo& param : request.model.params) plan.param_names.push_back(param.fqn);
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
