// Rules H3..H6 and H17, and the groups and factors of HS1, S3 and G4.
#include "core/plan/units/flat_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan/units/groups.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;

FlatLayout lay_out(const std::vector<Numel>& sizes, Numel alignment, std::int32_t ranks, bool sharded = true) {
  std::vector<FlatParam> params;
  for (std::size_t i = 0; i < sizes.size(); ++i) params.push_back({ParamId(i), sizes[i]});
  return flat_layout(params, alignment, ranks, sharded);
}

TEST(FlatLayout, AlignsEveryParameterTo16BytesAndTheEndToTheWorld) {
  const FlatLayout layout = lay_out({5, 3}, flat_alignment(DType::Float32, true), 4);
  EXPECT_EQ(layout.numel, 12);  // 5 + 3 pad + 3 + 1 world pad
  EXPECT_EQ(layout.shard_numel, 3);
  EXPECT_EQ(layout.align_padding, 3);
  EXPECT_EQ(layout.world_padding, 1);
  EXPECT_THAT(layout.entries, ElementsAre(FlatEntry{ParamId(0), 0, 5}, FlatEntry{ParamId{}, 5, 3},
                                          FlatEntry{ParamId(1), 8, 3}, FlatEntry{ParamId{}, 11, 1}));
}

TEST(FlatLayout, AlignmentFollowsTheComputeDtype) {
  EXPECT_EQ(flat_alignment(DType::BFloat16, true), 8);
  EXPECT_EQ(flat_alignment(DType::Float64, true), 2);
  EXPECT_EQ(flat_alignment(DType::Float32, false), 0);
  EXPECT_EQ(lay_out({5, 3}, 8, 4).numel, 12);
}

TEST(FlatLayout, FlatParametersHaveNoPaddingInside) {
  const FlatLayout layout = lay_out({5, 3}, 0, 4);
  EXPECT_EQ(layout.numel, 8);
  EXPECT_EQ(layout.shard_numel, 2);
  EXPECT_EQ(layout.padded_numel, 8);
}

TEST(FlatLayout, TheLastRankIsPaddedOnTheRight) {
  const FlatLayout layout = lay_out({10}, 0, 4);
  EXPECT_EQ(layout.shard_numel, 3);
  EXPECT_EQ(layout.padded_numel, 12);
  EXPECT_EQ(rank_shard(layout, 3, true).padding, 2);
  EXPECT_EQ(rank_shard(layout, 3, true).params[0], (ParamShard{true, 0, 1, 9, 9}));
}

TEST(FlatLayout, ARankWithoutAChunkHoldsPaddingOnly) {
  const FlatLayout layout = lay_out({5}, 0, 4);  // chunks of 2, 2, 1
  const RankShard last = rank_shard(layout, 3, true);
  EXPECT_EQ(last.numel, 2);
  EXPECT_EQ(last.padding, 2);
  EXPECT_FALSE(last.params[0].in_shard);
}

TEST(FlatLayout, MetadataIsInclusiveAndLeavesPaddingOut) {
  const RankShard second = rank_shard(lay_out({5, 3}, 4, 4), 1, true);  // elements 3..5
  ASSERT_EQ(second.params.size(), 2u);
  EXPECT_EQ(second.params[0], (ParamShard{true, 0, 2, 3, 4}));
  EXPECT_FALSE(second.params[1].in_shard);
}

TEST(FlatLayout, NoShardKeepsTheWholeVectorButStillPadsForTheWorld) {
  const FlatLayout layout = lay_out({5, 3}, 4, 4, false);
  EXPECT_EQ(layout.numel, 12);
  EXPECT_EQ(layout.shard_numel, 12);
  EXPECT_EQ(layout.padded_numel, 12);
  const RankShard any = rank_shard(layout, 2, false);
  EXPECT_EQ(any.padding, 0);
  EXPECT_EQ(any.params[1], (ParamShard{true, 8, 3, 0, 2}));
}

TEST(FlatLayout, ShardBytesTimesRanksAreThePaddedBytes) {
  for (Numel n = 1; n < 40; ++n) {
    for (std::int32_t ranks = 1; ranks < 12; ++ranks) {
      for (Numel alignment : {0, 2, 4, 8}) {
        const FlatLayout layout = lay_out({n, 7, n + 3}, alignment, ranks);
        EXPECT_EQ(layout.shard_numel * ranks, layout.padded_numel);
        EXPECT_GE(layout.padded_numel, layout.numel);
        if (alignment > 0) {
          EXPECT_EQ(layout.padded_numel, layout.numel);  // the world padding is inside
        }
      }
    }
  }
}

PlanUnit unit_of(Numel n, std::int32_t ranks) {
  PlanUnit unit;
  unit.shard_size = ranks;
  unit.flat_numel = n;
  unit.shard_numel = ceil_div(n, ranks);
  unit.padded_numel = unit.shard_numel * ranks;
  return unit;
}

TEST(UnitLedger, CountsEveryBufferOfAUnitInMixedPrecision) {
  PlanUnit unit = unit_of(11, 4);
  unit.param_dtype = DType::BFloat16;
  const UnitLedger ledger = unit_ledger(unit);
  EXPECT_EQ(ledger.shard, 3 * 4);
  EXPECT_EQ(ledger.grad_shard, 3 * 4);
  EXPECT_EQ(ledger.moments, 2 * 3 * 4);
  EXPECT_EQ(ledger.cast_copy, 3 * 2);
  EXPECT_EQ(ledger.unsharded, 12 * 2);
  EXPECT_EQ(ledger.gradient, 11 * 2);
  EXPECT_EQ(ledger.gradient_pieces, 11 * 2);
  EXPECT_EQ(ledger.reduce_copy, 11 * 4);
  EXPECT_EQ(ledger.padded_copy, 12 * 4);
  EXPECT_EQ(ledger.reduce_output, 3 * 4);
  EXPECT_EQ(ledger.reduce_output_cast, 0);
}

TEST(UnitLedger, MakesNoCopyThatHasNothingToDo) {
  const UnitLedger ledger = unit_ledger(unit_of(100, 4));
  EXPECT_EQ(ledger.cast_copy, 0);
  EXPECT_EQ(ledger.reduce_copy, 0);
  EXPECT_EQ(ledger.padded_copy, 0);
  EXPECT_EQ(ledger.reduce_output_cast, 0);
}

TEST(UnitLedger, CastsTheReducedShardBackAndKeepsLowPrecisionGradsOnlyIfAsked) {
  PlanUnit unit = unit_of(100, 4);
  unit.param_dtype = unit.reduce_dtype = DType::BFloat16;
  EXPECT_EQ(unit_ledger(unit).reduce_output_cast, 25 * 4);
  EXPECT_EQ(unit_ledger(unit).grad_shard, 25 * 4);
  unit.keep_low_precision_grads = true;
  EXPECT_EQ(unit_ledger(unit).grad_shard, 25 * 2);
}

TEST(UnitLedger, NoShardGathersNothingAndFrozenUnitsHaveNoGradients) {
  PlanUnit unit = unit_of(100, 4);
  unit.strategy = Strategy::NoShard;
  EXPECT_EQ(unit_ledger(unit).unsharded, 0);
  EXPECT_EQ(unit_ledger(unit).reduce_output, 0);
  unit.requires_grad = false;
  EXPECT_EQ(unit_ledger(unit).gradient, 0);
  EXPECT_EQ(unit_ledger(unit).moments, 0);
}

TEST(Groups, NodesShardAndEqualPositionsReplicate) {
  ClusterOptions cluster;
  cluster.world_size = 16, cluster.ranks_per_node = 8, cluster.rank = 9;
  const auto groups = rank_groups(cluster, true);
  ASSERT_TRUE(groups);
  EXPECT_THAT(groups->groups.shard, ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_THAT(groups->groups.replicate, ElementsAre(1, 9));
  EXPECT_EQ(groups->shard_size, 8);
  EXPECT_EQ(groups->replicate_size, 2);
}

TEST(Groups, WithoutReplicationAllRanksShard) {
  ClusterOptions cluster;
  cluster.world_size = 3, cluster.rank = 1, cluster.shard_group = 2;
  const auto groups = rank_groups(cluster, false);
  ASSERT_TRUE(groups);
  EXPECT_THAT(groups->groups.shard, ElementsAre(0, 1, 2));
  EXPECT_THAT(groups->groups.replicate, ElementsAre(1));
}

TEST(Groups, ASmallClusterIsOneNode) {
  ClusterOptions cluster;
  cluster.world_size = 4, cluster.ranks_per_node = 8;
  EXPECT_EQ(rank_groups(cluster, true)->shard_size, 4);
}

TEST(Groups, RefusesRanksAndGroupsThatDoNotFit) {
  const auto refused = [](std::int64_t world, std::int64_t rank, std::int64_t node, std::int64_t group) {
    ClusterOptions cluster;
    cluster.world_size = world, cluster.rank = rank, cluster.ranks_per_node = node, cluster.shard_group = group;
    const auto groups = rank_groups(cluster, true);
    return groups ? std::string("accepted") : groups.error().place;
  };
  EXPECT_EQ(refused(0, 0, 8, 0), "cluster.world_size");
  EXPECT_EQ(refused(4, 4, 8, 0), "cluster.rank");
  EXPECT_EQ(refused(4, -1, 8, 0), "cluster.rank");
  EXPECT_EQ(refused(4, 0, 0, 0), "cluster.ranks_per_node");
  EXPECT_EQ(refused(4, 0, 8, 8), "cluster.shard_group");
  EXPECT_EQ(refused(6, 0, 8, 4), "cluster.shard_group");
  EXPECT_EQ(refused(12, 0, 8, 0), "cluster.ranks_per_node");
}

TEST(Groups, DivideFactorsAreThoseOfTheTable) {
  EXPECT_EQ(divide_factors(1), (DivideFactors{1, 1}));
  EXPECT_EQ(divide_factors(2), (DivideFactors{2, 1}));
  EXPECT_EQ(divide_factors(3), (DivideFactors{2, 1.5}));
  EXPECT_EQ(divide_factors(4), (DivideFactors{2, 2}));
  EXPECT_EQ(divide_factors(6), (DivideFactors{4, 1.5}));
  EXPECT_EQ(divide_factors(8), (DivideFactors{4, 2}));
  EXPECT_EQ(divide_factors(12), (DivideFactors{4, 3}));
  EXPECT_EQ(divide_factors(16), (DivideFactors{4, 4}));
  for (std::int64_t world = 1; world <= 64; ++world) {
    const DivideFactors factors = divide_factors(world);
    EXPECT_DOUBLE_EQ(factors.pre * factors.post, static_cast<double>(world));
  }
}

TEST(Groups, AShardGroupOfOneMeansNoShard) {
  EXPECT_EQ(clamp_strategy(Strategy::FullShard, 1), Strategy::NoShard);
  EXPECT_EQ(clamp_strategy(Strategy::ShardGradOp, 2), Strategy::ShardGradOp);
}

}  // namespace
}  // namespace foreshard
