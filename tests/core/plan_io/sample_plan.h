// Plans for the tests of the outer forms: one written by hand (fsdp1, one block, bf16), and random ones that use every
// field.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "core/plan.h"

namespace foreshard {

/// FULL_SHARD, BACKWARD_PRE, limiter on, root R and one block B0, W=4; a first iteration shortened to one block.
Plan sample_plan();

/// Any values in any field: what the outer forms must carry, not what a runtime would make.
Plan random_plan(std::mt19937& random);

}  // namespace foreshard
