// Which parameters a loss really hangs on: a layer may make results that nobody uses (the last layer's edges, scores
// that are only told), and its parameters then have no gradient although it runs backward.
#pragma once

#include <vector>

#include "core/plan/graph/module_graph.h"

namespace foreshard {

/// Of every run of operators: `idle` are the parameters from whose uses in it no gradient comes back. Storage that is
/// written in place counts as one value, so that some may be missed.
void find_idle_params(const Model& model, std::vector<GraphNode>& nodes);

}  // namespace foreshard
