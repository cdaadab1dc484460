#include "sim/play/loop_phase.h"

#include <array>

namespace foreshard {

std::string_view loop_phase_name(LoopPhase phase) {
  constexpr std::array<std::string_view, 6> kNames{"", "forward", "backward", "clip", "optimizer", "end"};
  return kNames[static_cast<std::size_t>(phase)];
}

LoopPhase loop_phase_of(const Instruction& i) {
  switch (i.phase) {
    case Phase::RootPreForward:
    case Phase::PreForward:
    case Phase::Forward:
    case Phase::PostForward: return LoopPhase::Forward;
    case Phase::PreBackward:
    case Phase::Backward:
    case Phase::PostBackward:
    case Phase::FrozenPostBackward:
    case Phase::Final: return LoopPhase::Backward;
    case Phase::Clip: return LoopPhase::Clip;
    case Phase::Optimizer: return i.kind == InstructionKind::Zero ? LoopPhase::End : LoopPhase::Optimizer;
    default: break;
  }
  if (i.kind == InstructionKind::Clip) return LoopPhase::Clip;
  if (i.kind == InstructionKind::OptimizerStep) return LoopPhase::Optimizer;
  return i.kind == InstructionKind::Zero ? LoopPhase::End : LoopPhase::None;
}

LoopPhase loop_phase_after(LoopPhase phase, bool stepped, const Plan& plan, const Instruction& i) {
  const LoopPhase next = loop_phase_of(i);
  // Recomputation runs forward hooks in backward; a new forward begins with the root's hook.
  const bool sharded = plan.runtime != Runtime::None;
  const bool root = i.phase == Phase::RootPreForward && i.unit.value <= 0;  // a recomputed unit is one of its own
  if (phase == LoopPhase::Backward && next == LoopPhase::Forward && sharded && !root) return LoopPhase::Backward;
  // What is freed after the step are gradients, in the loop's zero_grad, but for what the step itself took.
  const bool of_step = i.buffer.what == BufferWhat::OptimizerTemp || i.buffer.what == BufferWhat::GatherScale;
  const bool frees = (i.kind == InstructionKind::Free && !of_step) || i.kind == InstructionKind::Zero;
  return stepped && frees && (next == LoopPhase::Optimizer || next == LoopPhase::None) ? LoopPhase::End : next;
}

}  // namespace foreshard
