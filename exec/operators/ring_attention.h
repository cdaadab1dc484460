// Attention over a sequence that ranks share, on the host: torch/distributed/tensor/experimental/_context_parallel/
// _attention.py, _templated_ring_attention and its backward, around LibTorch's flash attention for CPUs (for which
// PyTorch itself has no sharding strategy; the arithmetic between the turns is the same).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <tuple>

#include "exec/communicators/communicator.h"

namespace foreshard::exec {

/// How a causal attention's turns go. `group` is null where a rank has the whole sequence.
struct RingAttention {
  std::shared_ptr<Communicator> group;
  bool gathers = true;  // keys and values of all ranks at once; false: round a ring
  std::optional<double> scale = std::nullopt;
};

/// q, k, v: [batch, heads, sequence, head], each of this rank's part of the sequence: piece r of 2 x ranks pieces, then
/// piece 2 x ranks - 1 - r. Returns the result, laid out as flash attention's, and the logarithms of the sums of
/// exponentials, [batch, heads, sequence] in fp32. Runs without autograd.
std::tuple<at::Tensor, at::Tensor> ring_attention(const RingAttention& ring, const at::Tensor& q, const at::Tensor& k,
                                                  const at::Tensor& v);

/// Gradients of q, k and v, in their types.
std::tuple<at::Tensor, at::Tensor, at::Tensor> ring_attention_backward(const RingAttention& ring,
                                                                       const at::Tensor& gradient, const at::Tensor& q,
                                                                       const at::Tensor& k, const at::Tensor& v,
                                                                       const at::Tensor& out, const at::Tensor& sums);

}  // namespace foreshard::exec
