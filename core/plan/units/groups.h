// Process groups, strategies and divide factors (rules HS1, S1, S3, G4): which ranks shard together, which replicate.
#pragma once

#include <cstdint>

#include "core/job.h"
#include "core/plan.h"
#include "core/result.h"

namespace foreshard {

struct RankGroups {
  PlanGroups groups;  // of job.cluster.rank
  std::int32_t shard_size = 1;
  std::int32_t replicate_size = 1;
  bool operator==(const RankGroups&) const = default;
};

/// HS1: consecutive ranks shard when `hybrid` (shard_group, or a node's ranks), equal positions replicate; otherwise
/// all ranks are one shard group. Errors: no ranks, a rank outside the world, a group that does not divide the world.
/// `inner` ranks side by side share a place along the data dimensions (a mesh's tensor dimension): groups then take
/// every inner-th rank. REQUIRES that it divides the world.
Result<RankGroups> rank_groups(const ClusterOptions& cluster, bool hybrid, std::int64_t inner = 1);

/// The groups of a unit of experts, of which `experts` ranks side by side hold different ones: it is sharded inside the
/// rest's shard group, over the ranks of it that hold the same experts, and replicated as the rest is. Of the `tensor`
/// ranks that share a place along the data dimensions each has experts of its own. Errors: as rank_groups, and experts'
/// ranks that do not divide a shard group with all of its tensor ranks.
Result<RankGroups> expert_groups(const ClusterOptions& cluster, bool hybrid, std::int64_t experts,
                                 std::int64_t tensor = 1);

/// HS1: what a hybrid strategy is given to make its groups from.
enum class GivenGroups : std::uint8_t { None, One, Pair };

/// HS1: a pair is taken as it is; nothing means one shard group a node, but only where a policy wraps, because units
/// wrapped by hand would each make groups of their own; one plain group says nothing about replicas.
Result<void> check_hybrid_groups(GivenGroups given, bool by_policy);

/// S3: in a shard group of one every sharded strategy is NO_SHARD.
Strategy clamp_strategy(Strategy strategy, std::int32_t shard_size);

/// G4: gradients are divided by `pre` before the reduction and by `post` after it; the product is `ranks`.
struct DivideFactors {
  double pre = 1.0;
  double post = 1.0;
  bool operator==(const DivideFactors&) const = default;
};
DivideFactors divide_factors(std::int64_t ranks);

}  // namespace foreshard
