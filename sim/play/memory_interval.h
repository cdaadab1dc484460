// 90 % intervals of a prediction's memory: how far predicted peaks have been from measured ones. Pure.
//
// What FSDP, autograd and the optimizer allocate follows from the plan and is exact for the library versions of the
// recordings (`foreshard-oracle gpu-memory`); other versions, other model code and fragmentation make the difference.
#pragma once

#include <string_view>

#include "sim/play/prediction.h"

namespace foreshard {

struct MemoryIntervals {
  Estimate allocated, active, reserved;  // bytes; peaks over all iterations
  Estimate device;                       // reserved and what lies beside the allocator: what a card must hold
};

/// `kind` is HardwareProfile::kind.
MemoryIntervals memory_intervals(const Prediction& prediction, std::string_view kind);

/// Half widths, relative, of allocated (and active) and of reserved bytes.
struct MemoryWidths {
  double allocated = 0, reserved = 0;
};
MemoryWidths memory_widths(std::string_view kind, const Prediction& prediction);

}  // namespace foreshard
