// Timelines for tests of the viewer: uneven on purpose.
#pragma once

#include <cstdint>
#include <memory>

#include "core/timeline.h"
#include "gui/models/timeline/timeline_model.h"

namespace foreshard::testing {

/// One lane "D" of slices that do not overlap, of uneven lengths with uneven gaps.
Timeline random_lane(std::size_t slices, std::uint32_t seed);

/// What examples/toy.toml is predicted to do. `slower` stretches the durations of its all-gathers.
Timeline toy_timeline(double slower = 1.0);

std::shared_ptr<const gui::TimelineModel> toy_model(double slower = 1.0);

}  // namespace foreshard::testing
