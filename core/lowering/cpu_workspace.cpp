#include "core/lowering/cpu_workspace.h"

#include <algorithm>

#include "core/cpu/cpu_product.h"

namespace foreshard::lowering {
namespace {

constexpr Bytes kAccumulator = 4;  // float, whatever the tensors' type

bool is_half(DType dtype) { return dtype == DType::BFloat16 || dtype == DType::Float16; }

/// A thread works on so many rows of queries and of keys at a time.
struct Block {
  std::int64_t rows = 0, keys = 0;
};

Block block_of(const Layout& q, const Layout& k) {
  const std::int64_t queries = q.sizes[2];
  const std::int64_t rows = queries >= 768 ? 256 : queries >= 192 ? 64 : 32;
  return {std::min(rows, queries), std::min<std::int64_t>(512, k.sizes[2])};
}

}  // namespace

std::vector<Bytes> cpu_attention_workspace(const Layout& q, const Layout& k, std::int64_t threads) {
  if (q.sizes.n != 4 || k.sizes.n != 4) return {};
  const Block block = block_of(q, k);
  // Scores, their maximum and sum by row, and the result so far.
  const std::int64_t each = block.rows * (block.keys + 2 + q.sizes[3]);
  std::vector<Bytes> bytes = {threads * each * kAccumulator};
  if (is_half(q.dtype)) bytes.push_back(threads * block.rows * block.keys * itemsize(q.dtype));
  return bytes;
}

std::vector<Bytes> cpu_attention_backward_workspace(const Layout& q, const Layout& k, std::int64_t threads) {
  if (q.sizes.n != 4 || k.sizes.n != 4) return {};
  const Block block = block_of(q, k);
  // Scores and their gradient, again in the tensors' type where that is narrower; the sums by row.
  const std::int64_t both = threads * block.rows * block.keys * 2;
  std::vector<Bytes> bytes = {both * kAccumulator};
  if (is_half(q.dtype)) bytes.push_back(both * itemsize(q.dtype));
  bytes.push_back(threads * block.rows * kAccumulator);
  return bytes;
}

std::vector<Bytes> cpu_product_workspace(const Kernel& product, const Layout& left, const Layout& right,
                                         const LoweringOptions& machine) {
  if (product.dtype != DType::BFloat16) return {};
  // A matrix times a vector by dot products of rows.
  const bool by_rows = right.sizes.n == 2 && right.strides[0] == 1;
  if ((product.m == 1 || product.n == 1) && by_rows) return {};
  const std::int32_t dims = left.sizes.n;
  const bool transposed = dims >= 2 && left.strides[dims - 1] != 1 && left.strides[dims - 2] == 1;
  const CpuProduct sizes{std::max<std::int64_t>(product.batch, 1), product.m, product.n, product.k, transposed};
  const Bytes bytes = cpu_product_bytes(sizes, machine.cpu_isa, machine.cpu_threads, machine.cpu_l2_bytes);
  return bytes > 0 ? std::vector<Bytes>{bytes} : std::vector<Bytes>{};
}

std::vector<Ref> held(Tape& tape, const std::vector<Bytes>& all) {
  std::vector<Ref> slots;
  for (const Bytes bytes : all) slots.push_back(tape.make_bytes(bytes, SlotCategory::Workspace));
  return slots;
}

}  // namespace foreshard::lowering
