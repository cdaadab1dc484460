#include "core/plan/process_groups.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace foreshard {
namespace {

std::vector<std::int32_t> all_ranks(const Plan& plan) {
  std::vector<std::int32_t> ranks(static_cast<std::size_t>(plan.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

bool spans_world(const Plan& plan, const std::vector<std::int32_t>& ranks) {
  return ranks.size() == static_cast<std::size_t>(plan.world_size);
}

/// Hybrid strategies make both groups anew, also where one of them spans the world.
bool has_mesh(const Plan& plan) {
  if (plan.runtime == Runtime::None) return false;
  return std::any_of(plan.units.begin(), plan.units.end(), [](const PlanUnit& unit) {
    return unit.strategy == Strategy::HybridShard || unit.strategy == Strategy::HybridShardZero2;
  });
}

enum class Default { None, Shard, Replicate };

/// Which dimension torch's default group is.
Default default_group(const Plan& plan) {
  if (has_mesh(plan)) return Default::None;
  if (spans_world(plan, plan.groups.shard)) return Default::Shard;
  return spans_world(plan, plan.groups.replicate) ? Default::Replicate : Default::None;
}

}  // namespace

CommunicatorId enter_communicator(Plan& plan, std::string_view name, std::string_view kind,
                                  std::vector<std::int32_t> ranks) {
  const auto known = std::find_if(plan.communicators.begin(), plan.communicators.end(),
                                  [&](const PlanCommunicator& one) { return one.name == name; });
  const CommunicatorId id(static_cast<std::size_t>(known - plan.communicators.begin()));
  if (known == plan.communicators.end()) {
    plan.communicators.push_back({std::string(name), std::string(kind), std::move(ranks)});
  }
  return id;
}

CommunicatorId enter_dimension(Plan& plan, std::string_view dimension, const std::vector<std::int32_t>& ranks) {
  return enter_communicator(plan, spans_world(plan, ranks) ? kWorldDimension : dimension, dimension, ranks);
}

CommunicatorId communicator_along(const Plan& plan, std::string_view dimension,
                                  const std::vector<std::int32_t>& ranks) {
  const std::string_view name = spans_world(plan, ranks) ? kWorldDimension : dimension;
  const auto at = std::find_if(plan.communicators.begin(), plan.communicators.end(),
                               [&](const PlanCommunicator& one) { return one.name == name; });
  if (at == plan.communicators.end()) return {};
  return CommunicatorId(static_cast<std::size_t>(at - plan.communicators.begin()));
}

void order_by_first_use(Plan& plan, const std::function<std::vector<CommunicatorId>(SegmentId)>& meets) {
  std::vector<CommunicatorId> order, place(plan.communicators.size());
  const auto note = [&](CommunicatorId id) {
    if (!id.valid() || place[id.index()].valid()) return;
    place[id.index()] = CommunicatorId(order.size());
    order.push_back(id);
  };
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& i : iteration.instructions) {
      note(i.communicator);
      if (i.kind != InstructionKind::Forward) continue;
      for (const CommunicatorId id : meets(i.segment)) note(id);
    }
  }
  for (std::size_t k = 0; k < place.size(); ++k) note(CommunicatorId(k));
  std::vector<PlanCommunicator> sorted;
  for (const CommunicatorId id : order) sorted.push_back(std::move(plan.communicators[id.index()]));
  plan.communicators = std::move(sorted);
  for (PlanIteration& iteration : plan.iterations) {
    for (Instruction& i : iteration.instructions)
      if (i.communicator.valid()) i.communicator = place[i.communicator.index()];
  }
}

std::vector<std::int32_t> ranks_beside(const PlanCommunicator& communicator, std::int32_t rank) {
  std::vector<std::int32_t> places = communicator.ranks;
  if (places.empty()) return {};
  std::sort(places.begin(), places.end());
  for (std::size_t k = places.size(); k-- > 0;) places[k] -= places.front();
  // Along each dimension that it spans the ranks are evenly apart, the nearest ones of the innermost.
  std::int32_t first = rank;
  for (std::size_t inner = 1; inner < places.size();) {
    const std::int32_t stride = places[inner];
    std::size_t size = 1;
    while (inner * size < places.size() && places[inner * size] == stride * static_cast<std::int32_t>(size)) ++size;
    first -= rank / stride % static_cast<std::int32_t>(size) * stride;
    inner *= size;
  }
  for (std::int32_t& place : places) place += first;
  return places;
}

CommunicatorId ProcessGroups::shard(Plan& plan, std::int32_t size) {
  if (static_cast<std::size_t>(size) != plan.groups.shard.size()) {
    return size == plan.world_size ? world(plan) : CommunicatorId();
  }
  if (!shard_.valid()) {
    const bool whole = default_group(plan) == Default::Shard;
    shard_ = enter_communicator(plan, whole ? kWorldDimension : kShardDimension, kShardDimension, plan.groups.shard);
  }
  return shard_;
}

CommunicatorId ProcessGroups::expert_shard(Plan& plan) {
  if (!expert_.valid() && !same_experts_.empty())
    expert_ = enter_communicator(plan, kExpertShardDimension, kExpertShardDimension, same_experts_);
  return expert_;
}

CommunicatorId ProcessGroups::replicate(Plan& plan) {
  if (!replicate_.valid()) {
    const bool whole = default_group(plan) == Default::Replicate;
    replicate_ = enter_communicator(plan, whole ? kWorldDimension : kReplicateDimension, kReplicateDimension,
                                    plan.groups.replicate);
  }
  return replicate_;
}

CommunicatorId ProcessGroups::world(Plan& plan) {
  if (!world_.valid()) {
    switch (default_group(plan)) {
      case Default::Shard: world_ = shard(plan); break;
      case Default::Replicate: world_ = replicate(plan); break;
      case Default::None: world_ = enter_communicator(plan, kWorldDimension, kWorldDimension, all_ranks(plan));
    }
  }
  return world_;
}

CommunicatorId ProcessGroups::post_forward(Plan& plan, UnitId unit, std::int32_t size, bool experts) {
  if (post_forward_.size() < plan.units.size()) post_forward_.resize(plan.units.size());
  CommunicatorId& known = post_forward_[unit.index()];
  if (known.valid()) return known;
  // Experts are sharded over the ranks that hold the same ones.
  const std::vector<std::int32_t>& whole = experts ? same_experts_ : plan.groups.shard;
  const auto part = static_cast<std::size_t>(size);
  const auto own = static_cast<std::size_t>(std::find(whole.begin(), whole.end(), plan.rank) - whole.begin());
  if (part == 0 || whole.size() % part != 0 || own == whole.size()) return {};
  const auto first = whole.begin() + static_cast<std::ptrdiff_t>(own / part * part);
  known = enter_communicator(plan, "post_forward:" + plan.units[unit.index()].name, kShardDimension,
                             {first, first + static_cast<std::ptrdiff_t>(part)});
  return known;
}

}  // namespace foreshard
