#include "exec/operators/kept_operator.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <utility>

#include "exec/operators/boundary_node.h"
#include "exec/operators/operator_call.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

using torch::autograd::Edge;
using torch::autograd::variable_list;

/// From the tensor's first element to behind its last.
Bytes extent_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return (last + 1) * static_cast<Bytes>(tensor.element_size());
}

void point_at(const c10::Storage& storage, const at::Tensor& tensor) {
  attach(storage, tensor.data_ptr(), extent_of(tensor));
}

}  // namespace

/// Stands in the recomputed graph where the operator would stand.
struct KeptNode final : torch::autograd::Node {
  explicit KeptNode(std::shared_ptr<KeptOperator> of) : kept(std::move(of)) {}

  variable_list apply(variable_list&& gradients) override {
    const std::shared_ptr<KeptOperator> own = std::move(kept);  // its backward runs once
    torch::autograd::edge_list roots, wanted;
    variable_list given;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined() || !own->roots_[i].is_valid()) continue;
      roots.push_back(std::move(own->roots_[i]));
      given.push_back(std::move(gradients[i]));
    }
    for (const auto& input : own->inputs_)
      if (input.edge.is_valid()) wanted.push_back(input.edge);
    for (const auto& param : own->params_) wanted.push_back(param.edge);
    if (roots.empty() || wanted.empty()) return variable_list(wanted.size());
    return torch::autograd::Engine::get_default_engine().execute(roots, given, /*keep_graph=*/false,
                                                                 /*create_graph=*/false, /*accumulate_grad=*/false,
                                                                 wanted);
  }

  std::shared_ptr<KeptOperator> kept;
};

bool can_keep(const OperatorCall& call) {
  const c10::FunctionSchema& schema = call.handle.schema();
  const bool views = std::any_of(schema.returns().begin(), schema.returns().end(),
                                 [](const c10::Argument& result) { return result.alias_info() != nullptr; });
  return !views && !schema.is_mutable();
}

at::Tensor KeptOperator::lend(ValueId id, const at::Tensor& input, bool differentiable) {
  for (const Input& known : inputs_)
    if (known.id == id) return known.alias;
  Input lent{id, empty_storage(input.device()), {}, {}, {}};
  point_at(lent.storage, input);
  {
    at::NoGradGuard no_grad;
    lent.alias = at::empty({0}, input.options()).set_(lent.storage, 0, input.sizes(), input.strides());
  }
  if (differentiable) {
    end_graph_at(lent.alias);
    lent.edge = torch::autograd::impl::gradient_edge(lent.alias);
  }
  inputs_.push_back(std::move(lent));
  return inputs_.back().alias;
}

void KeptOperator::reads(const at::Tensor& param) {
  const bool known =
      std::any_of(params_.begin(), params_.end(), [&](const Param& p) { return p.tensor.is_same(param); });
  if (!known) params_.push_back({param, torch::autograd::impl::gradient_edge(param)});
}

std::vector<at::Tensor> KeptOperator::keep(const std::vector<at::Tensor>& results) {
  for (const at::Tensor& result : results) {
    results_.emplace_back();
    roots_.emplace_back();
    if (!result.defined()) continue;
    const bool lent = std::any_of(inputs_.begin(), inputs_.end(), [&](const Input& input) {
      return result.has_storage() &&
             result.storage().unsafeGetStorageImpl() == input.storage.unsafeGetStorageImpl();  // an input itself
    });
    results_.back() = lent ? result.detach().clone() : result.detach();
    if (result.requires_grad()) roots_.back() = torch::autograd::impl::gradient_edge(result);
  }
  for (Input& input : inputs_) {
    input.alias = at::Tensor();
    attach(input.storage, nullptr, 0);
  }
  return results_;
}

void KeptOperator::give(ValueId id, const at::Tensor& input) {
  for (Input& known : inputs_)
    if (known.id == id) known.again = input;
}

std::vector<at::Tensor> KeptOperator::bring_back() {
  std::shared_ptr<torch::autograd::Node> node(new KeptNode(shared_from_this()), torch::autograd::deleteNode);
  for (Input& input : inputs_) {
    if (input.edge.is_valid()) node->add_next_edge(torch::autograd::impl::gradient_edge(input.again));
    const bool saved = input.storage.use_count() > 1;  // by the own graph
    input.again = saved ? input.again.detach() : at::Tensor();
    if (saved) point_at(input.storage, input.again);
  }
  for (const Param& param : params_) node->add_next_edge(param.edge);
  std::vector<at::Tensor> results = std::exchange(results_, {});
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].defined()) {
      node->add_input_metadata(torch::autograd::Node::undefined_input());
      continue;
    }
    const auto number = node->add_input_metadata(results[i]);
    if (roots_[i].is_valid()) torch::autograd::impl::set_gradient_edge(results[i], Edge(node, number));
  }
  return results;
}

}  // namespace foreshard::exec
