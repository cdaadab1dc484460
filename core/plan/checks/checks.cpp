#include "core/plan/checks/checks.h"

#include <array>

#include "core/plan/checks/check_parts.h"

namespace foreshard {
namespace {

struct Check {
  const char* name;
  detail::Verdict (*decide)(const Plan&);  // null: not from a plan
  const char* where;                       // who decides it then
  const char* text;
};

using namespace detail;  // NOLINT(google-build-using-namespace): the parts

constexpr std::array<Check, 16> kChecks{{
    {"V1", check_compute_is_gathered, "plan", ""},
    {"V2", check_buffers_balance, "plan", ""},
    {"V3", check_collective_counts, "plan", ""},
    {"V4", nullptr, "run", "the sequence of collectives is compared between the ranks' plans and recordings"},
    {"V5", check_reductions_order, "plan", ""},
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

}  // namespace

std::vector<PlanCheck> run_checks(const Plan& plan) {
  std::vector<PlanCheck> checks;
  for (const Check& check : kChecks) {
    PlanCheck& result = checks.emplace_back();
    result.name = check.name;
    result.where = check.where;
    if (check.decide == nullptr) {
      result.text = check.text;
      continue;
    }
    Verdict verdict = check.decide(plan);
    if (verdict.finding.failed()) {
      result.status = CheckStatus::Fail;
      result.text = verdict.finding.text();
    } else if (!verdict.undecided.empty()) {
      result.text = std::move(verdict.undecided);
    } else {
      result.status = CheckStatus::Pass;
      result.text = std::move(verdict.note);
    }
  }
  return checks;
}

}  // namespace foreshard
