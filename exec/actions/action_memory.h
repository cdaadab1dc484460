// What ActionRunner's rank has in memory: what an action's instructions allocate, and what training leaves between two
// steps, made, read and written as pieces of whole tensors. The issuer's.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "exec/actions/action_context.h"

namespace foreshard::exec {

class ActionMemory {
 public:
  explicit ActionMemory(ActionContext& context) : context_(context) {}

  void allocate(const Instruction& i);
  /// See ActionRunner.
  void make_state(bool optimizer);
  void set_state(const TrainState& state);
  TrainState state() const;

 private:
  void make_module_buffer(const ActionBuffer& key, Numel numel, DType dtype);
  /// Shards that no init made.
  void make_shards(UnitId id);
  /// 0: a parameter itself; else which tensor of the optimizer's state.
  std::int32_t instance(const StateTensor& tensor) const;
  /// Views of the pieces of `tensor`'s local and of the same elements in the rank's shard.
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs(const StateTensor& tensor, ParamId param) const;

  ActionContext& context_;
};

}  // namespace foreshard::exec
