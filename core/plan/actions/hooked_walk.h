// The units of an fsdp1 model as state dict hooks unshard them (K1..K3, U6): each unit's own, parents around children,
// or all at once (K7). Saving and loading differ in what they do while a unit is open. Private to core/plan/actions.
#pragma once

#include <functional>

#include "core/plan/actions/action_writer.h"

namespace foreshard::actions {

struct HookedWalk {
  bool writeback = false;
  bool rank0_only = false;
  bool offload_to_cpu = false;
  bool all_at_once = false;
  std::vector<bool> unsharded;  // by unit: gathered for its hook; the others are visited all the same
  std::function<void(UnitId)> before, while_open;  // before the unit is entered; before it is left, leaf to root
};

Result<void> walk_units(ActionWriter& out, const HookedWalk& walk);

}  // namespace foreshard::actions
