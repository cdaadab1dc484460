#include "exec/torch_types.h"

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
  }
  FORESHARD_CHECK(false, "an element type without a name in LibTorch");
}

at::Tensor tensor_over(void* data, const Shape& shape, DType dtype) {
  return at::from_blob(data, shape, at::TensorOptions().dtype(scalar_type_of(dtype)));
}

}  // namespace foreshard::exec
