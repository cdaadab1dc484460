#include "core/plan/units/shard_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foreshard {
namespace {

using ::testing::ElementsAre;

Model bag(const std::vector<Shape>& shapes, std::vector<DType> dtypes = {}) {
  Model model;
  model.modules.push_back({"", "Bag", {}, {}, {}, {}, {}});
  dtypes.resize(shapes.size(), DType::Float32);
  for (std::size_t k = 0; k < shapes.size(); ++k) {
    model.params.push_back({"p." + std::to_string(k), shapes[k], dtypes[k], true, ModuleId(0), {}});
  }
  return model;
}

std::vector<ShardedParam> shard_all(const Model& model, std::int64_t world, std::int64_t rank) {
  std::vector<ShardedParam> sharded;
  for (std::size_t k = 0; k < model.params.size(); ++k)
    sharded.push_back(shard_param(model, ParamId(k), 0, world, rank).value());
  return sharded;
}

TEST(ShardLayout, FiveRowsOverTwoRanksAreThreeAndTwoPaddedToThree) {  // F2-1, Ex
  const Model model = bag({{5, 3}});
  EXPECT_THAT(shard_param(model, ParamId(0), 0, 2, 0)->local_shape, ElementsAre(3, 3));
  const ShardedParam last = shard_param(model, ParamId(0), 0, 2, 1).value();
  EXPECT_THAT(last.local_shape, ElementsAre(2, 3));
  EXPECT_THAT(last.padded_local_shape, ElementsAre(3, 3));
  const UnitLayout layout = layout_unit(model, shard_all(model, 2, 0), {true}, 2, {});
  EXPECT_EQ(layout.gather_output_numel, 18);
  EXPECT_EQ(layout.copy_out[0].storage_numel, 18);
  EXPECT_EQ(layout.copy_out[0].view_numel, 15);
}

TEST(ShardLayout, RanksBeyondTheLastChunkHoldOnlyPadding) {
  EXPECT_EQ(shard_extent(5, 4, 2), (ShardExtent{4, 1, 2}));
  EXPECT_EQ(shard_extent(5, 4, 3), (ShardExtent{5, 0, 2}));
}

TEST(ShardLayout, OneBufferTakesAllPaddedShardsOfAUnit) {  // F2-2, Ex: 9 and 4 padded elements, W = 2
  const Model model = bag({{5, 3}, {7}});
  const UnitLayout layout =
      layout_unit(model, shard_all(model, 2, 0), {true, true}, 2, {DType::BFloat16, DType::Float32});
  EXPECT_THAT(layout.input_split_sizes, ElementsAre(9, 4));
  EXPECT_EQ(layout.gather_output_numel, 26);
  EXPECT_EQ(layout.gather_dtype, DType::BFloat16);
  EXPECT_EQ(layout.reduce.dtype, DType::Float32);
  EXPECT_EQ(layout.reduce.input_numel, 26);
  EXPECT_EQ(layout.reduce.grads[1].offset_in_output, 9);
}

TEST(ShardLayout, MixedDtypesAreGatheredAsBytes) {  // F2-2
  const Model model = bag({{4}, {4}}, {DType::Float32, DType::BFloat16});
  const UnitLayout layout = layout_unit(model, shard_all(model, 2, 0), {true, false}, 2, {});
  EXPECT_EQ(layout.gather_dtype, DType::UInt8);
  EXPECT_THAT(layout.input_split_sizes, ElementsAre(8, 4));
  ASSERT_EQ(layout.reduce.grads.size(), 1U);
}

TEST(ShardLayout, UnevenShardingOnAnotherDimensionIsRefused) {  // F2-1
  const Model model = bag({{12, 8}, {}});
  EXPECT_TRUE(shard_param(model, ParamId(0), 1, 4, 0));
  EXPECT_TRUE(shard_param(model, ParamId(0), -1, 4, 0));
  EXPECT_EQ(shard_param(model, ParamId(0), 1, 3, 0).error().code, ErrorCode::Unsupported);
  EXPECT_EQ(shard_param(model, ParamId(0), 2, 4, 0).error().code, ErrorCode::OutOfRange);
  EXPECT_EQ(shard_param(model, ParamId(1), 0, 4, 0).error().code, ErrorCode::Unsupported);
}

}  // namespace
}  // namespace foreshard
