#include "core/plan/graph/training_begins.h"

#include <algorithm>

namespace foreshard {
namespace {

bool trains(const ModuleGraph& graph, const GraphStep& step, const std::function<bool(ParamId)>& differentiates) {
  if (!step.is_call) {
    const GraphNode& node = graph.nodes[static_cast<std::size_t>(step.index)];
    return std::any_of(node.params.begin(), node.params.end(), differentiates);
  }
  const GraphCall& call = graph.calls[static_cast<std::size_t>(step.index)];
  const auto inner = [&](const GraphStep& each) { return trains(graph, each, differentiates); };
  return !call.without_grad && std::any_of(call.steps.begin(), call.steps.end(), inner);
}

}  // namespace

std::int32_t steps_before_training(const ModuleGraph& graph, const std::function<bool(ParamId)>& differentiates) {
  const GraphCall& root = graph.calls[0];
  if (!root.again.empty()) {
    std::size_t k = 0;
    while (k < root.again.size() && root.calls_without_grad[k]) ++k;
    return k == 0 ? 0 : root.again[k - 1];
  }
  const auto first = std::find_if(root.steps.begin(), root.steps.end(),
                                  [&](const GraphStep& step) { return trains(graph, step, differentiates); });
  return first == root.steps.end() ? 0 : static_cast<std::int32_t>(first - root.steps.begin());
}

std::int32_t first_step(const ModuleGraph& graph, const FsdpOptions& fsdp, bool rest) {
  const GraphCall& root = graph.calls[0];
  const bool is_unit = fsdp.runtime != Runtime::None && fsdp.wrap.root;
  return rest && (!is_unit || !root.again.empty()) ? root.once : 0;
}

}  // namespace foreshard
