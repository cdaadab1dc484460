// The walk of the module graph: hooks around each unit's forward (R5, R8..R10, R14), the autograd nodes that layers
// make, and checkpointed regions, run again inside backward (P9).
//
// forward.cpp has hooks and walk, leaf_autograd.cpp what one piece of compute makes, checkpoint.cpp the regions.
#pragma once

#include <vector>

#include "core/plan/fsdp1/gathering.h"
#include "core/plan/fsdp1/gradients.h"
#include "core/plan/fsdp1/run.h"

namespace foreshard::fsdp1 {

class Forward {
 public:
  Forward(Run& run, Gathering& gathering, Gradients& gradients);

  /// A forward of the whole model; its outputs wait for backward.
  /// `rest`: without what runs once for several micro-batches.
  void run(bool rest = false);
  /// Forward of the region again, with grad, until all tensors that it saved are there.
  void recompute(std::int32_t frame);
  /// Reentrant: the same on detached inputs; for each input the leaf that stands for it, none where it needs no grad.
  std::vector<autograd::NodeIndex> rerun_detached(const Region& region);
  /// What a variable holds after the last run of its call.
  const Tensor& tensor(std::int32_t variable) const { return env_[static_cast<std::size_t>(variable)]; }
  /// The graph of earlier forwards is gone.
  void forget_graph();

 private:
  // forward.cpp
  void bind_inputs();
  void root_pre_forward(UnitState& root);
  void pre_forward(UnitState& u, const GraphCall& call);
  void post_forward(UnitState& u, const std::vector<std::int32_t>& outputs);
  void register_post_backward(UnitState& u);
  void register_reshard_only(UnitState& u, const GraphCall& call);
  void gather_for_engine(std::int32_t node);
  bool run_call(std::int32_t call);
  bool run_hooked(std::int32_t call);
  bool run_between_hooks(std::int32_t call_index);
  bool run_body(std::int32_t call);
  void root_calls_between(const GraphCall& call, std::size_t step);
  bool run_step(const GraphStep& step);

  // leaf_autograd.cpp
  bool run_node(std::int32_t node);
  Tensor param_tensor(ParamId param);
  LeafAutograd layer_of(const GraphNode& node) const;
  bool add_layer(const GraphNode& node, LeafAutograd layer, std::int32_t segment);
  bool add_opaque(const GraphNode& node, std::int32_t segment);
  bool add_linear(const Tensor& x, const Tensor* weight, const Tensor* bias, const Compute& compute, Tensor& out);
  bool pack(std::int32_t count);

  // checkpoint.cpp
  bool run_checkpointed(std::int32_t call, bool hooks);
  bool run_reentrant(std::int32_t call, bool hooks);
  bool run_region(const Region& region);

  Run& run_;
  InstructionWriter& out_;
  Gathering& gathering_;
  Gradients& gradients_;
  std::vector<LeafAutograd> layers_;                // by GraphNode
  std::vector<std::vector<ParamId>> engine_reads_;  // by GraphNode, see inner_gradients.h
  std::vector<Tensor> env_;
  std::vector<bool> hooked_outputs_;  // of the root's calls in this forward, by variable
  bool script_grad_ = true;           // of the root's caller
  std::int32_t first_step_ = 0;       // of the root's, in the forward that runs
  std::vector<autograd::Edge> edge_buffer_;
  std::vector<autograd::NodeIndex> unmanaged_;  // by ParamId: accumulation nodes of ignored parameters
  std::int32_t frame_ = -1;                     // innermost non-reentrant region being run
  std::int32_t recomputing_ = -1;               // the frame that is being recomputed
  std::int32_t recomputed_saves_ = 0;
  std::int32_t recompute_depth_ = 0;
};

}  // namespace foreshard::fsdp1
