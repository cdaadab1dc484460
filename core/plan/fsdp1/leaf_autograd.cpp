// The autograd nodes that one piece of compute makes in forward, and the tensors it saves for backward.
//
// The layers of models without operators make the very nodes of PyTorch's layers, because their order and the kernels
// between them decide autograd's waits (R26): Linear is a transpose and a matrix product, and so on. A run of operators
// is one node.
#include <algorithm>

#include "core/plan/fsdp1/forward.h"
#include "core/plan/graph/gradient_leaf.h"

namespace foreshard::fsdp1 {

using autograd::Edge;
using autograd::kNoNode;
using autograd::NodeIndex;

namespace {

DType promoted(DType a, DType b) {
  if (a == b || !is_floating(b)) return a;
  if (!is_floating(a)) return b;
  if (a == DType::Float64 || b == DType::Float64) return DType::Float64;
  return DType::Float32;
}

Edge edge_of(const Tensor* tensor) { return tensor == nullptr ? Edge{} : tensor->edge(); }

}  // namespace

LeafAutograd Forward::layer_of(const GraphNode& node) const {
  if (node.kind != GraphNode::Kind::Leaf) return LeafAutograd::Opaque;
  const std::size_t params = node.params.size(), inputs = node.inputs.size();
  switch (node.autograd) {  // a leaf that does not fit its kind is nobody's
    case LeafAutograd::Linear:
    case LeafAutograd::LayerNorm:
      return inputs == 1 && (params == 1 || params == 2) ? node.autograd : LeafAutograd::Opaque;
    case LeafAutograd::Scale: return inputs == 1 && params == 1 ? node.autograd : LeafAutograd::Opaque;
    case LeafAutograd::Embedding: return params == 1 ? node.autograd : LeafAutograd::Opaque;
    case LeafAutograd::LinearTimes:
      return inputs == 2 && (params == 1 || params == 2) ? node.autograd : LeafAutograd::Opaque;
    case LeafAutograd::Opaque: break;
  }
  return LeafAutograd::Opaque;
}

// True: go on. False: recomputation has made all it was asked for, or the forward failed.
bool Forward::run_node(std::int32_t node_index) {
  const auto at = static_cast<std::size_t>(node_index);
  const GraphNode& node = run_.graph.nodes[at];
  const auto tensor = [&](std::int32_t variable) -> Tensor& { return env_[static_cast<std::size_t>(variable)]; };
  switch (node.kind) {
    case GraphNode::Kind::Identity: tensor(node.outputs.front()) = tensor(node.inputs.front()); return true;
    case GraphNode::Kind::Detach:
      tensor(node.outputs.front()) = {kNoNode, 0, tensor(node.inputs.front()).dtype};
      return true;
    default: break;
  }
  gather_for_engine(node_index);
  if (run_.failed()) return false;
  Instruction& i = out_.emit(recompute_depth_ > 0 ? InstructionKind::Recompute : InstructionKind::Forward, Stream::D);
  i.unit = UnitId(run_.unit_of_node[at]);
  i.segment = SegmentId(at);
  if (node.kind == GraphNode::Kind::Add) {
    const Tensor a = tensor(node.inputs[0]);
    const Tensor b = tensor(node.inputs[1]);
    Tensor out{kNoNode, 0, promoted(a.dtype, b.dtype)};
    if (run_.grad_enabled && (a.requires_grad() || b.requires_grad())) {
      const Edge edges[] = {a.edge(), b.edge()};
      out.node = run_.autograd.add_node(kSilent, -1, Stream::D, 1, edges);
    }
    tensor(node.outputs.front()) = out;
    return true;
  }
  const LeafAutograd layer = layers_[at];
  const bool go_on = layer == LeafAutograd::Opaque ? add_opaque(node, node_index) : add_layer(node, layer, node_index);
  if (!go_on && !run_.failed()) out_.back().arg = 1;  // recomputation stops inside this segment
  return go_on;
}

// The parameter as the module sees it: a view of the gathered flat parameter, or an ignored parameter of its own.
Tensor Forward::param_tensor(ParamId param) {
  const ParamPlace place = run_.place_of_param[param.index()];
  if (place.unit >= 0) {
    const UnitState& u = run_.units[static_cast<std::size_t>(place.unit)];
    const NodeIndex view = u.views[static_cast<std::size_t>(place.index)];
    return {run_.grad_enabled ? view : kNoNode, 0, u.view_dtype};
  }
  const ParamId storage = run_.model.storage_of(param);
  Tensor tensor{kNoNode, 0, run_.model.params[storage.index()].dtype};
  if (run_.grad_enabled && run_.request.table.trainable[storage.index()]) {
    NodeIndex& node = unmanaged_[storage.index()];
    if (node == kNoNode) node = run_.autograd.add_accumulation(kIgnored, storage.value, Stream::D);
    tensor.node = node;
  }
  return tensor;
}

// Tensors saved inside a checkpointed region are counted in forward; recomputation stops at the last of them.
bool Forward::pack(std::int32_t count) {
  if (frame_ < 0 || count == 0 || !run_.grad_enabled) return true;
  if (frame_ != recomputing_) {
    run_.regions[static_cast<std::size_t>(frame_)].saved += count;
    return true;
  }
  recomputed_saves_ += count;
  return recomputed_saves_ < run_.regions[static_cast<std::size_t>(frame_)].saved;
}

bool Forward::add_linear(const Tensor& x, const Tensor* weight, const Tensor* bias, const Compute& compute,
                         Tensor& out) {
  if (x.dtype != weight->dtype) {
    run_.fail("RuntimeError", "a matrix product of " + std::string(dtype_name(x.dtype)) + " and " +
                                  std::string(dtype_name(weight->dtype)) + " in " +
                                  run_.plan.segments[compute.segment.index()].label +
                                  ": inputs of inner units are not cast (M8)");
    return false;
  }
  out = {kNoNode, 0, x.dtype};
  if (!run_.grad_enabled) return true;
  Edge transposed;
  if (weight->requires_grad()) {
    const Edge edge = weight->edge();
    transposed = {run_.autograd.add_node(kSilent, -1, Stream::D, 1, {&edge, 1}), 0};
  }
  if (!x.requires_grad() && !weight->requires_grad() && (bias == nullptr || !bias->requires_grad())) return true;
  Compute product = compute;
  product.reads_params = x.requires_grad();
  run_.computes.push_back(product);
  const auto data = static_cast<std::int32_t>(run_.computes.size() - 1);
  const Edge with_bias[] = {edge_of(bias), x.edge(), transposed};
  const std::span<const Edge> edges = bias == nullptr ? std::span<const Edge>(with_bias).subspan(1) : with_bias;
  out.node = run_.autograd.add_node(kCompute, data, Stream::D, 1, edges);
  return pack((weight->requires_grad() ? 1 : 0) + (x.requires_grad() ? 1 : 0));
}

bool Forward::add_layer(const GraphNode& node, LeafAutograd layer, std::int32_t segment) {
  const Tensor x = env_[static_cast<std::size_t>(node.inputs.front())];
  const Tensor weight = param_tensor(node.params.front());
  std::optional<Tensor> bias;
  if (node.params.size() > 1) bias = param_tensor(node.params[1]);
  const Tensor* bias_or_none = bias ? &*bias : nullptr;
  Compute compute;
  compute.segment = SegmentId(segment);
  compute.frame = recompute_depth_ > 0 && frame_ == recomputing_ ? -1 : frame_;
  compute.unit = run_.place_of_param[node.params.front().index()].unit;
  Tensor& out = env_[static_cast<std::size_t>(node.outputs.front())];
  if (layer == LeafAutograd::Linear) return add_linear(x, &weight, bias_or_none, compute, out);
  if (layer == LeafAutograd::LinearTimes) {
    Tensor product;
    Compute inner = compute;
    inner.leads = false;
    if (!add_linear(x, &weight, bias_or_none, inner, product)) return false;
    const Tensor y = env_[static_cast<std::size_t>(node.inputs[1])];
    out = {kNoNode, 0, promoted(product.dtype, y.dtype)};
    if (!run_.grad_enabled || (!product.requires_grad() && !y.requires_grad())) return true;
    run_.computes.push_back(compute);
    const Edge edges[] = {product.edge(), y.edge()};
    out.node =
        run_.autograd.add_node(kCompute, static_cast<std::int32_t>(run_.computes.size() - 1), Stream::D, 1, edges);
    return pack((y.requires_grad() ? 1 : 0) + (product.requires_grad() ? 1 : 0));
  }
  out = {kNoNode, 0,
         layer == LeafAutograd::Scale       ? promoted(x.dtype, weight.dtype)
         : layer == LeafAutograd::Embedding ? weight.dtype
                                            : x.dtype};
  const bool bias_needs = bias && bias->requires_grad();
  if (!run_.grad_enabled || (!x.requires_grad() && !weight.requires_grad() && !bias_needs)) return true;
  compute.reads_params = x.requires_grad();
  run_.computes.push_back(compute);
  const auto data = static_cast<std::int32_t>(run_.computes.size() - 1);
  if (layer == LeafAutograd::Embedding) {
    const Edge edge = weight.edge();
    out.node = run_.autograd.add_node(kCompute, data, Stream::D, 1, {&edge, 1});
    return pack(1);
  }
  const Edge edges[] = {x.edge(), weight.edge(), edge_of(bias_or_none)};
  out.node =
      run_.autograd.add_node(kCompute, data, Stream::D, 1, std::span<const Edge>(edges).first(node.params.size() + 1));
  if (layer == LeafAutograd::LayerNorm) return pack(static_cast<std::int32_t>(node.params.size()) + 3);
  return pack((weight.requires_grad() ? 1 : 0) + (x.requires_grad() ? 1 : 0));
}

// One node for a whole run of operators (or a layer nobody knows, or an activation function).
bool Forward::add_opaque(const GraphNode& node, std::int32_t segment) {
  bool needs_grad = false;
  edge_buffer_.clear();
  DType dtype = node.inputs.empty() ? DType::Float32 : env_[static_cast<std::size_t>(node.inputs.front())].dtype;
  for (const std::int32_t input : node.inputs) {
    edge_buffer_.push_back(env_[static_cast<std::size_t>(input)].edge());
    needs_grad = needs_grad || env_[static_cast<std::size_t>(input)].requires_grad();
  }
  Compute compute;
  compute.segment = SegmentId(segment);
  const bool operators = node.kind == GraphNode::Kind::Ops;
  const bool saves = !operators || run_.node_autograd.saves(segment);
  compute.frame = (recompute_depth_ > 0 && frame_ == recomputing_) || !saves ? -1 : frame_;
  compute.reads_params = needs_grad && (operators ? run_.node_autograd.reads_params(segment) : !node.params.empty());
  for (const ParamId param : node.params) {
    const Tensor tensor = param_tensor(param);
    // A view that nothing comes back to (read in no_grad): its piece is made of zeros (R26).
    const bool idle = std::find(node.idle.begin(), node.idle.end(), param) != node.idle.end();
    if (!idle) edge_buffer_.push_back(tensor.edge());
    needs_grad = needs_grad || tensor.requires_grad();
    dtype = tensor.dtype;
  }
  if (!node.params.empty()) compute.unit = run_.place_of_param[node.params.front().index()].unit;
  NodeIndex made = kNoNode;
  if (run_.grad_enabled && needs_grad) {
    run_.computes.push_back(compute);
    made = run_.autograd.add_node(kCompute, static_cast<std::int32_t>(run_.computes.size() - 1), Stream::D,
                                  static_cast<std::int32_t>(node.outputs.size()), edge_buffer_);
  }
  for (std::size_t o = 0; o < node.outputs.size(); ++o) {
    const GraphTensor& variable = run_.graph.tensors[static_cast<std::size_t>(node.outputs[o])];
    Tensor& out = env_[static_cast<std::size_t>(node.outputs[o])];
    out = {variable.differentiable ? made : kNoNode, static_cast<std::int32_t>(o),
           variable.value.valid() ? run_.model.values[variable.value.index()].dtype : dtype};
    const bool leaf = made == kNoNode && run_.grad_enabled && variable.differentiable;
    if (leaf && begins_gradients(run_.model, node)) out.node = run_.autograd.add_accumulation(kInput, -1, Stream::D);
  }
  return made == kNoNode || pack(saves ? 1 : 0);
}

}  // namespace foreshard::fsdp1
