// What changed between two steps: each step's time by what it went to (step_account.h), side by side. The differences
// add up to the difference of the steps. Pure; times in nanoseconds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/timeline.h"
#include "traces/analysis/step_account.h"

namespace foreshard {

struct StepChange {
  std::string what;  // "computing: layers.* backward", "all_gather alone: late_issue", "idle: data"
  double a = 0, b = 0;
  double difference() const { return a - b; }
};

/// One step of a rank of one timeline.
struct AccountedStep {
  const Timeline& timeline;
  const StepAccount& account;
};

/// Largest difference first. Layers of one kind are one row (their numbers become *); units count where both know them.
std::vector<StepChange> what_changed(const AccountedStep& a, const AccountedStep& b);

/// The account of the iteration with that number; nothing if no work of it is on a device.
std::optional<StepAccount> account_of_iteration(const StepAccountant& accountant, std::int32_t iteration);

}  // namespace foreshard
