#include "core/plan/graph/gradient_leaf.h"

#include <algorithm>

namespace foreshard {

bool begins_gradients(const Model& model, const GraphNode& node) {
  for (std::int32_t i = std::max(node.op_begin, 0); i < node.op_end; ++i) {
    for (const ValueId id : model.ops[static_cast<std::size_t>(i)].out)
      if (id.valid() && model.values[id.index()].requires_grad) return true;
  }
  return false;
}

}  // namespace foreshard
