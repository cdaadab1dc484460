// What every schedule holds at certain moments of a step, read off a simulated one that keeps all parameters.
//
// Pure functions of a memory log and the plan that was played; bytes as requested.
#pragma once

#include <cstdint>
#include <vector>

#include "core/memory_log.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/units.h"
#include "sim/schedule/candidate.h"

namespace foreshard {

/// Most bytes that were held while forwards ended and backwards began, of the micro-batch that held least: whatever is
/// kept for backward is alive then. `begin`: the id under which the last iteration's first instruction was played.
Bytes held_at_loss(const MemoryLog& log, const Plan& plan, const Model& model, const UnitFrame& frame,
                   std::int32_t begin);

/// While backward runs through a block.
struct BackwardMoment {
  int block = -1;  // in UnitFrame::blocks
  // Most bytes without the parameters of other units than the one that runs, of the micro-batch that held least.
  Bytes held = 0;
  std::vector<bool> later_blocks, later_units;  // whose backward is to come: what is kept of them is there
};
std::vector<BackwardMoment> held_in_backward(const MemoryLog& log, const Plan& plan, const Model& model,
                                             const UnitFrame& frame, std::int32_t begin);

}  // namespace foreshard
