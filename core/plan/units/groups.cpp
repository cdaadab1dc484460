#include "core/plan/units/groups.h"

#include <fmt/format.h>

#include <algorithm>

namespace foreshard {
namespace {

constexpr std::int64_t kMaxWorldSize = 1 << 20;

Result<void> check_cluster(const ClusterOptions& cluster) {
  const auto out_of_range = [](const char* key, std::string expected, std::int64_t got) {
    return fail({ErrorCode::OutOfRange,
                 fmt::format("{} is out of range", key),
                 {},
                 fmt::format("cluster.{}", key),
                 std::move(expected),
                 std::to_string(got),
                 {}});
  };
  if (cluster.world_size < 1 || cluster.world_size > kMaxWorldSize) {
    return out_of_range("world_size", fmt::format("1 to {}", kMaxWorldSize), cluster.world_size);
  }
  if (cluster.rank < 0 || cluster.rank >= cluster.world_size) {
    return out_of_range("rank", fmt::format("0 to {}", cluster.world_size - 1), cluster.rank);
  }
  if (cluster.ranks_per_node < 1) return out_of_range("ranks_per_node", "at least 1", cluster.ranks_per_node);
  if (cluster.shard_group < 0 || cluster.shard_group > cluster.world_size) {
    return out_of_range("shard_group", fmt::format("0 to {}", cluster.world_size), cluster.shard_group);
  }
  return {};
}

}  // namespace

Result<RankGroups> rank_groups(const ClusterOptions& cluster, bool hybrid, std::int64_t inner) {
  if (auto ok = check_cluster(cluster); !ok) return tl::unexpected(ok.error());
  const std::int64_t world = cluster.world_size / inner;
  const std::int64_t rank = cluster.rank / inner;
  std::int64_t size = world;
  const std::int64_t per_node = std::max<std::int64_t>(cluster.ranks_per_node / inner, 1);
  if (hybrid) size = cluster.shard_group > 0 ? cluster.shard_group : std::min(per_node, world);
  if (world % size != 0) {
    return fail({ErrorCode::OutOfRange,
                 "the shard group does not divide the world",
                 {},
                 cluster.shard_group > 0 ? "cluster.shard_group" : "cluster.ranks_per_node",
                 fmt::format("a divisor of {}", world),
                 std::to_string(size),
                 "set cluster.shard_group to a divisor of cluster.world_size"});
  }
  RankGroups result;
  result.shard_size = static_cast<std::int32_t>(size);
  result.replicate_size = static_cast<std::int32_t>(world / size);
  const std::int64_t first = rank / size * size, position = rank % size;
  const auto of_world = [&](std::int64_t place) {
    return static_cast<std::int32_t>(place * inner + cluster.rank % inner);
  };
  for (std::int64_t i = 0; i < size; ++i) result.groups.shard.push_back(of_world(first + i));
  for (std::int64_t i = position; i < world; i += size) {
    if (hybrid || i == rank) result.groups.replicate.push_back(of_world(i));
  }
  return result;
}

Result<RankGroups> expert_groups(const ClusterOptions& cluster, bool hybrid, std::int64_t experts,
                                 std::int64_t tensor) {
  auto rest = rank_groups(cluster, hybrid, tensor);
  if (!rest) return rest;
  const std::int64_t ranks = rest->shard_size * tensor;  // of a replica
  if (ranks % experts != 0) {
    return fail({ErrorCode::OutOfRange,
                 "the ranks of the expert dimension lie inside a shard group, which they do not divide",
                 {},
                 "mesh.expert",
                 fmt::format("a divisor of the {} ranks of a shard group", ranks),
                 std::to_string(experts),
                 "change it or cluster.shard_group"});
  }
  ClusterOptions same = cluster;
  same.shard_group = ranks / experts;
  return rank_groups(same, hybrid, experts);
}

Result<void> check_hybrid_groups(GivenGroups given, bool by_policy) {
  if (given == GivenGroups::Pair || (given == GivenGroups::None && by_policy)) return {};
  return fail({ErrorCode::Inconsistent,
               "a hybrid strategy needs two groups (HS1)",
               {},
               "process_group",
               "a shard group and a replicate group",
               given == GivenGroups::One ? "one plain group" : "nothing, and units wrapped by hand",
               "pass a pair of groups or a 2-D mesh"});
}

Strategy clamp_strategy(Strategy strategy, std::int32_t shard_size) {
  return shard_size == 1 ? Strategy::NoShard : strategy;
}

DivideFactors divide_factors(std::int64_t ranks) {
  double pre = 1.0;
  const auto world = static_cast<double>(ranks);
  while (ranks % static_cast<std::int64_t>(pre) == 0 && world / pre > pre) pre *= 2.0;
  return {pre, world / pre};
}

}  // namespace foreshard
