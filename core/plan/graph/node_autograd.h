// What autograd does in the nodes of a module graph: the segments' own facts (core/lowering/segment_autograd.h) for
// runs of operators, and the little that is known of models without operators. Worked out when first asked. Owned by
// one builder of a plan; what it is made from outlives it.
#pragma once

#include <optional>
#include <vector>

#include "core/lowering/segment_autograd.h"
#include "core/plan/graph/module_graph.h"

namespace foreshard {

/// What the plans of one graph share: its nodes' facts, for the latest choice of trainable parameters. Owned by one
/// thread.
class GraphAutograd {
 public:
  /// By node. REQUIRES the model and the graph of the first call. The answer holds until other parameters are trained.
  const std::vector<SegmentAutograd>& of(const Model& model, const ModuleGraph& graph,
                                         const std::vector<bool>& trainable);

 private:
  std::vector<bool> trainable_;
  std::optional<std::vector<SegmentAutograd>> segments_;
};

class NodeAutograd {
 public:
  /// `shared`: by other plans of the graph; nullptr: by none.
  NodeAutograd(const Model& model, const ModuleGraph& graph, const std::vector<bool>& trainable, GraphAutograd* shared)
      : model_(model), graph_(graph), trainable_(trainable), shared_(shared) {}

  /// Something is kept for backward: a recomputation goes on until the last node that keeps something, and the first
  /// that runs backward starts it.
  bool saves(std::int32_t node);
  /// Backward of a run of operators reads the values of this parameter. An embedding's reads indices, not the table.
  bool reads(std::int32_t node, ParamId param);
  /// ... of any parameter.
  bool reads_params(std::int32_t node);

 private:
  const SegmentAutograd& segment(std::int32_t node);

  const Model& model_;
  const ModuleGraph& graph_;
  const std::vector<bool>& trainable_;
  GraphAutograd* shared_;
  GraphAutograd own_;
  const std::vector<SegmentAutograd>* segments_ = nullptr;  // once asked
};

}  // namespace foreshard
