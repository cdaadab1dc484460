// What a schedule decides for one unit, written out. A plain value; names are those of units' modules, the root is "".
#pragma once

#include <optional>
#include <string>

namespace foreshard {

struct UnitSchedule {
  std::string module;       // of a list the first one
  std::string keep;         // reshard: given back after forward | keep: until backward | always: over micro-batches
  std::string activations;  // keep | recompute | offload
  // The unit before whose forward (backward) the gather is issued; the unit itself: when it is needed. None: no gather.
  std::optional<std::string> gather_forward, gather_backward;
  std::optional<std::string> reduce;  // the unit after whose backward the gradients are reduced; none: it has none
  bool operator==(const UnitSchedule&) const = default;
};

}  // namespace foreshard
