// The communicators that stand for a plan's: one for each group of ranks in which its collectives meet.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/model/model.h"
#include "core/plan.h"
#include "core/result.h"
#include "exec/communicators/communicator.h"

namespace foreshard::exec {

/// The plan's communicators of more than one rank, in order: equal on all ranks but for the members, so that ranks that
/// connect them one after another agree. In a group of one nobody is met.
std::vector<CommunicatorId> communicators_to_connect(const Plan& plan);

/// "world of ranks 0,1": what the ranks of a communicator call it when they connect.
std::string meeting_name(const PlanCommunicator& communicator);

/// One rank's communicators, by the plan's ids.
class Communicators {
 public:
  void set(CommunicatorId id, std::shared_ptr<Communicator> communicator);
  /// Empty if there is none.
  std::shared_ptr<Communicator> find(CommunicatorId id) const;

 private:
  std::vector<std::shared_ptr<Communicator>> by_id_;
};

/// Ranks over which a unit lies: FSDP's, or of experts those that hold the same ones, which may be this rank alone.
std::vector<std::int32_t> ranks_of_unit(const Model& model, const Plan& plan, const PlanUnit& unit);

/// The first group of the plan that has no communicator, or one in which this rank stands elsewhere.
std::optional<Error> missing_communicator(const Plan& plan, const Communicators& communicators);

}  // namespace foreshard::exec
