// Asynchronous tensor parallelism (mesh.async_tensor): what a product reads is gathered, and what it makes is
// scattered, piece by piece beside it. What torch/_inductor/fx_passes/micro_pipeline_tp.py fuses and
// torch/distributed/_symmetric_memory pipelines, as a price: collectives take what products do not hide. Nanoseconds.
//
//   p pieces, the first of them this rank's own
//   product     | 1 | 2 | ... | p |
//   transfer    |  2  | 3 | ... | p |    hidden at most: (p - 1) / p of the products
#pragma once

#include <vector>

#include "core/lowering/lowering.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "sim/machine/profile.h"
#include "sim/play/work_count.h"

namespace foreshard {

/// Takes from `device`, by kernel of `list`, what collectives of the tensor dimension do beside their products: a
/// gather beside all that read it, a scatter beside the one product that made what it sends; a scatter's pieces are
/// then added up. Weights' gradients sum over the gathered dimension, so they wait for all of it.
void overlap_products(const Model& model, const Segment& segment, const KernelList& list, bool backward,
                      const HardwareProfile& profile, std::vector<SimDuration>& device);

}  // namespace foreshard
