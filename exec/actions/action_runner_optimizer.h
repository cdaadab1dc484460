// The optimizer's part of ActionRunner's instructions (K5, K6): one instance a tensor of its state, counted from 1
// (Adam: 1 exp_avg, 2 exp_avg_sq). Runs inside work; the step counter is no tensor here (TrainState::optimizer_steps).
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "core/plan/actions/state_dict.h"
#include "exec/actions/action_runner_buffers.h"
#include "exec/actions/action_runner_layout.h"
#include "exec/checkpoint/train_state.h"

namespace foreshard::exec {

using NamedStates = std::map<std::string, at::Tensor, std::less<>>;

class ActionOptimizer {
 public:
  ActionOptimizer(const StateSource& source, ActionBuffers& buffers, const ActionLayout& layout);

  /// "exp_avg" of instance 1, ...
  const std::vector<std::string>& slots() const { return slots_; }
  std::string key(ParamId param, std::int32_t instance) const;  // in a state dict: "layers.0.weight.exp_avg"

  static bool concerns(const Instruction& i);
  /// Copies, concatenations, padding and transfers; what it reads besides buffers is `dict`.
  void run(const Instruction& i, const ActionRequest& request, const NamedStates& dict) const;
  /// What an all-gather of this instruction sends.
  at::Tensor gathered_from(const Instruction& i) const;
  /// This rank's entries of the state dict, after a save.
  void collect(const ActionRequest& request, NamedStates& dict) const;

  /// Where the state of a parameter lies on this rank, and the elements there. The buffer of a flat parameter's state
  /// belongs to the unit.
  ActionBuffer home(ParamId param, std::int32_t instance) const;
  std::vector<StatePiece> pieces_in_home(ParamId param) const;
  /// Makes the state of all trainable parameters, zero.
  void make_state() const;

 private:
  bool flat(const PlanUnit& unit) const {
    return source_.job.fsdp.runtime == Runtime::Fsdp1 && unit.sharded.empty() && !source_.job.fsdp.use_orig_params;
  }
  const PlanUnit& unit_of(UnitId unit) const { return source_.table.units[unit.index()]; }
  const Shape& shape(ParamId param) const { return source_.model.params[param.index()].shape; }
  at::Tensor of_dict(ParamId param, std::int32_t instance, const NamedStates& dict) const;
  void concat(const Instruction& i, const NamedStates& dict) const;
  void take(const Instruction& i, const ActionRequest& request, const NamedStates& dict) const;
  void split(const Instruction& i, const ActionBuffer& to) const;
  at::Tensor collected(const StateEntry& entry, std::int32_t instance) const;

  StateSource source_;
  ActionBuffers& buffers_;
  const ActionLayout& layout_;
  std::vector<std::string> slots_;
};

}  // namespace foreshard::exec
