// What PyTorch's fused copies of fsdp2 take for their arguments: one array of 64-bit numbers on the device that says
// which block of threads copies what. Sizes in bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "core/units.h"

namespace foreshard {

/// split_with_sizes_copy of a gather over `ranks`: `chunks` are one rank's parts.
Bytes split_copy_arguments(const std::vector<Bytes>& chunks, std::int64_t ranks, int multiprocessors);

/// _chunk_cat of gradients into the input of a reduction: `chunks` are one rank's parts in the reduction's type.
Bytes chunk_cat_arguments(const std::vector<Bytes>& chunks);

}  // namespace foreshard
