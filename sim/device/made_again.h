// What a compiled backward makes again instead of finding it saved, as Inductor's partitioner cuts
// (torch/_functorch/partitioners.py): results of pointwise and reduction kernels, where all they are made of is there,
// unless a product or an attention of backward reads them. Such a reader wants them in memory, so that making them
// again spares no traffic (config.ban_recompute_materialized_backward); products are never run twice.
//
// An approximation: what is cut where several results could be saved is the one that eager autograd saves.
#pragma once

#include <cstdint>
#include <vector>

#include "core/lowering/lowering.h"

namespace foreshard {

/// Whether Inductor would make it a part of a kernel of its own: pointwise, reductions, copies.
bool is_fusible(const Kernel& kernel);

/// Slots of the template of these operators, in the order in which `made` makes them: the pass whose results `backward`
/// finds (the forward, or the recomputation of a checkpointed one).
std::vector<std::int32_t> slots_made_again(const Model& model, const SegmentRange& range, const KernelList& made,
                                           const KernelList& backward);

}  // namespace foreshard
