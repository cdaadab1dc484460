// The values that training starts from: weights that the job names, those beside the model's config.json where there
// are some, else fresh ones.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "core/job.h"
#include "core/model/model.h"
#include "core/result.h"
#include "exec/operators/operator_interpreter.h"

namespace foreshard::exec {

struct StartingWeights {
  OperatorInterpreter::ParamTensors params;  // whole tensors, one at a time; holds what it reads from
  std::vector<at::Tensor> buffers;           // in the order of Model::buffers
  std::string origin;                        // for people: "the weights of FILE", "fresh values, ..."
};

/// Weights are read from model.weights if that is set, else where model.source is a folder that holds safetensors, or a
/// .pt2 archive with weights in it (an archive exported on meta has none). Fresh values are made as train.init says.
/// Error: weights that lack parameters of the model (all of them are named), or have them in another shape. `model`
/// outlives the result. A model with adapters starts from the plain one's weights and adapters as PEFT makes them.
Result<StartingWeights> starting_weights(const Model& model, const Job& job);

}  // namespace foreshard::exec
