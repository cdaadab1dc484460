// LibTorch's words for ours: element types, and tensors over memory that a Buffer or a file holds.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>

#include "core/dtype.h"
#include "core/model/model.h"

namespace foreshard::exec {

at::ScalarType scalar_type_of(DType dtype);

/// A contiguous tensor over memory that somebody else owns and keeps.
at::Tensor tensor_over(void* data, c10::IntArrayRef shape, DType dtype, c10::Device device = c10::kCPU);

/// A storage without memory: tensors on it keep their shape while attach() brings memory and takes it away (0 bytes).
/// Autograd's version counters do not see it: filling a parameter again is no change to what autograd has saved of it.
c10::Storage empty_storage(c10::Device device);
void attach(const c10::Storage& storage, void* memory, Bytes bytes);
/// A leaf of autograd on elements [offset, ...) of such a storage.
at::Tensor leaf_on(const c10::Storage& storage, Numel offset, c10::IntArrayRef shape, DType dtype, bool requires_grad);

}  // namespace foreshard::exec
