// The numbers of a Model for `inspect`: parameters, parameters by class, FLOPs by module, and the module tree as text.
//
// FLOPs follow PyTorch's counter: 2 per multiply-add, matrix products and attention only, causal masks not deducted,
// fused attention's backward 2.5 times its forward. Unlike the counter, which counts the CPU's flash kernel and the
// grouped products of experts as 0 and refuses grouped heads, all attention counts alike and experts' rows count.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/model/model.h"
#include "core/units.h"

namespace foreshard {

struct OpFlops {
  Flops forward = 0;
  Flops backward = 0;
  bool operator==(const OpFlops&) const = default;
};

/// FLOPs of every operator, parallel to Model::ops. Only the parts of backward that some gradient asks for count.
std::vector<OpFlops> count_flops(const Model& model);

/// One module with everything inside it.
struct ModuleNumbers {
  Numel params = 0;  // distinct tensors
  Numel params_all_names = 0;
  Bytes param_bytes = 0;  // of the distinct ones, as created
  OpFlops flops;
  bool operator==(const ModuleNumbers&) const = default;
};

struct ClassNumbers {
  std::string class_name;
  std::int64_t modules = 0;
  Numel own_params = 0;  // registered by modules of this class themselves, all names
  OpFlops flops;         // run by modules of this class themselves
  bool operator==(const ClassNumbers&) const = default;
};

struct InspectReport {
  ModuleNumbers total;
  std::int64_t param_tensors = 0;  // distinct
  Numel trainable_params = 0;      // distinct
  Bytes buffer_bytes = 0;
  std::vector<ModuleNumbers> modules;                        // parallel to Model::modules
  std::vector<ClassNumbers> classes;                         // by first appearance
  std::vector<std::pair<std::string, Flops>> forward_by_op;  // operators that count, by first appearance
  // From lowering; the caller of inspect_model fills them in.
  std::optional<Bytes> activation_bytes;                        // kept between forward and backward
  std::vector<std::pair<std::string, Bytes>> kept_by_class;     // ... by class of the module that kept it first
  std::vector<std::pair<std::string, Bytes>> kept_by_operator;  // ... by operator
  std::vector<std::string> unknown_ops;                         // operators without a rule
  bool operator==(const InspectReport&) const = default;
};

InspectReport inspect_model(const Model& model);

/// `foreshard.inspect/1`.
std::string write_inspect_json(const Model& model, const InspectReport& report);

/// The module tree, repeated blocks folded ("layers.0-31: LlamaDecoderLayer x 32"), at most `depth` levels (0 = all).
std::string write_module_tree(const Model& model, const InspectReport& report, int depth = 0);

}  // namespace foreshard
