// What may stand in a model's integer inputs: read off the operators that use them.
#pragma once

#include <cstdint>
#include <optional>

#include "core/model/model.h"

namespace foreshard::exec {

/// Values of this input lie in [0, range): the rows of the embedding that looks it up, or the classes of the loss that
/// takes it as target, through whatever views and shifts stand between. nullopt if neither is found.
std::optional<std::int64_t> input_range(const Model& model, ValueId input);

}  // namespace foreshard::exec
