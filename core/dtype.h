// Element types of tensors, by PyTorch's names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/units.h"

namespace foreshard {

enum class DType : std::uint8_t {
  Float32,
  Float64,
  Float16,
  BFloat16,
  Float8E4M3,
  Float8E5M2,
  Int8,
  UInt8,
  Int16,
  Int32,
  Int64,
  Bool,
  Complex64,
  Complex128,
};

constexpr std::size_t kDTypeCount = static_cast<std::size_t>(DType::Complex128) + 1;

/// Bytes of one element.
Bytes itemsize(DType dtype);

/// True for the types that can carry a gradient (Float*, BFloat16, Complex*).
bool is_floating(DType dtype);

/// True for pairs of a real and an imaginary part.
bool is_complex(DType dtype);

/// The type of the parts of complex numbers; of others themselves.
DType real_dtype(DType dtype);

/// PyTorch's long name without the `torch.` prefix: "float32", "bfloat16", "int64", "bool".
std::string_view dtype_name(DType dtype);

/// PyTorch's short name as tools print it: "fp32", "bf16", "fp16", "int64".
std::string_view dtype_short_name(DType dtype);

/// Accepts long names (with or without `torch.`) and the usual short ones (fp32, f32, bf16, fp16, half, i64).
std::optional<DType> parse_dtype(std::string_view text);

}  // namespace foreshard
