#include "exec/torch/torch_types.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "core/result.h"

namespace foreshard::exec {

at::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::Float32: return at::kFloat;
    case DType::Float64: return at::kDouble;
    case DType::Float16: return at::kHalf;
    case DType::BFloat16: return at::kBFloat16;
    case DType::Float8E4M3: return at::kFloat8_e4m3fn;
    case DType::Float8E5M2: return at::kFloat8_e5m2;
    case DType::Int8: return at::kChar;
    case DType::UInt8: return at::kByte;
    case DType::Int16: return at::kShort;
    case DType::Int32: return at::kInt;
    case DType::Int64: return at::kLong;
    case DType::Bool: return at::kBool;
    case DType::Complex64: return at::kComplexFloat;
    case DType::Complex128: return at::kComplexDouble;
  }
  FORESHARD_CHECK(false, "an element type without a name in LibTorch");
}

at::Tensor tensor_over(void* data, c10::IntArrayRef shape, DType dtype, c10::Device device) {
  return at::for_blob(data, shape)
      .options(at::TensorOptions().dtype(scalar_type_of(dtype)).device(device))
      .target_device(device)
      .make_tensor();
}

c10::Storage empty_storage(c10::Device device) {
  return c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, device), nullptr, /*resizable=*/false);
}

void attach(const c10::Storage& storage, void* memory, Bytes bytes) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(c10::DataPtr(memory, impl->device()));
  impl->set_nbytes(static_cast<std::size_t>(bytes));
}

at::Tensor leaf_on(const c10::Storage& storage, Numel offset, c10::IntArrayRef shape, DType dtype, bool requires_grad) {
  at::Tensor leaf = at::empty({0}, at::TensorOptions().dtype(scalar_type_of(dtype)).device(storage.device()));
  c10::TensorImpl* impl = leaf.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(storage);
  impl->set_storage_offset(offset);
  impl->set_sizes_contiguous(shape);
  return leaf.set_requires_grad(requires_grad);
}

}  // namespace foreshard::exec
