// Where the training script's own loss begins in a model's operators.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/model/model.h"

namespace foreshard {

/// The first operator that runs after the model's forward has returned: the training script works the loss out of
/// the logits, no labels are handed to the model. -1 where the loss is the model's own, or there is none.
inline std::int32_t script_loss_begin(const Model& model) {
  if (!model.has_loss || model.outputs.size() != 2 || !model.outputs[1].valid()) return -1;
  const auto named = [&](std::string_view name) {
    return std::any_of(model.inputs.begin(), model.inputs.end(),
                       [&](ValueId id) { return model.values[id.index()].name == name; });
  };
  if (!named("input_ids") || named("labels")) return -1;
  for (std::size_t i = 0; i + 1 < model.ops.size(); ++i) {
    const std::vector<ValueId>& out = model.ops[i].out;
    if (std::find(out.begin(), out.end(), model.outputs[1]) != out.end()) return static_cast<std::int32_t>(i) + 1;
  }
  return -1;
}

}  // namespace foreshard
