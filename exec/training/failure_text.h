// A Failure in words: which rank and step, which instruction of which unit, and the cause.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/plan.h"
#include "exec/backend/backend.h"

namespace foreshard::exec {

/// What is known of a run that failed: the sentence, and its parts for those who read JSON.
struct FailureAccount {
  std::string text;  // "rank 0, step 12: reduce_scatter of unit model.layers.1 (instruction 57, stream S) failed: ..."
  int rank = -1;     // that is lost or failed, -1: not known; else `seen_by`
  int seen_by = -1;  // the rank that speaks
  std::int64_t step = 0;          // counted from 1; 0: before the first
  std::int64_t instruction = -1;  // that failed, or behind which the ranks were; -1: before the first
  std::string unit;               // its unit, "root" for the root; empty: none
  std::string cause;              // what was thrown, and the first word of the run
  bool operator==(const FailureAccount&) const = default;
};

/// The plan's instruction that the failure names, as FailureAccount has it.
FailureAccount account_of(const Plan& plan, std::int64_t step, const Failure& failure);

/// Between the instructions of two steps: `doing`, as in "exchange of losses", came behind the step's last one, or
/// before its first (`begun` false).
FailureAccount account_between(const Plan& plan, std::int64_t step, bool begun, const std::string& doing,
                               const std::string& cause);

/// "lost rank 3" or a first word "rank 3 was killed": the rank that a cause blames.
std::optional<int> blamed_rank(const std::string& cause);

std::string account_json(const FailureAccount& account);
/// nullopt for anything that account_json has not written.
std::optional<FailureAccount> account_from_json(const std::string& text);

/// "reduce_scatter of unit model.layers.1 (instruction 57, stream S)"; nothing known of the instruction: "stream S".
std::string instruction_text(const Plan& plan, const Failure& failure);

/// "rank 0, step 12: reduce_scatter of unit ... failed: ..."
std::string failure_text(const Plan& plan, std::int64_t step, const Failure& failure);

}  // namespace foreshard::exec
