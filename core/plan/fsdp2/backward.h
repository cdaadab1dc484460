// Backward: which hook fires when (F2-14, F2-15, F2-17), and the final callback (F2-19). The order is autograd's
// (core/plan/autograd.h); everything runs on D.
#pragma once

#include <vector>

#include "core/plan/fsdp2/forward.h"
#include "core/plan/fsdp2/gathering.h"
#include "core/plan/fsdp2/reduction.h"
#include "core/plan/fsdp2/run.h"

namespace foreshard::fsdp2 {

class Backward {
 public:
  /// REQUIRES prepare(run).
  Backward(Run& run, Gathering& gathering, Reduction& reduction, Forward& forward);

  Result<void> run(const std::vector<autograd::Edge>& roots);

 private:
  Result<void> run_pass(const std::vector<autograd::Edge>& roots);
  void call_hooks(autograd::NodeIndex node, std::int32_t region, bool within);
  Result<void> run_reentrant(std::int32_t region);
  Result<void> run_backward_node(const Execution& execution);
  bool reads_param(std::int32_t node, ParamId param);
  void accumulate_grad(std::int32_t slot);
  void sum_by_hook(const ParamSlot& place);
  void contribute(std::int32_t slot, const Execution& execution, std::size_t edge);
  void add_piece(std::int32_t slot, ParamId dropped);
  void pre_backward(UnitState& u);
  Result<void> post_backward(UnitState& u);
  struct FinalCallback {
    UnitId root, unit;  // whose hook queued it
  };
  Result<void> final_callbacks();
  Result<void> final_callback(const FinalCallback& callback);
  void finalize(UnitState& u);
  void backward_prefetch(UnitState& u);
  bool is_queued(const UnitState& u) const;

  Run& run_;
  InstructionWriter& out_;
  Gathering& gathering_;
  Reduction& reduction_;
  Forward& forward_;
  std::vector<UnitId> states_in_order_;    // registration order; a list once per module (F2-19)
  std::vector<ParamId> pieces_;            // by slot: the name under which a pass made its first piece
  std::vector<FinalCallback> callbacks_;   // queued
  std::vector<autograd::Action> actions_;  // scratch
  std::vector<std::int32_t> with_grad_;    // scratch
};

}  // namespace foreshard::fsdp2
