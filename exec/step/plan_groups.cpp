#include "exec/step/plan_groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/model/mesh_dimension.h"
#include "core/plan/process_groups.h"

namespace foreshard::exec {

std::vector<CommunicatorId> communicators_to_connect(const Plan& plan) {
  std::vector<CommunicatorId> ids;
  for (std::size_t c = 0; c < plan.communicators.size(); ++c) {
    if (plan.communicators[c].ranks.size() > 1) ids.emplace_back(c);
  }
  return ids;
}

std::string meeting_name(const PlanCommunicator& communicator) {
  return fmt::format("{} of ranks {}", communicator.name, fmt::join(communicator.ranks, ","));
}

void Communicators::set(CommunicatorId id, std::shared_ptr<Communicator> communicator) {
  if (id.index() >= by_id_.size()) by_id_.resize(id.index() + 1);
  by_id_[id.index()] = std::move(communicator);
}

std::shared_ptr<Communicator> Communicators::find(CommunicatorId id) const {
  return id.valid() && id.index() < by_id_.size() ? by_id_[id.index()] : nullptr;
}

std::optional<Error> missing_communicator(const Plan& plan, const Communicators& communicators) {
  for (const CommunicatorId id : communicators_to_connect(plan)) {
    const PlanCommunicator& group = plan.communicators[id.index()];
    const auto found = communicators.find(id);
    const auto own = std::find(group.ranks.begin(), group.ranks.end(), plan.rank) - group.ranks.begin();
    const auto size = static_cast<int>(group.ranks.size());
    if (found != nullptr && found->rank() == own && found->size() == size) continue;
    Error error;
    error.code = ErrorCode::Inconsistent;
    error.message = "a group of the plan has no communicator of its own";
    error.place = "communicator " + meeting_name(group);
    error.expected = fmt::format("rank {} of {}", own, size);
    error.got = found == nullptr ? "none" : fmt::format("rank {} of {}", found->rank(), found->size());
    return error;
  }
  return std::nullopt;
}

std::vector<std::int32_t> ranks_of_unit(const Model& model, const Plan& plan, const PlanUnit& unit) {
  const bool experts = !unit.params.empty() && experts_of(model, unit.params.front()) != nullptr;
  if (!experts) return plan.groups.shard;
  for (const PlanCommunicator& group : plan.communicators)
    if (group.kind == kExpertShardDimension) return group.ranks;
  return {plan.rank};
}

}  // namespace foreshard::exec
