#include "traces/timeline/phase_group.h"

#include "core/plan.h"

namespace foreshard {

std::string_view phase_group(std::int32_t phase) {
  switch (static_cast<Phase>(phase)) {
    case Phase::RootPreForward:
    case Phase::PreForward:
    case Phase::Forward:
    case Phase::PostForward: return "forward";
    case Phase::PreBackward:
    case Phase::Backward:
    case Phase::PostBackward:
    case Phase::FrozenPostBackward:
    case Phase::Final: return "backward";
    case Phase::Clip: return "clip";
    case Phase::Optimizer: return "optimizer";
    default: return "";
  }
}

}  // namespace foreshard
