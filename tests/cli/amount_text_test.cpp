#include "cli/console/amount_text.h"

#include <gtest/gtest.h>

namespace foreshard::cli {
namespace {

TEST(AmountText, BytesAreBinaryUnits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1000), "1000 B");
  EXPECT_EQ(bytes_text(1024), "1.00 KiB");
  EXPECT_EQ(bytes_text(1536 * kMiB), "1.50 GiB");
  EXPECT_EQ(bytes_text(98 * kGiB + 700 * kMiB), "98.7 GiB");
  EXPECT_EQ(bytes_text(1024 * kGiB - 1), "1.00 TiB");
}

TEST(AmountText, DurationsChooseTheirUnit) {
  EXPECT_EQ(duration_text(0), "0 ns");
  EXPECT_EQ(duration_text(999), "999 ns");
  EXPECT_EQ(duration_text(1234), "1.23 us");
  EXPECT_EQ(duration_text(987'654'321), "988 ms");
  EXPECT_EQ(duration_text(1.2345e9), "1.23 s");
  EXPECT_EQ(duration_text(999'600'000), "1.00 s") << "never 1000 ms";
}

TEST(AmountText, CountsRatesAndShares) {
  EXPECT_EQ(grouped_text(1234567), "1,234,567");
  EXPECT_EQ(grouped_text(-1000), "-1,000");
  EXPECT_EQ(grouped_text(999), "999");
  EXPECT_EQ(short_count_text(8.03e9), "8.03 B");
  EXPECT_EQ(short_count_text(512), "512");
  EXPECT_EQ(percent_text(0.4123), "41.2 %");
  EXPECT_EQ(rate_text(424910.6), "424,911");
  EXPECT_EQ(rate_text(12.345), "12.35");
  EXPECT_EQ(counted(1, "unit"), "1 unit");
  EXPECT_EQ(counted(33, "unit"), "33 units");
  EXPECT_EQ(counted(2, "copy", "copies"), "2 copies");
}

}  // namespace
}  // namespace foreshard::cli
