// Which runtimes lay parameters out alike. Pure.
#pragma once

#include "core/job.h"

namespace foreshard {

/// Every parameter is sharded alone, checkpoints are DTensors': fsdp2, and what differs from it in time alone.
constexpr bool has_fsdp2_layouts(Runtime runtime) { return runtime == Runtime::Fsdp2 || runtime == Runtime::Planned; }

}  // namespace foreshard
