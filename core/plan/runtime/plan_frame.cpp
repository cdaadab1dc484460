#include "core/plan/runtime/plan_frame.h"

namespace foreshard {
namespace {

/// Two events that are as far from their iteration's first one, or both none.
bool same_event(EventId a, std::int32_t a_first, EventId b, std::int32_t b_first) {
  if (!a.valid() || !b.valid()) return a == b;
  return a.value - a_first == b.value - b_first;
}

}  // namespace

Plan frame_of(const Model& model, const Job& job, const UnitTable& table) {
  Plan plan;
  plan.runtime = job.fsdp.runtime;
  plan.world_size = static_cast<std::int32_t>(job.cluster.world_size);
  plan.rank = static_cast<std::int32_t>(job.cluster.rank);
  plan.units = table.units;
  plan.groups = table.groups;
  plan.pre_divide = table.pre_divide;
  plan.post_divide = table.post_divide;
  plan.traps = table.traps;
  plan.warnings = table.warnings;
  plan.param_names.reserve(model.params.size());
  for (const ParamInfo& param : model.params) plan.param_names.push_back(param.fqn);
  return plan;
}

bool same_but_events(const PlanIteration& a, std::int32_t a_first, const PlanIteration& b, std::int32_t b_first) {
  if (a.instructions.size() != b.instructions.size() || a.limiter_queue.size() != b.limiter_queue.size()) return false;
  for (std::size_t i = 0; i < a.limiter_queue.size(); ++i) {
    if (!same_event(a.limiter_queue[i], a_first, b.limiter_queue[i], b_first)) return false;
  }
  for (std::size_t i = 0; i < a.instructions.size(); ++i) {
    const Instruction &x = a.instructions[i], &y = b.instructions[i];
    if (x.event == y.event && !x.event.valid()) {
      if (!(x == y)) return false;
      continue;
    }
    if (!same_event(x.event, a_first, y.event, b_first)) return false;
    Instruction shifted = y;
    shifted.event = x.event;
    if (!(x == shifted)) return false;
  }
  return true;
}

}  // namespace foreshard
