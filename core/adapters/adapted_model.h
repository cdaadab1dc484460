// Low-rank adapters beside frozen weights, as PEFT wraps a model: module tree, parameters and operators of the wrapped
// one (peft 0.21: tuners/lora/layer.py, Linear.forward; peft_model.py).
//
// A target "q_proj" becomes a LoRA layer of that name with children base_layer, lora_A.default and lora_B.default; the
// model stands below "base_model.model". Everything but the adapters is frozen. A pure function of values.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model/families/config_model.h"
#include "core/model/model.h"
#include "core/result.h"

namespace foreshard {

constexpr bool has_adapters(const AdapterOptions& adapters) { return adapters.kind != "none"; }

/// The job as the program of a model with adapters knows it: not which units give parameters back, nor which regions
/// recompute, but whether any is reentrant, which makes the embedding's result a leaf. Equal ones make equal programs.
Job as_adapters_see(Job job);

/// `base` itself if the job asks for no adapters. The program computes in the dtypes that the job's units give the
/// adapters, on `device`. Its Model::parallel is the whole plan of a mesh: mesh.plan's names are those of `base`.
/// Errors: targets that match nothing (the nearest name), a target that is no linear layer, a model without operators,
/// packed matrices over tensor ranks, mesh.plan's own, dtypes that PyTorch's first product refuses.
Result<Model> adapted_model(Model base, const Job& job, ProgramDevice device = ProgramDevice::Cuda);

/// By ModuleId of `base`: the layers that adapters.targets names. A word matches a module's whole name, its end behind
/// a dot, or (with * or ?) the whole name as a pattern; "all-linear" every linear layer but the one that makes the
/// logits.
Result<std::vector<bool>> adapter_targets(const Model& base, const AdapterOptions& adapters);

/// By ModuleId of `base`: the modules that adapters.modules_to_save names by their own names' ends, the outermost ones.
Result<std::vector<bool>> copied_modules(const Model& base, const AdapterOptions& adapters);

/// By ModuleId of `base`: the matrices that adapters.base = "nf4" stores in 4 bits, as Transformers replaces them:
/// every linear layer but the one that makes the logits.
std::vector<bool> packed_layers(const Model& base, const AdapterOptions& adapters);

}  // namespace foreshard
