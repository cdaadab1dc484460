// A model's facts in words, for reports.
#pragma once

#include <string_view>

#include "core/model/model.h"

namespace foreshard {

/// "built", "recorded", "assumed".
std::string_view lifetimes_name(Lifetimes lifetimes);

/// Who works the loss out: "model", "script", or "none".
std::string_view loss_origin(const Model& model);

}  // namespace foreshard
