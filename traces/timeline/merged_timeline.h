// One timeline from those of several ranks, whose clocks were aligned when they were made.
#pragma once

#include <vector>

#include "core/timeline.h"

namespace foreshard {

/// Lanes, spans, flows, counters and marks one after another in the order given, names and units made one table.
/// Provenance is the first one's, with everybody's clock and the sum of dropped records.
Timeline merge_timelines(const std::vector<Timeline>& timelines);

}  // namespace foreshard
