// Which parameters Muon steps: the matrices of the repeated blocks. The rest is AdamW's.
#pragma once

#include "core/model/model.h"

namespace foreshard {

/// A trainable matrix inside a module of the model's block class.
inline bool is_block_matrix(const Model& model, ParamId param) {
  const ParamInfo& info = model.params[param.index()];
  if (info.shape.size() != 2 || !info.requires_grad) return false;
  for (ModuleId m = info.owner; m.valid(); m = model.modules[m.index()].parent) {
    if (model.modules[m.index()].class_name == model.block_class) return true;
  }
  return false;
}

}  // namespace foreshard
