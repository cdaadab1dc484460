#include "sim/device/allocator/free_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace foreshard {
namespace {

TEST(FreeSet, FindsTheSmallestThatFitsAndTheLowestAddressAmongEquals) {
  FreeSet set;
  set.insert({4096, 300, 1});
  set.insert({4096, 100, 2});
  set.insert({1 << 20, 0, 3});
  EXPECT_EQ(set[set.lower_bound(4096)].block, 2);
  EXPECT_EQ(set[set.lower_bound(4097)].block, 3);
  EXPECT_TRUE(set.lower_bound((1 << 20) + 1).end());
  EXPECT_EQ(set[set.last()].block, 3);
}

TEST(FreeSet, EraseSaysWhetherTheBlockWasThere) {
  FreeSet set;
  set.insert({512, 0, 1});
  EXPECT_FALSE(set.erase({512, 0, 2}));
  EXPECT_FALSE(set.erase({1024, 0, 1}));
  EXPECT_TRUE(set.erase({512, 0, 1}));
  EXPECT_TRUE(set.empty());
}

TEST(FreeSet, KeepsTheOrderOfASortedSet) {
  FreeSet set;
  std::set<std::pair<Bytes, Bytes>> expected;
  std::mt19937_64 random(7);
  for (int i = 0; i < 20'000; ++i) {
    const Bytes size = static_cast<Bytes>(512 << random() % 20) + static_cast<Bytes>(random() % 8 * 512);
    const Bytes address = static_cast<Bytes>(random() % 64 * 512);
    if (random() % 2 == 0) {
      if (expected.emplace(size, address).second) set.insert({size, address, static_cast<std::int32_t>(address / 512)});
    } else {
      EXPECT_EQ(set.erase({size, address, static_cast<std::int32_t>(address / 512)}),
                expected.erase({size, address}) == 1);
    }
    const auto fits = expected.lower_bound({size, 0});
    const FreeSet::Cursor found = set.lower_bound(size);
    ASSERT_EQ(found.end(), fits == expected.end());
    if (found.end()) continue;
    ASSERT_EQ(std::pair(set[found].size, set[found].address), *fits);
  }
  FreeSet::Cursor it = set.first();
  for (const auto& [size, address] : expected) {
    ASSERT_EQ(std::pair(set[it].size, set[it].address), std::pair(size, address));
    it = set.next(it);
  }
  EXPECT_TRUE(it.end());
}

}  // namespace
}  // namespace foreshard
