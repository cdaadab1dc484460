#include "core/amounts.h"

#include <gtest/gtest.h>

#include "core/buffer_use.h"

namespace foreshard {
namespace {

TEST(Amounts, ThreeDigitsMatter) {
  EXPECT_EQ(bytes_words(1023), "1023 B");
  EXPECT_EQ(bytes_words(1024), "1.00 KiB");
  EXPECT_EQ(bytes_words(61.2 * 1073741824.0), "61.2 GiB");
  EXPECT_EQ(bytes_words(-1536), "-1.50 KiB");
  EXPECT_EQ(duration_words(999), "999 ns");
  EXPECT_EQ(duration_words(999'600), "1.00 ms") << "rounded first: no 1000 us";
  EXPECT_EQ(duration_words(1.32e9), "1.32 s");
  EXPECT_EQ(percent_words(0.412), "41.2 %");
  EXPECT_EQ(grouped_words(-1234567), "-1,234,567");
}

TEST(Amounts, TicksAreRoundAndInside) {
  EXPECT_EQ(round_ticks(0.3, 4.9, 5), (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(round_ticks(0, 1000, 4), (std::vector<double>{0, 500, 1000}));
  EXPECT_TRUE(round_ticks(1, 1, 5).empty()) << "no range";
}

/// Simulated and real runs count a buffer as the same.
TEST(BufferUses, AreOneForEveryInterpreter) {
  EXPECT_EQ(buffer_use(BufferWhat::PostForwardShard), BufferUse::FullParameter);
  EXPECT_EQ(buffer_use(BufferWhat::SavedGrad), BufferUse::ShardedGradient);
  EXPECT_EQ(buffer_use(BufferWhat::HostGrad), BufferUse::HostGradient);
  EXPECT_EQ(buffer_use(BufferWhat::Bucket), BufferUse::Communication);
  EXPECT_EQ(buffer_use(BufferWhat::ClipTemp), BufferUse::Other);
}

}  // namespace
}  // namespace foreshard
