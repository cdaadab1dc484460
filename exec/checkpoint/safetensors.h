// Reads safetensors files: named tensors in one file, mapped into memory. Any bytes give a value or an Error.
//
// The tensors point into the mapping, which lives as long as any of them does. They are the file: not to be written to.
// Usable from any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "core/result.h"

namespace foreshard::exec {

using NamedTensors = std::map<std::string, at::Tensor, std::less<>>;

Result<NamedTensors> read_safetensors(const std::string& path);

/// The weights of a model as Transformers stores them: one file, an index (*.safetensors.index.json) of several, or a
/// folder with model.safetensors or model.safetensors.index.json. Errors also: a file of the index that is not there,
/// or lacks a tensor that the index says it has.
Result<NamedTensors> read_weights(const std::string& source);

}  // namespace foreshard::exec
