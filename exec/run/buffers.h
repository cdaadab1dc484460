// Starting values of a model's buffers.
//
// In this order: what the .pt2 archive holds (every buffer of an exported model, constants too); what the family
// computes from its config.json (rotary frequencies, scales); what the weights hold under the name; what a name means
// everywhere (batch normalisation's fresh statistics, positions, types). Each call returns tensors of its own, which
// may be written to.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/model/model.h"
#include "core/result.h"
#include "exec/run/weight_source.h"

namespace foreshard::exec {

/// In the order of Model::buffers. `model_source` is ModelOptions::source (file or folder), `weights` may be null;
/// `program`: of an archive of several, ModelOptions::program.
/// Error: a buffer whose value nobody knows, by name.
Result<std::vector<at::Tensor>> initial_buffers(const Model& model, const std::string& model_source,
                                                const WeightSource* weights, std::string_view program = {});

}  // namespace foreshard::exec
