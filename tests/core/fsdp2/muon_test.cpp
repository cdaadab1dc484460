// Muon on sharded matrices: what DTensor (2.11) was seen to choose for products, and what a step then meets in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan/fsdp2/sharded_product.h"

namespace foreshard::fsdp2 {
namespace {

using enum MatrixPlacement;
constexpr Bytes kHalf = 2;

RankMesh four() { return {{{4, 0}}, 8}; }

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
  const RankMesh last{{{4, 3}}, 8};
  EXPECT_EQ(last.part(10, 0), 1);  // 3, 3, 3, 1
  EXPECT_EQ(last.part(6, 0), 0);   // 2, 2, 2, 0
}

// What DTensor logs for a mesh of 4 by 2 (dp, tp).
RankMesh four_by_two() { return {{{4, 0}, {2, 0}}, 8}; }

MatrixSpread strided(MatrixPlacement cut) {
  MatrixSpread spread(cut, cut);
  spread.strided = true;
  return spread;
}

// Rows that tensor cuts before data: no cost is known for them, so that all is gathered, data first.
TEST(ShardedProduct, WhatIsCutTheOtherWayRoundIsGatheredWhole) {
  const ShardedMatrix x{512, 512, strided(Rows), false}, turned{512, 512, strided(Columns), true};
  EXPECT_EQ(place_product(four_by_two(), nullptr, x, turned, kHalf), ProductPlacement{});
  EXPECT_EQ(steps_to(four_by_two(), x, {}),
            (std::vector<MoveStep>{{0, Rows, Whole, 256, 512}, {1, Rows, Whole, 512, 512}}));
  const ShardedMatrix whole{512, 512, {}, false};
  EXPECT_EQ(steps_to(four_by_two(), whole, strided(Rows)),
            (std::vector<MoveStep>{{1, Whole, Rows, 512, 512}, {0, Whole, Rows, 256, 512}}));
}

// Unless both operands lie as a way has them.
TEST(ShardedProduct, WhatIsCutTheOtherWayRoundIsMultipliedAsItLies) {
  const ShardedMatrix x{512, 1408, strided(Columns), true}, turned{1408, 512, strided(Rows), false};
  EXPECT_EQ(place_product(four_by_two(), nullptr, x, turned, kHalf),
            (ProductPlacement{{Sum, Sum}, strided(Columns), strided(Rows)}));
  const ShardedMatrix gram{512, 512, {Sum, Sum}, false};
  EXPECT_EQ(place_product(four_by_two(), &x, gram, x, kHalf),
            (ProductPlacement{strided(Columns), {Whole, Whole}, strided(Columns)}));
}

// Rows over data, columns over tensor: the right operand is gathered over data alone.
TEST(ShardedProduct, DimensionsAreChosenTogether) {
  const ShardedMatrix x{512, 1408, {Rows, Columns}, false}, turned{1408, 512, {Columns, Rows}, true};
  const ProductPlacement gram = place_product(four_by_two(), nullptr, x, turned, kHalf);
  EXPECT_EQ(gram, (ProductPlacement{{Rows, Sum}, {Rows, Columns}, {Whole, Rows}}));
  const ShardedMatrix terms{512, 512, gram.result, false};
  const ProductPlacement update = place_product(four_by_two(), &terms, terms, terms, kHalf);
  EXPECT_EQ(update, (ProductPlacement{{Rows, Sum}, {Rows, Sum}, {Whole, Whole}}));
  EXPECT_EQ(steps_to(four_by_two(), terms, update.right),
            (std::vector<MoveStep>{{1, Sum, Whole, 128, 512}, {0, Rows, Whole, 512, 512}}));
}

// Beside replicas, terms over the shard dimension: a way that cuts over the replicas would move half as much, but
// nothing is cut; where the bias is, it is taken.
TEST(ShardedProduct, OnlyWhatIsCutAlreadyIsCutFurther) {
  const RankMesh mesh{{{2, 0}, {2, 0}}, 8};
  const ShardedMatrix gram{512, 512, {Whole, Sum}, false}, x{512, 1408, {Whole, Columns}, true};
  EXPECT_EQ(place_product(mesh, &gram, gram, gram, kHalf),
            (ProductPlacement{{Whole, Sum}, {Whole, Sum}, {Whole, Whole}}));
  EXPECT_EQ(place_product(mesh, &x, gram, x, kHalf),
            (ProductPlacement{{Sum, Columns}, {Columns, Whole}, {Rows, Columns}}));
}

// A tensor of parts that nest otherwise is gathered first: (rows, rows) to (whole, rows).
TEST(ShardedProduct, PartsThatNestOtherwiseAreGatheredFirst) {
  const ShardedMatrix x{512, 64, {Rows, Rows}, false};
  EXPECT_EQ(steps_to(four_by_two(), x, {Whole, Rows}),
            (std::vector<MoveStep>{{1, Rows, Whole, 128, 64}, {0, Rows, Whole, 512, 64}, {1, Whole, Rows, 128, 64}}));
}

}  // namespace
}  // namespace foreshard::fsdp2
