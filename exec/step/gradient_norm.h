// clip_grad_norm_ over sharded gradients (G9, F2-29): each rank's share of the p-norm, the total, the scaling. All on
// the device: nothing is read back.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "core/units.h"

namespace foreshard::exec {

struct ElementRange {
  Numel begin = 0, end = 0;
};

struct NormedGradient {
  at::Tensor gradient;
  bool replicated = false;                   // every rank holds all of it: counted once, not summed over ranks
  std::vector<ElementRange> elsewhere = {};  // of the flattened gradient: another rank that is met counts these
};

/// Before the ranks meet. For an infinite p: maxima instead of sums of powers.
struct NormShare {
  at::Tensor sharded;     // fp32, one element a gradient (or one in all): summed over ranks, or the maximum taken
  at::Tensor replicated;  // fp32, one element
};

struct NormWish {
  double p = 2;
  bool apart = false;                            // one element of `sharded` for each gradient, in their order
  bool lists = false;                            // kernels over lists of tensors: PyTorch's own clip_grad_norm_
  c10::Device nowhere = c10::Device(c10::kCPU);  // where the share of a rank without gradients lies
};
NormShare norm_share(std::span<const NormedGradient> gradients, const NormWish& wish);
/// After the ranks have met: a 0-dim tensor in fp32.
at::Tensor total_norm(const NormShare& share, double p);
/// Multiplies every gradient by min(1, max_norm / (total + 1e-6)).
void clip_gradients(std::span<const NormedGradient> gradients, const at::Tensor& total, double max_norm,
                    bool lists = false);
/// The norm as PyTorch returns it: in the type that the gradients' types promote to.
at::Tensor returned_norm(std::span<const NormedGradient> gradients, const at::Tensor& total);

}  // namespace foreshard::exec
