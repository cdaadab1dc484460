// core/lowering/cpu_workspace.h: which products oneDNN does (AVX-512 without bfloat16, one thread). How much each takes
// on which processor: tests/core/cpu.
#include "core/lowering/cpu_workspace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foreshard::lowering {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Layout matrix(std::int64_t rows, std::int64_t columns, DType dtype) {
  Dims sizes;
  sizes.push(rows);
  sizes.push(columns);
  return contiguous_layout(sizes, dtype);
}

std::vector<Bytes> product(std::int64_t m, std::int64_t k, std::int64_t n, bool transposed = false,
                           DType dtype = DType::BFloat16) {
  Kernel kernel;
  kernel.kind = KernelClass::Gemm;
  kernel.dtype = dtype;
  kernel.m = m, kernel.k = k, kernel.n = n, kernel.batch = 1;
  Layout right = matrix(transposed ? n : k, transposed ? k : n, dtype);
  if (transposed) {
    std::swap(right.sizes[0], right.sizes[1]);
    std::swap(right.strides[0], right.strides[1]);
  }
  LoweringOptions machine;
  machine.cpu_threads = 1;
  return cpu_product_workspace(kernel, matrix(m, k, dtype), right, machine);
}

TEST(CpuWorkspace, ProductsInBfloat16SumInFloat) {
  EXPECT_THAT(product(68, 48, 96), ElementsAre(26240));
  EXPECT_THAT(product(68, 48, 96, true), ElementsAre(26240));
  EXPECT_THAT(product(4, 48, 1000), ElementsAre(16256));
  EXPECT_THAT(product(512, 64, 172), ElementsAre(352384));
  EXPECT_THAT(product(300, 1, 300), ElementsAre(360320));
  EXPECT_THAT(product(16, 16, 17), ElementsAre(1408));
}

TEST(CpuWorkspace, SmallOnesVectorsAndOtherTypesDoNot) {
  EXPECT_THAT(product(16, 16, 16), IsEmpty());
  EXPECT_THAT(product(1, 100, 100, true), IsEmpty());
  EXPECT_THAT(product(100, 100, 1, true), IsEmpty());
  EXPECT_THAT(product(1, 100, 100), ElementsAre(640));
  EXPECT_THAT(product(68, 48, 96, false, DType::Float32), IsEmpty());
  EXPECT_THAT(product(64, 48, 96, false, DType::Float16), IsEmpty());
}

TEST(CpuWorkspace, ABatchGoesMatrixByMatrix) {
  Kernel kernel;
  kernel.dtype = DType::BFloat16;
  kernel.batch = 12, kernel.m = 17, kernel.k = 16, kernel.n = 17;
  Dims sizes;
  for (const std::int64_t size : {12, 16, 17}) sizes.push(size);
  const Layout batch = contiguous_layout(sizes, DType::BFloat16);
  LoweringOptions machine;
  machine.cpu_threads = 1;
  EXPECT_THAT(cpu_product_workspace(kernel, batch, batch, machine), ElementsAre(1408));
}

}  // namespace
}  // namespace foreshard::lowering
