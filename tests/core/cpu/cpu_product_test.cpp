// core/cpu/cpu_product.h against what PyTorch 2.11's profiler counted (tests/data/cpu/README.md), byte for byte.
#include "core/cpu/cpu_product.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace foreshard {
namespace {

constexpr Bytes kRecordedL2 = 2 * kMiB;

TEST(CpuProduct, KeepsBesideItsResultWhatWasRecorded) {
  std::ifstream in(FORESHARD_TEST_DATA "/cpu/products.tsv");
  std::string line;
  std::getline(in, line);  // names of the columns
  std::map<std::string, int> rows;
  while (std::getline(in, line)) {
    std::istringstream row(line);
    std::string isa, left, right;
    std::int64_t threads = 0;
    CpuProduct product;
    Bytes recorded = -1;
    row >> isa >> threads >> product.batch >> product.m >> product.n >> product.k >> left >> right >> recorded;
    ASSERT_TRUE(parse_cpu_isa(isa)) << line;
    product.left_transposed = left == "t";
    EXPECT_EQ(cpu_product_bytes(product, *parse_cpu_isa(isa), threads, kRecordedL2), recorded) << line;
    ++rows[isa];
  }
  EXPECT_EQ(rows, (std::map<std::string, int>{{"avx512", 480}, {"avx512_bf16", 480}, {"amx", 480}}));
}

TEST(CpuProduct, TakesNothingWithoutAvx512AndForSmallMatrices) {
  EXPECT_EQ(cpu_product_bytes({1, 512, 512, 512}, CpuIsa::Avx2, 1, kRecordedL2), 0);
  for (const CpuIsa isa : {CpuIsa::Avx512, CpuIsa::Avx512Bf16, CpuIsa::Amx}) {
    EXPECT_EQ(cpu_product_bytes({1, 16, 16, 16}, isa, 1, kRecordedL2), 0);
    EXPECT_GT(cpu_product_bytes({1, 16, 16, 17}, isa, 1, kRecordedL2), 0);
  }
}

TEST(CpuProduct, TilesAreCutToTheSecondCache) {
  const CpuProduct deep{1, 512, 512, 8190};
  EXPECT_LT(cpu_product_bytes(deep, CpuIsa::Amx, 1, 256 * kKiB), cpu_product_bytes(deep, CpuIsa::Amx, 1, 4 * kMiB));
}

}  // namespace
}  // namespace foreshard
