// Forward: the hooks around module calls and the walk over the module graph that fires them (F2-6, F2-9, F2-11, F2-16).
//
// The same walk recomputes a checkpointed call during backward. There the hooks of a unit that backward has already
// entered do nothing (F2-15); a unit inside the region that backward has not reached runs them as in forward, without
// resharding.
#pragma once

#include <vector>

#include "core/plan/fsdp2/gathering.h"
#include "core/plan/fsdp2/products.h"
#include "core/plan/fsdp2/run.h"

namespace foreshard::fsdp2 {

class Forward {
 public:
  enum class Pass : std::uint8_t { Forward, NoGrad, Recompute };

  /// REQUIRES prepare(run).
  Forward(Run& run, Gathering& gathering);

  /// `rest`: without what runs once for several micro-batches.
  Result<void> run(Pass pass, bool rest = false);
  /// The region's call again, up to the last node that keeps something for backward.
  Result<void> recompute(std::int32_t region);

 private:
  /// What a variable of the module graph holds: which autograd output made it.
  struct Tensor {
    autograd::NodeIndex node = autograd::kNoNode;
    std::int32_t slot = 0;
    bool requires_grad = false;
    std::int8_t dtype = -1;  // DType as far as parameters decide it; -1: unknown
  };

  Result<void> walk(std::int32_t call, Pass pass);
  Result<void> walk_body(std::int32_t call, Pass pass);
  Result<void> run_node(std::int32_t node, Pass pass);
  /// What a node makes of its inputs, and of its parameters: edges into the autograd graph, gradients, dtype.
  Tensor of_inputs(const GraphNode& node);
  Result<void> take_params(const GraphNode& node, Pass pass, Tensor& made);
  Result<void> check_gathered(const GraphNode& node) const;
  Result<void> check_inner_gradients(std::int32_t node) const;
  Result<void> check_inputs(const GraphNode& node, DType params);
  void pre_forward_hooks(UnitState& u, std::int32_t call, Pass pass);
  void post_forward_hooks(UnitState& u, std::int32_t call, Pass pass);
  void state_pre_forward(UnitState& u, std::int32_t call, Pass pass);
  void state_post_forward(UnitState& u, std::int32_t call, Pass pass);
  void root_pre_forward(UnitState& u);
  void call_root_again();
  UnitId& iter_forward_root(const UnitState& u) { return iter_forward_roots_[run_.context_of(u.id).index()]; }
  void note_post_forward(UnitState& u);
  void register_post_backward(UnitState& u, std::int32_t call);
  void cast_tensors(const std::vector<std::int32_t>& variables, DType dtype);
  void add_casts(const std::vector<std::int32_t>& outputs, DType dtype);
  std::int32_t last_saving_node(std::int32_t call);

  Run& run_;
  InstructionWriter& out_;
  Gathering& gathering_;
  std::vector<std::vector<ParamId>> engine_reads_;  // by GraphNode, see inner_gradients.h
  Products products_;
  std::vector<Tensor> tensors_;             // by GraphTensor
  std::vector<autograd::Edge> edges_;       // scratch
  std::vector<std::int8_t> dtypes_;         // scratch
  std::vector<UnitId> iter_forward_roots_;  // by root: the unit whose forward began its gathers
  std::int32_t first_step_ = 0;             // of the root's, in the forward that runs
  std::int32_t region_ = -1;
  std::int32_t last_saving_ = -1;  // node at which the running recomputation stops
  bool stop_recompute_ = false;
};

}  // namespace foreshard::fsdp2
