// Activation checkpointing (P9): what a region keeps, and running it again inside backward.
#include "core/plan/fsdp1/forward.h"

namespace foreshard::fsdp1 {

using autograd::kNoNode;
using autograd::NodeIndex;

bool Forward::run_region(const Region& region) {
  return region.hooks ? run_hooked(region.call) : run_body(region.call);
}

// Non-reentrant: forward runs as usual, but what it saves is dropped and made again when backward first asks for it.
bool Forward::run_checkpointed(std::int32_t call_index, bool hooks) {
  const GraphCall& call = run_.graph.calls[static_cast<std::size_t>(call_index)];
  if (call.checkpoint == CheckpointKind::Reentrant) return run_reentrant(call_index, hooks);
  Region region;
  region.call = call_index;
  region.hooks = hooks;
  if (!run_.grad_enabled) return run_region(region);
  for (const std::int32_t input : call.inputs) region.inputs.push_back(env_[static_cast<std::size_t>(input)]);
  run_.autograd.skip_number();  // the node that keeps the inputs; they are saved tensors of the region around this one
  if (!pack(1 + static_cast<std::int32_t>(call.inputs.size()))) return false;
  const std::int32_t outer = frame_;
  region.outer = outer == recomputing_ ? -1 : outer;
  run_.regions.push_back(region);
  frame_ = static_cast<std::int32_t>(run_.regions.size() - 1);
  const bool go_on = run_region(region);
  frame_ = outer;
  return go_on;
}

// Reentrant: forward runs without grad; one node stands for the region and its backward is a pass of its own.
bool Forward::run_reentrant(std::int32_t call_index, bool hooks) {
  const GraphCall& call = run_.graph.calls[static_cast<std::size_t>(call_index)];
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
  if (run_.grad_enabled && needs_grad) {
    region.outer = frame_ == recomputing_ ? -1 : frame_;
    run_.regions.push_back(region);
    node = run_.autograd.add_node(kCheckpoint, static_cast<std::int32_t>(run_.regions.size() - 1), Stream::D,
                                  static_cast<std::int32_t>(call.outputs.size()), edges);
  } else {
    run_.autograd.skip_number();
  }
  const bool enabled = run_.grad_enabled;
  run_.grad_enabled = false;
  const bool go_on = run_region(region);
  run_.grad_enabled = enabled;
  if (!go_on) return false;
  for (std::size_t o = 0; o < call.outputs.size(); ++o) {
    Tensor& out = env_[static_cast<std::size_t>(call.outputs[o])];
    out = {is_floating(out.dtype) ? node : kNoNode, static_cast<std::int32_t>(o), out.dtype};
  }
  return node == kNoNode || pack(static_cast<std::int32_t>(call.inputs.size()));
}

// A node of the region asks for a saved tensor: run forward again, with grad, until all saved tensors are there. The
// graph made on the way is thrown away; the hooks of units that are not in their own backward are not (P9).
void Forward::recompute(std::int32_t frame) {
  const Region region = run_.regions[static_cast<std::size_t>(frame)];
  const std::int32_t outer_frame = frame_;
  const std::int32_t outer_recomputing = recomputing_;
  const std::int32_t outer_saves = recomputed_saves_;
  const bool enabled = run_.grad_enabled;
  frame_ = recomputing_ = frame;
  recomputed_saves_ = 0;
  run_.grad_enabled = true;
  ++recompute_depth_;
  const GraphCall& call = run_.graph.calls[static_cast<std::size_t>(region.call)];
  for (std::size_t i = 0; i < call.inputs.size(); ++i)
    env_[static_cast<std::size_t>(call.inputs[i])] = region.inputs[i];
  run_region(region);
  --recompute_depth_;
  run_.grad_enabled = enabled;
  recomputed_saves_ = outer_saves;
  recomputing_ = outer_recomputing;
  frame_ = outer_frame;
  out_.set_phase(Phase::Backward);
}

std::vector<NodeIndex> Forward::rerun_detached(const Region& region) {
  const GraphCall& call = run_.graph.calls[static_cast<std::size_t>(region.call)];
  const std::int32_t outer_frame = frame_;
  const std::int32_t outer_recomputing = recomputing_;
  frame_ = recomputing_ = -1;
  run_.grad_enabled = true;
  ++recompute_depth_;
  std::vector<NodeIndex> leaves(call.inputs.size(), kNoNode);
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    Tensor input = region.inputs[i];
    if (input.requires_grad()) {
      leaves[i] = run_.autograd.add_accumulation(kInput, -1, Stream::D);
      input = {leaves[i], 0, input.dtype};
    }
    env_[static_cast<std::size_t>(call.inputs[i])] = input;
  }
  run_region(region);
  --recompute_depth_;
  run_.grad_enabled = false;
  out_.set_phase(Phase::Backward);
  frame_ = outer_frame;
  recomputing_ = outer_recomputing;
  return leaves;
}

}  // namespace foreshard::fsdp1
