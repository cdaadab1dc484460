// Backward passes: the loss, the nodes in autograd's order, and the hooks that fire in them (R11, R13..R16, R26).
#pragma once

#include <vector>

#include "core/plan/fsdp1/forward.h"
#include "core/plan/fsdp1/gathering.h"
#include "core/plan/fsdp1/gradients.h"
#include "core/plan/fsdp1/run.h"

namespace foreshard::fsdp1 {

class Backward {
 public:
  Backward(Run& run, Gathering& gathering, Gradients& gradients, Forward& forward)
      : run_(run), out_(run.out), gathering_(gathering), gradients_(gradients), forward_(forward) {}

  /// From the first outputs of pending forwards.
  void run(const std::vector<Tensor>& outputs);

 private:
  Tensor loss_of(const std::vector<Tensor>& outputs);
  autograd::PassId run_pass(const std::vector<autograd::Edge>& roots);
  void finish_pass(autograd::PassId pass);
  void run_node(autograd::PassId pass, autograd::NodeIndex node);
  bool uses_again(autograd::NodeIndex node, std::size_t edge);
  void run_compute(autograd::NodeIndex node);
  void run_region(autograd::PassId pass, autograd::NodeIndex node);
  void need_region(std::int32_t frame);
  void concatenate(autograd::PassId pass, autograd::NodeIndex node);
  Bytes fill_missing(autograd::PassId pass, autograd::NodeIndex node, UnitState& u);
  void free_piece(const UnitState& u, ParamId param, Stream pool, Stream user);
  void accumulate(autograd::PassId pass, autograd::NodeIndex node);
  void accumulate_ignored(ParamId param);
  void pre_backward(UnitState& u);
  void reshard_only_hook(autograd::PassId pass, ReshardGroup& group);
  void final_callback(UnitState& root);
  void finish_unit(UnitState& u);
  void emit_actions();
  void emit_end_of_pass();
  UnitId unit_of_node(autograd::NodeIndex node) const;
  void emit_gradient_add(const autograd::Action& action);

  Run& run_;
  InstructionWriter& out_;
  Gathering& gathering_;
  Gradients& gradients_;
  Forward& forward_;
  std::vector<autograd::Action> actions_;
  std::vector<std::vector<UnitId>> final_queued_;  // by running pass: roots whose final callbacks run behind it
  UnitId acting_;                                  // the unit whose node runs; none: a layer's
  std::vector<std::int64_t> pass_serials_;
  std::int64_t pass_serial_ = 0;
  std::vector<ParamId> first_names_;  // by view, once seen: the name that its gradient came by first
};

}  // namespace foreshard::fsdp1
