// What holds for every tree, every choice of units and every world: parameters are managed once, shards tile.
#include <gtest/gtest.h>

#include <random>

#include "core/plan/units/flat_layout.h"
#include "core/plan/units/units.h"
#include "tests/core/units/toy_model.h"

namespace foreshard {
namespace {

struct Case {
  Model model;
  Job job;
};

/// A random tree with odd sizes, a random set of units and random options. No ties: those have tests of their own.
Case random_case(std::uint32_t seed, Runtime runtime) {
  std::mt19937 rng(seed);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng); };
  std::vector<testing::ToyModule> modules{{"", "Graph"}};
  for (int i = pick(1, 14); i > 0; --i) {
    const auto& parent = modules[static_cast<std::size_t>(pick(0, static_cast<int>(modules.size()) - 1))].fqn;
    testing::ToyModule module{(parent.empty() ? "" : parent + ".") + "m" + std::to_string(modules.size()), "Leaf"};
    for (int p = pick(0, 3); p > 0; --p) module.params.push_back({"p" + std::to_string(p), {pick(1, 13), pick(1, 7)}});
    modules.push_back(std::move(module));
  }
  Case c{testing::toy_model(modules), testing::fsdp1_job(pick(1, 9))};
  c.job.fsdp.runtime = runtime;
  c.job.fsdp.use_orig_params = pick(0, 1) == 1;
  if (pick(0, 1) == 1) c.job.fsdp.mixed_precision.param = DType::BFloat16;
  c.job.cluster.rank = pick(0, static_cast<int>(c.job.cluster.world_size) - 1);
  std::vector<std::vector<std::string>> units{{""}};
  for (std::size_t m = 1; m < modules.size(); ++m) {
    if (pick(0, 2) == 0) units.push_back({modules[m].fqn});
  }
  c.job = testing::with_units(c.job, units);
  return c;
}

Numel all_elements(const Model& model) {
  Numel total = 0;
  for (const ParamInfo& param : model.params) total += numel_of(param.shape);
  return total;
}

class EveryTree : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(EveryTree, GivesEachParameterToExactlyOneUnit) {
  for (Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2, Runtime::None}) {
    const Case c = random_case(GetParam(), runtime);
    const auto table = build_units(c.model, c.job);
    ASSERT_TRUE(table) << to_text(table.error());
    Numel total = 0;
    std::vector<int> times(c.model.params.size());
    for (std::size_t u = 0; u < table->units.size(); ++u) {
      total += table->units[u].numel;
      for (ParamId param : table->units[u].params) {
        ++times[param.index()];
        EXPECT_EQ(table->unit_of_param[param.index()], UnitId(u));
      }
    }
    EXPECT_EQ(total, all_elements(c.model));  // W8
    for (int n : times) EXPECT_EQ(n, 1);
    EXPECT_EQ(table->units[0].name, "");
    EXPECT_EQ(table->build_order.back(), UnitId(0));
    EXPECT_EQ(table->build_order.size(), table->units.size());
  }
}

TEST_P(EveryTree, CutsFlatParametersIntoShardsThatTile) {
  const Case c = random_case(GetParam(), Runtime::Fsdp1);
  const auto table = build_units(c.model, c.job);
  ASSERT_TRUE(table);
  for (const PlanUnit& unit : table->units) {
    if (unit.params.empty()) continue;
    const bool sharded = unit.strategy != Strategy::NoShard;
    EXPECT_EQ(unit.padded_numel, sharded ? unit.shard_numel * unit.shard_size : unit.flat_numel);  // H5
    EXPECT_EQ(unit.flat_numel, unit.numel + unit.align_padding + unit.world_padding);
    std::vector<Numel> covered(unit.params.size());
    std::vector<Numel> next(unit.params.size());
    Numel real = 0;
    for (std::int32_t rank = 0; rank < (sharded ? unit.shard_size : 1); ++rank) {
      const RankShard shard = rank_shard(unit, rank);
      EXPECT_EQ(shard.numel, unit.shard_numel);
      real += shard.numel - shard.padding;
      for (std::size_t p = 0; p < shard.params.size(); ++p) {
        if (!shard.params[p].in_shard) continue;
        EXPECT_EQ(shard.params[p].start, next[p]);  // pieces follow each other
        next[p] = shard.params[p].end + 1;
        covered[p] += shard.params[p].numel_in_shard;
        EXPECT_LE(shard.params[p].offset_in_shard + shard.params[p].numel_in_shard, shard.numel);
      }
    }
    EXPECT_EQ(real, unit.flat_numel);
    for (std::size_t p = 0; p < covered.size(); ++p)
      EXPECT_EQ(covered[p], numel_of(c.model.params[unit.params[p].index()].shape));
  }
}

TEST_P(EveryTree, ShardsOfAllRanksHoldEachParameterOnceInFsdp2) {
  Case c = random_case(GetParam(), Runtime::Fsdp2);
  std::vector<Numel> held(c.model.params.size());
  for (c.job.cluster.rank = 0; c.job.cluster.rank < c.job.cluster.world_size; ++c.job.cluster.rank) {
    const auto table = build_units(c.model, c.job);
    ASSERT_TRUE(table);
    for (const PlanUnit& unit : table->units) {
      EXPECT_EQ(unit.padded_numel, unit.shard_numel * unit.shard_size);
      for (const ShardedParam& sharded : unit.sharded) held[sharded.param.index()] += numel_of(sharded.local_shape);
    }
  }
  for (std::size_t p = 0; p < held.size(); ++p) EXPECT_EQ(held[p], numel_of(c.model.params[p].shape));
}

TEST_P(EveryTree, GivesTheSameTableTwice) {
  const Case c = random_case(GetParam(), Runtime::Fsdp1);
  EXPECT_EQ(build_units(c.model, c.job)->units, build_units(c.model, c.job)->units);
}

INSTANTIATE_TEST_SUITE_P(Seeds, EveryTree, ::testing::Range(0u, 60u));

}  // namespace
}  // namespace foreshard
