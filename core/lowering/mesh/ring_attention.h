// Attention over a sequence that ranks share (context parallelism), as PyTorch runs it:
// torch/distributed/tensor/experimental/_context_parallel/_attention.py, _templated_ring_attention and its backward
// with head-tail load balancing. Internal to lowering.
#pragma once

#include <vector>

#include "core/lowering/backward/backward.h"
#include "core/lowering/op_rules.h"

namespace foreshard::lowering {

/// mesh.flash_attention(q, k, v, ..., mesh=, rotate=): arguments and results as those of flash attention, each of this
/// rank's part of the sequence. rotate: allgather (keys and values of all ranks at once) or alltoall (a ring).
std::vector<Ref> ring_attention_forward(Emitter& emit, const Op& op, const std::vector<Ref>& args,
                                        const std::vector<Layout>& results);
std::vector<Ref> ring_attention_backward(Emitter& emit, BackwardInput& in, const Ref& g);

}  // namespace foreshard::lowering
