// How a model with adapters is cut over the tensor dimension of a mesh, from how the plain one is. Internal to
// core/adapters.
#pragma once

#include <vector>

#include "core/adapters/adapted_tree.h"
#include "core/mesh/parallel_plan.h"

namespace foreshard::adapters {

/// Styles of the tree's modules, from `styles` of the plain model's. Beside a layer cut by rows of its weight the
/// adapter's first matrix is whole and its second is cut with the layer; beside one cut by columns the first is cut
/// with the layer and what it makes is summed, the second is whole. (torchtitan, components/lora.py,
/// _lora_adapter_sharding; peft 0.21, tuners/lora/model.py, add_lora_tp_hooks_dtensor.) Along the sequence, whole
/// matrices are "sequence": their gradients are terms of the ranks' sum.
std::vector<ParallelStyle> adapted_plan(const AdaptedTree& tree, const std::vector<ModuleStyle>& styles);

}  // namespace foreshard::adapters
