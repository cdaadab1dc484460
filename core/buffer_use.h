// What a plan's buffers are there for, as memory is told in reports: of simulated and of real runs alike.
#pragma once

#include <cstdint>

#include "core/plan.h"

namespace foreshard {

enum class BufferUse : std::uint8_t {
  Shard,            // of parameters, resident
  Parameter,        // of a module, as it was made
  FullParameter,    // gathered
  Gradient,         // as autograd makes it
  ShardedGradient,  // what is left of it on this rank
  HostGradient,     // ... with CPU offload
  Communication,    // what collectives send and receive
  OptimizerState,
  ModuleBuffer,
  Input,
  Other,
};
BufferUse buffer_use(BufferWhat what);

}  // namespace foreshard
