// How an interpreter walks an iteration of a plan: ids counted over all iterations, a backend that is told where it is.
#pragma once

#include <cstdint>

#include "core/plan.h"
#include "exec/backend/backend.h"

namespace foreshard::exec {

/// The id of an iteration's first instruction.
std::int32_t first_instruction(const Plan& plan, std::size_t iteration);

/// Calls `issue(instruction, next, id)` for each instruction in order until one fails; `next` is null behind the last.
/// The backend hears `step` and the id before each, and the step alone at the end.
template <class Issue>
Outcome<void> walk_iteration(Backend& backend, const PlanIteration& iteration, std::int32_t step, std::int32_t first_id,
                             Issue&& issue) {
  const std::vector<Instruction>& all = iteration.instructions;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const InstructionId id(first_id + static_cast<std::int32_t>(i));
    backend.at_instruction(step, id);
    if (auto done = issue(all[i], i + 1 < all.size() ? &all[i + 1] : nullptr, id); !done) return done;
  }
  backend.at_instruction(step, {});
  return {};
}

}  // namespace foreshard::exec
