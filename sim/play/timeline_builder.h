// From what a player kept to a Timeline: lanes, spans by lane and start, flows from issue to work, memory counters,
// marks.
#pragma once

#include "core/lowering/lowering.h"
#include "core/plan.h"
#include "core/timeline.h"
#include "sim/device/device.h"
#include "sim/play/plan_player.h"

namespace foreshard {

struct PlayedIteration {
  std::int32_t index = 0;
  SimTime begin = 0;    // the one before has ended on the device
  InstructionId first;  // instruction
  SimTime issue = 0;    // the host begins to issue it
};

/// `instructions[k]` is the plan's instruction that was played with id k.
Timeline build_timeline(const Plan& plan, const LoweredProgram& lowered, const Device& device, const PlanPlayer& player,
                        const std::vector<const Instruction*>& instructions,
                        const std::vector<PlayedIteration>& iterations);

}  // namespace foreshard
