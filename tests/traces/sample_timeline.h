// A small timeline of two ranks with everything in it, uneven on purpose.
#pragma once

#include "core/timeline.h"

namespace foreshard {

Timeline sample_timeline();

}  // namespace foreshard
