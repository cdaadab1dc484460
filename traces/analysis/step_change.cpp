#include "traces/analysis/step_change.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/plan.h"

namespace foreshard {
namespace {

/// "layers.12.mlp" -> "layers.*.mlp".
std::string folded_unit(const std::string& unit) {
  std::string folded;
  for (const char c : unit) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit)
      folded += c;
    else if (folded.empty() || folded.back() != '*')
      folded += '*';
  }
  return folded.empty() ? "root" : folded;
}

bool knows_units(const AccountedStep& step) {
  return std::any_of(step.account.stretches.begin(), step.account.stretches.end(), [&](const UseStretch& s) {
    return s.use == TimeUse::Compute && step.timeline.spans[s.span.index()].unit >= 0;
  });
}

std::string label_of(const AccountedStep& step, const UseStretch& stretch, bool units) {
  if (is_idle(stretch.use)) return fmt::format("idle: {}", time_use_name(stretch.use));
  const Span& span = step.timeline.spans[stretch.span.index()];
  if (is_exposed_comm(stretch.use))
    return fmt::format("{} alone: {}", span_kind_name(span.kind), time_use_name(stretch.use));
  if (stretch.use == TimeUse::Copies) return "copies alone";
  const auto phase = static_cast<Phase>(span.phase);
  const std::string where = units && span.unit >= 0 && static_cast<std::size_t>(span.unit) < step.timeline.units.size()
                                ? folded_unit(step.timeline.units[static_cast<std::size_t>(span.unit)])
                                : std::string();
  return fmt::format("computing{}{}{}{}", where.empty() && phase == Phase::None ? "" : ":", where.empty() ? "" : " ",
                     where, phase == Phase::None ? "" : fmt::format(" {}", phase_name(phase)));
}

}  // namespace

std::vector<StepChange> what_changed(const AccountedStep& a, const AccountedStep& b) {
  const bool units = knows_units(a) && knows_units(b);
  std::map<std::string, StepChange> rows;
  for (const UseStretch& stretch : a.account.stretches)
    rows[label_of(a, stretch, units)].a += static_cast<double>(stretch.time.end - stretch.time.begin);
  for (const UseStretch& stretch : b.account.stretches)
    rows[label_of(b, stretch, units)].b += static_cast<double>(stretch.time.end - stretch.time.begin);
  std::vector<StepChange> changes;
  for (auto& [what, row] : rows) {
    row.what = what;
    changes.push_back(row);
  }
  std::stable_sort(changes.begin(), changes.end(), [](const StepChange& x, const StepChange& y) {
    return std::abs(x.difference()) > std::abs(y.difference());
  });
  return changes;
}

std::optional<StepAccount> account_of_iteration(const StepAccountant& accountant, std::int32_t iteration) {
  for (std::size_t step = 0; step < accountant.steps(); ++step) {
    StepAccount account = accountant.account(step);
    if (account.iteration == iteration) return account;
  }
  return std::nullopt;
}

}  // namespace foreshard
