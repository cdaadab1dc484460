// The process groups of a run as PyTorch makes them, entered in a plan's communicators where a collective first meets.
//
// FSDP1 and FSDP2 gather and reduce over one group, and so does whatever else spans the same dimension (norms, what a
// gradient scaler found). Without replicas that is torch's default group, which the world's broadcasts use too. Hybrid
// strategies have groups of their own beside it, and every fsdp2 unit with reshard_after_forward = k makes one of k
// ranks for itself. A plain value; one for each plan.
#pragma once

#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/plan.h"

namespace foreshard {

/// The dimension over which units of experts shard.
inline constexpr std::string_view kExpertShardDimension = "expert_shard";

class ProcessGroups {
 public:
  /// Ranks that have the same experts, where there are such units.
  void set_experts(std::vector<std::int32_t> ranks) { same_experts_ = std::move(ranks); }
  /// The dimension that shards over `size` ranks: the shard group, or the world for a unit that shards over all ranks
  /// where others are hybrid. Invalid if the plan has no group of that size.
  CommunicatorId shard(Plan& plan, std::int32_t size);
  CommunicatorId shard(Plan& plan) { return shard(plan, static_cast<std::int32_t>(plan.groups.shard.size())); }
  CommunicatorId replicate(Plan& plan);
  CommunicatorId world(Plan& plan);
  /// That of units of experts, which may have as many ranks as the shard group; invalid: there are none.
  CommunicatorId expert_shard(Plan& plan);
  /// F2-13: the `size` neighbours in the shard group among which `unit` keeps its shards after forward. Invalid if the
  /// size does not divide the group.
  CommunicatorId post_forward(Plan& plan, UnitId unit, std::int32_t size, bool experts = false);

 private:
  CommunicatorId shard_, replicate_, world_, expert_;
  std::vector<CommunicatorId> post_forward_;  // by unit
  std::vector<std::int32_t> same_experts_;
};

/// The communicator of a mesh dimension that the program meets over; the world's where it spans the world, as
/// init_device_mesh has it.
CommunicatorId enter_dimension(Plan& plan, std::string_view dimension, const std::vector<std::int32_t>& ranks);

/// The communicator that enter_dimension has entered; invalid: none.
CommunicatorId communicator_along(const Plan& plan, std::string_view dimension, const std::vector<std::int32_t>& ranks);

/// Numbers the communicators in the order in which the first iteration meets in them. `meets(segment)`: what a forward
/// of that segment meets in, in order.
void order_by_first_use(Plan& plan, const std::function<std::vector<CommunicatorId>(SegmentId)>& meets);

/// The communicator of this name; entered with these ranks if the plan has none.
CommunicatorId enter_communicator(Plan& plan, std::string_view name, std::string_view kind,
                                  std::vector<std::int32_t> ranks);

/// The group of the same communicator that `rank` of the world is in: a communicator spans dimensions of a mesh, and
/// every rank has its own place along the others.
std::vector<std::int32_t> ranks_beside(const PlanCommunicator& communicator, std::int32_t rank);

}  // namespace foreshard
