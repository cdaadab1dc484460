// Gradients in the midst of a forward (torch.autograd.grad): which parameters' units autograd's engine goes back
// through.
#pragma once

#include <vector>

#include "core/plan/graph/module_graph.h"

namespace foreshard {

/// Whether autograd's engine runs operators of the model's forward.
bool runs_inner_gradients(const Model& model);

/// By node of the graph: the parameters that its operators run by the engine read, or views of them, in order and each
/// once. Empty: the engine runs nothing in a forward of this model.
std::vector<std::vector<ParamId>> params_of_inner_gradients(const Model& model, const ModuleGraph& graph);

}  // namespace foreshard
