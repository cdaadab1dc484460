// Where a script makes a leaf of a value inside the program (requires_grad_ on an embedding's result).
#pragma once

#include "core/plan/graph/module_graph.h"

namespace foreshard {

/// One of the node's operators makes a value with ValueInfo::requires_grad: what it leads to has gradients up to it.
bool begins_gradients(const Model& model, const GraphNode& node);

}  // namespace foreshard
