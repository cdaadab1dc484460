#include "exec/communicators/reduce_parts.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace foreshard::exec {
namespace {

/// Added in Sum's precision, rounded once.
template <class T, class Sum>
void reduce_as(std::byte* out, std::span<const std::byte* const> parts, Numel numel, ReduceOp op) {
  T* to = reinterpret_cast<T*>(out);
  const Sum ranks = static_cast<Sum>(parts.size());
  for (Numel i = 0; i < numel; ++i) {
    Sum sum = static_cast<Sum>(reinterpret_cast<const T*>(parts[0])[i]);
    for (std::size_t r = 1; r < parts.size(); ++r) {
      const Sum next = static_cast<Sum>(reinterpret_cast<const T*>(parts[r])[i]);
      sum = op == ReduceOp::Max ? std::max(sum, next) : sum + next;
    }
    to[i] = static_cast<T>(op == ReduceOp::Avg ? sum / ranks : sum);
  }
}

}  // namespace

void reduce_parts(std::byte* out, std::span<const std::byte* const> parts, Numel numel, DType dtype, ReduceOp op) {
  if (op != ReduceOp::Sum && op != ReduceOp::Avg && op != ReduceOp::Max) {
    throw std::runtime_error("only sums, averages and maxima are reduced on the host");
  }
  switch (dtype) {
    case DType::Float32: return reduce_as<float, float>(out, parts, numel, op);
    case DType::Float64: return reduce_as<double, double>(out, parts, numel, op);
    case DType::BFloat16: return reduce_as<c10::BFloat16, float>(out, parts, numel, op);
    case DType::Float16: return reduce_as<c10::Half, float>(out, parts, numel, op);
    case DType::Int64: return reduce_as<std::int64_t, std::int64_t>(out, parts, numel, op);
    default: throw std::runtime_error(fmt::format("elements of type {} are not reduced", dtype_name(dtype)));
  }
}

}  // namespace foreshard::exec
