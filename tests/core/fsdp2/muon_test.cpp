// Muon on sharded matrices: what DTensor (2.11) was seen to choose for products, and what a step then meets in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan/fsdp2/sharded_product.h"

namespace foreshard::fsdp2 {
namespace {

using enum MatrixPlacement;
constexpr Bytes kHalf = 2;

RankMesh four() { return {4, 0, 8}; }

// X X^T of rows over four ranks. Small: the right one is gathered, which leaves rows.
TEST(ShardedProduct, SmallMatricesAreGatheredForRowsOfTheResult) {
  const ShardedMatrix x{512, 512, Rows, false}, turned{512, 512, Columns, true};
  EXPECT_EQ(place_product(four(), nullptr, x, turned, kHalf), (ProductPlacement{Rows, Rows, Whole}));
}

// Wide: both are exchanged for what is summed over, which leaves terms.
TEST(ShardedProduct, WideMatricesAreExchanged) {
  const ShardedMatrix x{1024, 2816, Rows, false}, turned{2816, 1024, Columns, true};
  EXPECT_EQ(place_product(four(), nullptr, x, turned, kHalf), (ProductPlacement{Sum, Columns, Rows}));
}

// What moves nothing is taken: a tall matrix on its side is cut along what is summed over.
TEST(ShardedProduct, TallMatricesOnTheirSideAreMultipliedAsTheyLie) {
  const ShardedMatrix x{1024, 2816, Columns, true}, turned{2816, 1024, Rows, false};
  EXPECT_EQ(place_product(four(), nullptr, x, turned, kHalf), (ProductPlacement{Sum, Columns, Rows}));
}

// b G + c G G of terms: one factor is summed up, the other and the bias stay terms.
TEST(ShardedProduct, OneFactorOfTermsIsSummedUp) {
  const ShardedMatrix gram{1024, 1024, Sum, false};
  const ProductPlacement way = place_product(four(), &gram, gram, gram, kHalf);
  EXPECT_EQ(way.result, Sum);
  EXPECT_EQ((way.left == Whole) + (way.right == Whole), 1);
}

// a X + H X of terms and rows: the terms are scattered to rows, X is gathered.
TEST(ShardedProduct, TermsAreScatteredWhereTheBiasLiesInRows) {
  const ShardedMatrix x{1024, 2816, Rows, false}, change{1024, 1024, Sum, false};
  EXPECT_EQ(place_product(four(), &x, change, x, kHalf), (ProductPlacement{Rows, Rows, Whole}));
}

TEST(ShardedProduct, PartsAreCutAsChunkDoes) {
  const RankMesh last{4, 3, 8};
  EXPECT_EQ(last.part(10), 1);  // 3, 3, 3, 1
  EXPECT_EQ(last.part(6), 0);   // 2, 2, 2, 0
}

}  // namespace
}  // namespace foreshard::fsdp2
