// Who did what for whom in a foreign recording: units and phases of FSDP from the ranges that a kernel's launch stands
// in, streams by the letters of a plan (core/plan.h) from what runs on them, iterations from the profiler's steps. So
// foreign recordings join with plans (traces/analysis/comparison.h). Private to the readers.
#pragma once

#include <cstdint>

#include "traces/timeline/timeline_builder.h"

namespace foreshard {

/// REQUIRES builder.finish() was called and labels of lanes are set. Returns the device with the most work.
std::int64_t assign_roles(TimelineBuilder& builder, std::int32_t rank);

}  // namespace foreshard
