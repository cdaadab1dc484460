// The roofline beside kernels that were timed on a card: PyTorch 2.11 on an H200, tests/data/sim/h200-kernels.json
// (docs/measurements/2026-11-28-h200.md says how).
#include "sim/device/kernel_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/machine/profile.h"

namespace foreshard {
namespace {

using nlohmann::json;

json measured() {
  std::ifstream file(std::string(FORESHARD_TEST_DATA) + "/sim/h200-kernels.json");
  return json::parse(file);
}

class KernelCostOfAnH200 : public ::testing::Test {
 protected:
  const HardwareProfile profile = load_profile("h200-sxm-141").value();
  const KernelCost cost{profile};

  /// predicted / measured
  double ratio(const Kernel& kernel, double us) const { return static_cast<double>(cost.device(kernel)) / (us * 1e3); }
};

Kernel product(const json& row) {
  Kernel kernel;
  kernel.kind = KernelClass::Gemm;
  kernel.dtype = row["dtype"] == "bfloat16"  ? DType::BFloat16
                 : row["dtype"] == "float16" ? DType::Float16
                                             : DType::Float32;
  kernel.m = row["m"], kernel.n = row["n"], kernel.k = row["k"], kernel.batch = 1;
  kernel.flops = 2 * kernel.m * kernel.n * kernel.k;
  const Bytes item = itemsize(kernel.dtype);
  kernel.read = (kernel.m + kernel.n) * kernel.k * item;
  kernel.written = kernel.m * kernel.n * item;
  const std::string layout = row["layout"];  // N: as it is named, rows by columns; T: stored the other way round
  const auto aligned = [&](std::int64_t row_length) { return std::gcd<Bytes>(16, row_length * item); };
  kernel.alignment =
      static_cast<std::int32_t>(std::min({aligned(layout[0] == 'T' ? kernel.m : kernel.k),
                                          aligned(layout[1] == 'T' ? kernel.k : kernel.n), aligned(kernel.n)}));
  return kernel;
}

TEST_F(KernelCostOfAnH200, ProductsByTheAlignmentOfTheirRows) {
  int aligned = 0, unaligned = 0;
  for (const json& row : measured()) {
    if (row["kind"] != "mm" || row["tf32"].get<bool>() || row["us"] < 60) continue;
    const Kernel kernel = product(row);
    const bool narrow = kernel.alignment < 16 && kernel.dtype != DType::Float32;
    // Odd rows: between 92 and 150 TFLOP/s, by which of the three matrices they are.
    EXPECT_NEAR(ratio(kernel, row["us"]), 1, narrow ? 0.37 : 0.2) << row;
    ++(narrow ? unaligned : aligned);
  }
  EXPECT_GT(aligned, 40);
  EXPECT_GT(unaligned, 15);
}

TEST_F(KernelCostOfAnH200, AttentionByMaskLengthDirectionAndKernel) {
  int count = 0;
  double sum = 0;
  for (const json& row : measured()) {
    if (row["kind"] != "attention") continue;
    for (const bool backward : {false, true}) {
      Kernel kernel;
      kernel.kind = KernelClass::Attention;
      kernel.dtype = DType::BFloat16;
      kernel.attention = row["backend"] == "flash"   ? AttentionKind::Flash
                         : row["backend"] == "cudnn" ? AttentionKind::Cudnn
                                                     : AttentionKind::Efficient;
      kernel.backward = backward;
      kernel.causal = row["causal"];
      kernel.m = kernel.n = row["keys"], kernel.k = row["head"];
      kernel.batch = row["batch"].get<std::int64_t>() * row["heads"].get<std::int64_t>();
      kernel.flops = (backward ? 10 : 4) * kernel.batch * kernel.m * kernel.n * kernel.k;
      const double off = ratio(kernel, row[backward ? "backward_us" : "forward_us"]) - 1;
      // FlashAttention's, whose lengths and masks the rule comes from, closer than the others.
      EXPECT_NEAR(off, 0, kernel.attention == AttentionKind::Flash ? 0.15 : 0.3)
          << row << (backward ? " backward" : "");
      sum += std::abs(off);
      ++count;
    }
  }
  ASSERT_GT(count, 60);
  EXPECT_LT(sum / count, 0.1);
}

TEST_F(KernelCostOfAnH200, WithoutItsOwnNumbersACardsProductsAreAligned) {
  HardwareProfile other = profile;
  other.extra.erase(kNarrowShare);
  other.extra.erase(kNarrowestShare);
  Kernel odd = product({{"dtype", "bfloat16"}, {"m", 4096}, {"n", 4097}, {"k", 4096}, {"layout", "NT"}});
  ASSERT_EQ(odd.alignment, 2);
  EXPECT_GT(cost.device(odd), 5 * KernelCost(other).device(odd));
  odd.dtype = DType::Float32;  // no tensor cores, no loads that ask for it
  EXPECT_EQ(cost.device(odd), KernelCost(other).device(odd));
}

}  // namespace
}  // namespace foreshard
