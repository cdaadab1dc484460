// Multiplications and additions of the kernels that PyTorch's FlopCounter counts, from the tensors they are given.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <string>

#include "core/units.h"

namespace foreshard::exec {

/// 0 for kernels that are not counted (elementwise, reductions); nullopt where the counter should know and does not.
/// `name` is spelt as in programs: "aten.mm.default".
std::optional<Flops> operator_flops(const std::string& name, c10::ArrayRef<const c10::IValue> inputs);

}  // namespace foreshard::exec
