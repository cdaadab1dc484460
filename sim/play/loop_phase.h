// Which of the training loop's phases an instruction belongs to, as the recordings name them. Plain values.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/plan.h"

namespace foreshard {

enum class LoopPhase : std::uint8_t { None, Forward, Backward, Clip, Optimizer, End };
std::string_view loop_phase_name(LoopPhase phase);  // "forward", ...
LoopPhase loop_phase_of(const Instruction& instruction);

/// The same with what came before it: recomputation runs forward hooks in backward, and what is freed after the step
/// is the loop's zero_grad. `stepped`: the iteration's optimizer has run.
LoopPhase loop_phase_after(LoopPhase phase, bool stepped, const Plan& plan, const Instruction& instruction);

}  // namespace foreshard
