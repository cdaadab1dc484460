// V16: whom collectives meet.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/plan/checks/check_parts.h"

namespace foreshard::detail {
namespace {

void check_ranks(const Plan& plan, const PlanCommunicator& one, Finding& finding) {
  const std::set<std::int32_t> distinct(one.ranks.begin(), one.ranks.end());
  if (distinct.size() != one.ranks.size()) finding.wrong(fmt::format("communicator {} holds a rank twice", one.name));
  if (distinct.count(plan.rank) == 0) {
    finding.wrong(fmt::format("communicator {} is without this plan's rank {}", one.name, plan.rank));
  }
  if (!distinct.empty() && (*distinct.begin() < 0 || *distinct.rbegin() >= plan.world_size)) {
    finding.wrong(fmt::format("communicator {} holds ranks beyond a world of {}", one.name, plan.world_size));
  }
}

}  // namespace

/// V16: every collective names a communicator of the plan, which holds this rank, and its tensor is cut evenly there.
Verdict check_communicators(const IndexedPlan& indexed) {
  const Plan& plan = indexed.plan;
  Verdict verdict;
  std::set<std::string> names;
  for (const PlanCommunicator& one : plan.communicators) {
    if (!names.insert(one.name).second) verdict.finding.wrong("two communicators are called " + one.name);
    check_ranks(plan, one, verdict.finding);
  }
  std::int64_t collectives = 0;
  for (const IndexedPlan::Iteration& iteration : indexed.iterations) {
    iteration.for_each(IndexedPlan::Kinds::Collectives, [&](std::size_t at, const Instruction& i) {
      const std::int64_t own = iteration.first_id + static_cast<std::int64_t>(at);
      if (!is_collective(i.kind))
        return verdict.finding.wrong(show(plan, own, i) + " is no collective and names whom it meets");
      ++collectives;
      if (!i.communicator.valid() || i.communicator.index() >= plan.communicators.size())
        return verdict.finding.wrong(show(plan, own, i) + " names no communicator");
      const bool cut = i.kind == InstructionKind::AllGather || i.kind == InstructionKind::ReduceScatter;
      const std::int32_t ranks = plan.group_size(i);
      if (cut && ranks > 0 && i.numel % ranks != 0) {
        verdict.finding.wrong(fmt::format("{} cuts {} elements over {} ranks", show(plan, own, i), i.numel, ranks));
      }
    });
  }
  verdict.note = fmt::format("{} collectives over {} communicators", collectives, plan.communicators.size());
  return verdict;
}

}  // namespace foreshard::detail
