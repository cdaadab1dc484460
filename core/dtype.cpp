#include "core/dtype.h"

#include <array>

namespace foreshard {
namespace {

struct DTypeRow {
  DType dtype;
  Bytes size;
  bool floating;
  std::string_view name;
  std::string_view short_name;
  std::string_view alias;
};

constexpr std::array<DTypeRow, kDTypeCount> kDTypes{{
    {DType::Float32, 4, true, "float32", "fp32", "f32"},
    {DType::Float64, 8, true, "float64", "fp64", "f64"},
    {DType::Float16, 2, true, "float16", "fp16", "f16"},
    {DType::BFloat16, 2, true, "bfloat16", "bf16", "bf16"},
    {DType::Float8E4M3, 1, true, "float8_e4m3fn", "fp8_e4m3", "f8_e4m3"},
    {DType::Float8E5M2, 1, true, "float8_e5m2", "fp8_e5m2", "f8_e5m2"},
    {DType::Int8, 1, false, "int8", "int8", "i8"},
    {DType::UInt8, 1, false, "uint8", "uint8", "u8"},
    {DType::Int16, 2, false, "int16", "int16", "i16"},
    {DType::Int32, 4, false, "int32", "int32", "i32"},
    {DType::Int64, 8, false, "int64", "int64", "i64"},
    {DType::Bool, 1, false, "bool", "bool", "b8"},
    {DType::Complex64, 8, true, "complex64", "c64", "c64"},
    {DType::Complex128, 16, true, "complex128", "c128", "c128"},
}};

const DTypeRow& row(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

}  // namespace

Bytes itemsize(DType dtype) { return row(dtype).size; }
bool is_floating(DType dtype) { return row(dtype).floating; }
bool is_complex(DType dtype) { return dtype == DType::Complex64 || dtype == DType::Complex128; }
DType real_dtype(DType dtype) {
  if (!is_complex(dtype)) return dtype;
  return dtype == DType::Complex64 ? DType::Float32 : DType::Float64;
}

std::string_view dtype_name(DType dtype) { return row(dtype).name; }
std::string_view dtype_short_name(DType dtype) { return row(dtype).short_name; }

std::optional<DType> parse_dtype(std::string_view text) {
  constexpr std::string_view kPrefix = "torch.";
  if (text.starts_with(kPrefix)) text.remove_prefix(kPrefix.size());
  if (text == "half") return DType::Float16;
  if (text == "float") return DType::Float32;
  for (const DTypeRow& r : kDTypes) {
    if (text == r.name || text == r.short_name || text == r.alias) return r.dtype;
  }
  return std::nullopt;
}

}  // namespace foreshard
