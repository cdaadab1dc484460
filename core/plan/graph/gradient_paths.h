// Which parameters a loss really hangs on: a layer may make results that nobody uses (the last layer's edges, scores
// that are only told), and its parameters then have no gradient although it runs backward.
#pragma once

#include <cstddef>
#include <vector>

#include "core/lowering/op_rules.h"
#include "core/plan/graph/module_graph.h"
#include "core/plan/graph/references.h"

namespace foreshard {

/// Values that are one memory, and one history: views, and what operators in place leave. What `detach` makes is apart.
class SharedMemory {
 public:
  /// `rules` by operator (rules_of).
  SharedMemory(const Model& model, const std::vector<const OpRule*>& rules, const References& references);
  /// A number that values of one memory have in common.
  std::size_t of(ValueId id) const { return of_[id.index()]; }

 private:
  std::vector<std::size_t> of_;
};

/// Of every run of operators: `idle` are the parameters from whose uses in it no gradient comes back. Storage that is
/// written in place counts as one value, so that some may be missed. `rules` by operator (rules_of).
void find_idle_params(const Model& model, const std::vector<const OpRule*>& rules, const References& references,
                      const SharedMemory& memory, std::vector<GraphNode>& nodes);

/// By ParamId, of storage owners: a gradient comes back from one of its uses. All of them where the model has no
/// operators.
std::vector<bool> params_with_gradient(const Model& model);

}  // namespace foreshard
