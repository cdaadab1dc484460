// Numbers of traps (core/plan.h: Trap) that more than one room knows.
#pragma once

#include <cstdint>

namespace foreshard {

inline constexpr std::int64_t kTraps = 64;        // numbers that a job may allow
inline constexpr std::int64_t kMixedMeshes = 45;  // clip_grad_norm_ over parameters of several meshes

}  // namespace foreshard
