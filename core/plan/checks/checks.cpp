#include "core/plan/checks/checks.h"

#include <array>
#include <utility>

#include "core/plan/checks/check_parts.h"
#include "core/plan/checks/check_planned.h"

namespace foreshard {
namespace {

struct Check {
  const char* name;
  detail::Verdict (*decide)(const detail::IndexedPlan&);  // null: not from a plan, or by check_order
  const char* where;                                      // who decides it then
  const char* text;
  detail::Verdict detail::OrderVerdicts::*ordered = nullptr;
};

using namespace detail;  // NOLINT(google-build-using-namespace): the parts

constexpr std::array<Check, 16> kChecks{{
    {"V1", nullptr, "plan", "", &OrderVerdicts::gathered},
    {"V2", check_buffers_balance, "plan", ""},
    {"V3", check_collective_counts, "plan", ""},
    {"V4", nullptr, "run", "the sequence of collectives is compared between the ranks' plans and recordings"},
    {"V5", nullptr, "plan", "", &OrderVerdicts::reduced},
    {"V6", check_root_waits, "plan", ""},
    {"V7", check_limiter, "plan", ""},
    {"V8", check_divide_factors, "plan", ""},
    {"V9", check_backward_order, "plan", ""},
    {"V10", nullptr, "run", "results under different policies are compared by training"},
    {"V11", check_fsdp2_buffers, "plan", ""},
    {"V12", nullptr, "sim", "the allocator replica hands out the blocks"},
    {"V13", nullptr, "run", "the states of handles are the runtime's"},
    {"V14", check_ledger, "plan", ""},
    {"V15", check_forward_prefetch, "plan", ""},
    {"V16", check_communicators, "plan", ""},
}};
// Of schedules that were searched for, not written by PyTorch's rule.
constexpr std::array<Check, 2> kPlannedChecks{{
    {"V17", check_memory_at_instructions, "plan", ""},
    {"V18", check_no_deadlock, "plan", ""},
}};

PlanCheck decided(const Check& check, const IndexedPlan& plan, OrderVerdicts& order) {
  PlanCheck result;
  result.name = check.name;
  result.where = check.where;
  if (check.decide == nullptr && check.ordered == nullptr) {
    result.text = check.text;
    return result;
  }
  Verdict verdict = check.decide != nullptr ? check.decide(plan) : std::move(order.*check.ordered);
  if (verdict.finding.failed()) {
    result.status = CheckStatus::Fail;
    result.text = verdict.finding.text();
  } else if (!verdict.undecided.empty()) {
    result.text = std::move(verdict.undecided);
  } else {
    result.status = CheckStatus::Pass;
    result.text = std::move(verdict.note);
  }
  return result;
}

}  // namespace

std::vector<PlanCheck> run_checks(const Plan& plan) {
  std::vector<PlanCheck> checks;
  const IndexedPlan indexed(plan);
  OrderVerdicts order = check_order(plan);
  for (const Check& check : kChecks) checks.push_back(decided(check, indexed, order));
  if (plan.runtime != Runtime::Planned) return checks;
  for (const Check& check : kPlannedChecks) checks.push_back(decided(check, indexed, order));
  return checks;
}

}  // namespace foreshard
