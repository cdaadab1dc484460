// LibTorch's words for ours: element types, and tensors over memory that a Buffer or a file holds.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "core/dtype.h"
#include "core/model/model.h"

namespace foreshard::exec {

at::ScalarType scalar_type_of(DType dtype);

/// A contiguous tensor over memory that somebody else owns and keeps.
at::Tensor tensor_over(void* data, const Shape& shape, DType dtype);

}  // namespace foreshard::exec
