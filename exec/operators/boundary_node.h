// Where a graph of ours ends: a tensor as a root of gradients of its own.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <utility>

namespace foreshard::exec {

/// Unlike a leaf's accumulator it does not hold the tensor, which may go once autograd has saved what it wants of it.
struct BoundaryNode final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return {}; }
};

inline void end_graph_at(const at::Tensor& tensor) {
  std::shared_ptr<torch::autograd::Node> node(new BoundaryNode(), torch::autograd::deleteNode);
  const auto number = node->add_input_metadata(tensor);
  torch::autograd::impl::set_gradient_edge(tensor, torch::autograd::Edge(std::move(node), number));
}

}  // namespace foreshard::exec
