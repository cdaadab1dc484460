// Where starting values come from: named tensors in files, looked up one at a time and brought into memory then.
//
// Safetensors are mapped: a tensor is the file until somebody copies it. Members of a .pt2 archive are inflated when
// they are asked for. Nothing of pickle is ever read. Tensors are not to be written to. Usable from any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model.h"
#include "core/result.h"
#include "exec/operators/operator_interpreter.h"

namespace foreshard::exec {

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual std::vector<std::string> names() const = 0;  // sorted
  /// True also for a name whose bytes are not there (an archive of meta tensors): tensor() then says so.
  virtual bool contains(std::string_view name) const = 0;
  /// Contiguous. Errors: no such name; bytes that are missing or damaged.
  virtual Result<at::Tensor> tensor(std::string_view name) const = 0;
  /// False: no such name, or name and shape alone, as of an archive that was exported on meta.
  virtual bool has_values(std::string_view name) const { return contains(name); }
};

/// A .safetensors file, a *.safetensors.index.json, a folder that holds either, a checkpoint of ours (or a folder of
/// them: the newest), or a .pt2 archive (2.8 and later: older ones keep their weights as pickles).
Result<std::shared_ptr<const WeightSource>> open_weights(const std::string& path, std::string_view program = {});

/// The whole value of a parameter, of its own shape, in the file's element type. Tried are its own name, the names that
/// share its storage, and both without the base model's prefix ("transformer.h.0..." as "h.0..."), as published files
/// have them. Errors: none of these is there; another shape.
Result<at::Tensor> whole_param(const Model& model, ParamId param, const WeightSource& source);

/// Of whole tensors the parts that this rank of a mesh has: `model` is cut as core/mesh cuts it, and outlives the
/// result.
OperatorInterpreter::ParamTensors own_parts(const Model& model, OperatorInterpreter::ParamTensors whole);

}  // namespace foreshard::exec
