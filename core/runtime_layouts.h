// Which runtimes lay parameters out alike, and which sum gradients. Pure.
#pragma once

#include "core/job.h"

namespace foreshard {

/// Every parameter is sharded alone, checkpoints are DTensors': fsdp2, and what differs from it in time alone.
constexpr bool has_fsdp2_layouts(Runtime runtime) { return runtime == Runtime::Fsdp2 || runtime == Runtime::Planned; }

/// Ranks share sequences and nothing is around the whole model: gradients of a part stay a part's.
inline bool leaves_gradients_unsummed(const Job& job) {
  return job.fsdp.runtime == Runtime::None && job.mesh.context > 1 && !job.fsdp.wrap.root;
}

}  // namespace foreshard
