#include "core/lowering/kernels/kernel_shape.h"

#include <algorithm>
#include <numeric>

namespace foreshard::lowering {
namespace {

constexpr Bytes kVector = 16;  // of the widest load

Bytes vector_alignment(Bytes step) { return std::gcd(kVector, step); }

Bytes matrix_alignment(const Layout& matrix) {
  const std::int32_t n = matrix.sizes.n;
  const Bytes item = itemsize(matrix.dtype);
  if (cublas_copies(matrix)) return vector_alignment(matrix.sizes[n - 1] * item);
  Bytes all = kVector;
  for (std::int32_t d = std::max(n - 3, 0); d < n; ++d) {
    if (matrix.sizes[d] > 1 && matrix.strides[d] > 1) all = std::min(all, vector_alignment(matrix.strides[d] * item));
  }
  return all;
}

}  // namespace

/// prepare_matrix_for_cublas (cuBlasCommonArgs.h), prepare_batch_matrix_for_cublas (Blas.cpp): one dimension lies
/// together and the other steps over all of it, or the tensor has no gaps.
bool cublas_copies(const Layout& matrix) {
  const std::int32_t n = matrix.sizes.n;
  if (n != 2 && n != 3) return false;
  const std::int64_t rows = matrix.sizes[n - 2], columns = matrix.sizes[n - 1];
  const std::int64_t down = matrix.strides[n - 2], along = matrix.strides[n - 1];
  if (along == 1 && down >= std::max<std::int64_t>(1, columns)) return false;
  if (down == 1 && along >= std::max<std::int64_t>(1, rows)) return false;
  return n == 2 ? !matrix.dense() : !(matrix.contiguous() && down != 0 && along != 0);
}

std::int32_t product_alignment(const Layout& left, const Layout& right, std::int64_t columns) {
  const Bytes of_result = columns > 1 ? vector_alignment(columns * itemsize(left.dtype)) : kVector;
  return static_cast<std::int32_t>(std::min({matrix_alignment(left), matrix_alignment(right), of_result}));
}

void describe_attention(Kernel& kernel, const Op& op, const Layout& queries, const Layout& keys, bool backward) {
  if (queries.sizes.n != 4 || keys.sizes.n != 4) return;
  kernel.batch = queries.sizes[0] * queries.sizes[1];
  kernel.m = queries.sizes[2];
  kernel.n = keys.sizes[2];
  kernel.k = queries.sizes[3];
  kernel.backward = backward;
  const bool flash = op.name.starts_with("aten._scaled_dot_product_flash");
  kernel.attention = flash                                                   ? AttentionKind::Flash
                     : op.name.starts_with("aten._scaled_dot_product_cudnn") ? AttentionKind::Cudnn
                                                                             : AttentionKind::Efficient;
  kernel.causal = bool_arg(op, flash ? 4 : 6, "is_causal", false);
}

Bytes loss_reads(OpFormula formula, const Layout& input, Bytes all) {
  if (formula == OpFormula::NllLoss) {  // of each row its target, and the number at it
    const std::int64_t rows = input.sizes.n > 1 ? input.numel() / std::max<std::int64_t>(input.sizes[1], 1) : 1;
    return std::min(all, rows * (itemsize(DType::Int64) + itemsize(input.dtype)));
  }
  if (formula == OpFormula::Softmax || formula == OpFormula::LogSoftmax) {
    // One thread block a row: its maximum, its sum, its results (SoftMax.cu); the third reading finds much of the row
    // in the cache. Shorter rows stay in registers (PersistentSoftmax.cuh).
    constexpr std::int64_t kInRegisters = 1024;
    const std::int64_t row = input.sizes.n > 0 ? input.sizes[input.sizes.n - 1] : 1;
    return row > kInRegisters ? 2 * all : all;
  }
  return all;
}

}  // namespace foreshard::lowering
