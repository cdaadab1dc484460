// What ActionRunner's actions begin with: the state before summon and save, and what load reads. Both are pieces of
// whole tensors (exec/checkpoint/train_state.h), so that a checkpoint or whole starting values fill them, each rank's
// own elements alone.
#pragma once

#include <string>
#include <vector>

#include "core/plan/actions/state_dict.h"
#include "exec/actions/action_runner.h"
#include "exec/checkpoint/train_state.h"

namespace foreshard::exec {

struct DictToFill {
  StateDict dict;    // keys and shapes that load reads on this rank; zero, buffers with their values
  TrainState state;  // the same memory: who fills it, fills the dict
};

/// `buffers` in the order of Model::buffers.
DictToFill dict_to_fill(const StateSource& source, const ActionRequest& load, const std::vector<at::Tensor>& buffers);

/// One tensor of a state dict on this rank.
struct DictTensor {
  std::string key;
  DType dtype = DType::Float32;
  Shape shape;      // global
  Numel first = 0;  // where its first element stands in the flattened whole
  at::Tensor local;
};
/// What save has returned, in its order; local: flat parameters without the views of them.
std::vector<DictTensor> dict_tensors(const StateDict& dict, const StateSource& source, const ActionRequest& save);

/// Parameters from whole values; the optimizer's state is left alone.
void fill_params(TrainState& state, const Model& model, const WholeParam& whole);

}  // namespace foreshard::exec
