// The key of a measured operator: its name with dtype and shape of every tensor that goes in, and its constants. Equal
// signatures do equal work, in whatever model they stand.
#pragma once

#include <string>

#include "core/model/model.h"

namespace foreshard {

/// "aten.linear.default fp32[4,128,256] fp32[256,256]", "aten.transpose.int fp32[2,8] 0 1".
std::string operator_signature(const Model& model, const Op& op);

}  // namespace foreshard
