// What kind of torch.nn module a class is, told by its own name or one of its bases: what isinstance would answer.
//
// The only place that knows PyTorch's class names; planning asks here. Pure functions of one ModuleInfo.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/model.h"

namespace foreshard {

enum class ModuleKind : std::uint8_t { Other, Linear, Convolution, Embedding, LayerNorm };

ModuleKind kind_of(const ModuleInfo& module);

/// Names that isinstance tests of FSDP's policies use.
const std::vector<std::string>& base_class_names();       // of every module
const std::vector<std::string>& container_class_names();  // lists and dictionaries of modules
const std::vector<std::string>& unsplit_class_names();    // never wrapped in parts: size_based_auto_wrap_policy
const std::vector<std::string>& batch_norm_class_names();

/// A stack of blocks: a list of modules, or a dictionary or chain of modules of one class.
bool is_stack(const Model& model, ModuleId module);

/// The output head as torchtune's and TRL's activation offload look for it (get_act_offloading_ctx_manager), whose
/// hooks are off in it: an attribute of the model inside its wrappers. Invalid: none is found, and its activations
/// travel too.
ModuleId output_head(const Model& model);

/// What a leaf of that kind does to autograd, as far as torch.nn says it; Opaque for every other class.
LeafAutograd autograd_of(const ModuleInfo& module);

}  // namespace foreshard
