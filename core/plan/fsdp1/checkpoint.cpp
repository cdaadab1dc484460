// Activation checkpointing (P9): what a region keeps, and running it again inside backward.
#include "core/plan/fsdp1/runtime.h"

namespace foreshard::fsdp1 {

using autograd::kNoNode;
using autograd::NodeIndex;

bool Runtime::run_region(const Region& region) {
  return region.hooks ? run_hooked(region.call) : run_body(region.call);
}

// Non-reentrant: forward runs as usual, but what it saves is dropped and made again when backward first asks for it.
bool Runtime::run_checkpointed(std::int32_t call_index, bool hooks) {
  const GraphCall& call = graph_.calls[static_cast<std::size_t>(call_index)];
  if (call.checkpoint == CheckpointKind::Reentrant) return run_reentrant(call_index, hooks);
  Region region;
  region.call = call_index;
  region.hooks = hooks;
  if (!grad_enabled_) return run_region(region);
  for (const std::int32_t input : call.inputs) region.inputs.push_back(env_[static_cast<std::size_t>(input)]);
  autograd_.skip_number();  // the node that keeps the inputs; they are saved tensors of the region around this one
  if (!pack(1 + static_cast<std::int32_t>(call.inputs.size()))) return false;
  const std::int32_t outer = frame_;
  region.outer = outer == recomputing_ ? -1 : outer;
  regions_.push_back(region);
  frame_ = static_cast<std::int32_t>(regions_.size() - 1);
  const bool go_on = run_region(region);
  frame_ = outer;
  return go_on;
}

// Reentrant: forward runs without grad; one node stands for the region and its backward is a pass of its own.
bool Runtime::run_reentrant(std::int32_t call_index, bool hooks) {
  const GraphCall& call = graph_.calls[static_cast<std::size_t>(call_index)];
  Region region;
  region.call = call_index;
  region.hooks = hooks;
  bool needs_grad = false;
  std::vector<autograd::Edge> edges;
  for (const std::int32_t input : call.inputs) {
    region.inputs.push_back(env_[static_cast<std::size_t>(input)]);
    edges.push_back(region.inputs.back().edge());
    needs_grad = needs_grad || region.inputs.back().requires_grad();
  }
  NodeIndex node = kNoNode;
  if (grad_enabled_ && needs_grad) {
    region.outer = frame_ == recomputing_ ? -1 : frame_;
    regions_.push_back(region);
    node = autograd_.add_node(kCheckpoint, static_cast<std::int32_t>(regions_.size() - 1), Stream::D,
                              static_cast<std::int32_t>(call.outputs.size()), edges);
  } else {
    autograd_.skip_number();
  }
  const bool enabled = grad_enabled_;
  grad_enabled_ = false;
  const bool go_on = run_region(region);
  grad_enabled_ = enabled;
  if (!go_on) return false;
  for (std::size_t o = 0; o < call.outputs.size(); ++o) {
    Tensor& out = env_[static_cast<std::size_t>(call.outputs[o])];
    out = {is_floating(out.dtype) ? node : kNoNode, static_cast<std::int32_t>(o), out.dtype};
  }
  return node == kNoNode || pack(static_cast<std::int32_t>(call.inputs.size()));
}

// A saved tensor of the region is asked for. The region's inputs are saved tensors of the region around it, so that one
// is run again first; each once per pass.
void Runtime::need_region(std::int32_t frame) {
  if (frame < 0 || regions_[static_cast<std::size_t>(frame)].pass_serial == pass_serials_.back()) return;
  regions_[static_cast<std::size_t>(frame)].pass_serial = pass_serials_.back();
  need_region(regions_[static_cast<std::size_t>(frame)].outer);
  if (!failed()) recompute(frame);
}

// A node of the region asks for a saved tensor: run forward again, with grad, until all saved tensors are there. The
// graph made on the way is thrown away; the hooks of units that are not in their own backward are not (P9).
void Runtime::recompute(std::int32_t frame) {
  const Region region = regions_[static_cast<std::size_t>(frame)];
  const std::int32_t outer_frame = frame_;
  const std::int32_t outer_recomputing = recomputing_;
  const std::int32_t outer_saves = recomputed_saves_;
  const bool enabled = grad_enabled_;
  frame_ = recomputing_ = frame;
  recomputed_saves_ = 0;
  grad_enabled_ = true;
  ++recompute_depth_;
  const GraphCall& call = graph_.calls[static_cast<std::size_t>(region.call)];
  for (std::size_t i = 0; i < call.inputs.size(); ++i)
    env_[static_cast<std::size_t>(call.inputs[i])] = region.inputs[i];
  run_region(region);
  --recompute_depth_;
  grad_enabled_ = enabled;
  recomputed_saves_ = outer_saves;
  recomputing_ = outer_recomputing;
  frame_ = outer_frame;
  phase_ = Phase::Backward;
}

// Reentrant backward: forward on detached inputs, then a backward pass of its own, then the inputs' gradients go on.
void Runtime::backward_region(autograd::PassId pass, NodeIndex node) {
  const Region region = regions_[static_cast<std::size_t>(autograd_.data(node))];
  const GraphCall& call = graph_.calls[static_cast<std::size_t>(region.call)];
  const std::int32_t outer_frame = frame_;
  const std::int32_t outer_recomputing = recomputing_;
  need_region(region.outer);
  if (failed()) return;
  frame_ = recomputing_ = -1;
  grad_enabled_ = true;
  ++recompute_depth_;
  std::vector<NodeIndex> leaves(call.inputs.size(), kNoNode);
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    Tensor input = region.inputs[i];
    if (input.requires_grad()) {
      leaves[i] = autograd_.add_accumulation(kInput, -1, Stream::D);
      input = {leaves[i], 0, input.dtype};
    }
    env_[static_cast<std::size_t>(call.inputs[i])] = input;
  }
  run_region(region);
  --recompute_depth_;
  grad_enabled_ = false;
  phase_ = Phase::Backward;
  std::vector<autograd::Edge> roots;
  for (std::size_t o = 0; o < call.outputs.size(); ++o) {
    const Tensor& out = env_[static_cast<std::size_t>(call.outputs[o])];
    if (out.requires_grad() && autograd_.received(pass, node, static_cast<std::int32_t>(o)))
      roots.push_back(out.edge());
  }
  if (!failed() && roots.empty()) {
    fail("RuntimeError",
         "nothing in the checkpointed region " + model_.modules[call.module.index()].fqn + " requires grad");
  }
  if (failed()) return;
  const autograd::PassId inner = run_pass(roots);
  std::vector<bool> defined(leaves.size(), false);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    defined[i] =
        leaves[i] != kNoNode && autograd_.contains(inner, leaves[i]) && autograd_.received(inner, leaves[i], 0);
  }
  if (failed()) return;
  finish_pass(inner);
  frame_ = outer_frame;
  recomputing_ = outer_recomputing;
  for (std::size_t i = 0; i < leaves.size(); ++i) autograd_.send(pass, node, i, defined[i], actions_);
  emit_actions();
}

}  // namespace foreshard::fsdp1
