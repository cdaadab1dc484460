#include "core/plan/graph/node_autograd.h"

#include <algorithm>

namespace foreshard {

const std::vector<SegmentAutograd>& GraphAutograd::of(const Model& model, const ModuleGraph& graph,
                                                      const std::vector<bool>& trainable) {
  if (segments_ && trainable_ == trainable) return *segments_;
  std::vector<OpRange> ranges;
  ranges.reserve(graph.nodes.size());
  for (const GraphNode& one : graph.nodes)
    ranges.push_back(one.kind == GraphNode::Kind::Ops ? OpRange{one.op_begin, one.op_end} : OpRange{});
  segments_ = segment_autograd(model, ranges, trainable);
  trainable_ = trainable;
  return *segments_;
}

const SegmentAutograd& NodeAutograd::segment(std::int32_t node) {
  if (segments_ == nullptr) segments_ = &(shared_ != nullptr ? *shared_ : own_).of(model_, graph_, trainable_);
  return (*segments_)[static_cast<std::size_t>(node)];
}

bool NodeAutograd::saves(std::int32_t node) {
  switch (graph_.nodes[static_cast<std::size_t>(node)].kind) {
    case GraphNode::Kind::Add:
    case GraphNode::Kind::Detach:
    case GraphNode::Kind::Identity: return false;
    case GraphNode::Kind::Relu:
    case GraphNode::Kind::Leaf: return true;
    case GraphNode::Kind::Ops: break;
  }
  return segment(node).saves();
}

bool NodeAutograd::reads(std::int32_t node, ParamId param) {
  const std::vector<ParamId>& read = segment(node).backward_reads;
  return std::find(read.begin(), read.end(), model_.storage_of(param)) != read.end();
}

bool NodeAutograd::reads_params(std::int32_t node) { return !segment(node).backward_reads.empty(); }

}  // namespace foreshard
