#include "exec/step/in_process_groups.h"

#include <algorithm>

#include "exec/communicators/in_process_communicator.h"

namespace foreshard::exec {

Communicators InProcessGroups::of(const Plan& plan) {
  const std::lock_guard lock(mutex_);
  Communicators own;
  for (const CommunicatorId id : communicators_to_connect(plan)) {
    const PlanCommunicator& group = plan.communicators[id.index()];
    auto& ranks = made_[meeting_name(group)];
    if (ranks.empty()) ranks = in_process_communicators(static_cast<int>(group.ranks.size()), timeout_);
    const auto place = std::find(group.ranks.begin(), group.ranks.end(), plan.rank) - group.ranks.begin();
    own.set(id, throttled(ranks.at(static_cast<std::size_t>(place)), link_));
  }
  return own;
}

}  // namespace foreshard::exec
