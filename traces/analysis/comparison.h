// Two timelines of one plan laid side by side: where they part, by instruction, unit, cause and memory category.
//
// Usually A is a prediction and B a measurement; an error is (A - B) / B. Spans of one instruction on one stream are
// one thing here, however many kernels it was (a prediction may show kernels where a measurement shows segments). They
// join by the plan's instruction id; spans without ids by their operator (else the kernel's name), kind, unit and
// phase, collectives by their bytes too, and which one of these it is, on any stream; where only one side has ids (a
// prediction and a foreign recording) by kind, unit and phase, computing summed up. Compared is one iteration of each,
// on the ranks that both have or that were paired; times are nanoseconds, starts from the iteration's begin, amounts
// are means over the ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/timeline.h"
#include "traces/analysis/step_change.h"
#include "traces/analysis/step_spread.h"
#include "traces/timeline/exposed_comm.h"

namespace foreshard {

/// How an error is written: "+4.2 %", "-0.3 %"; what rounds to nothing is "+0.0 %".
std::string signed_percent(double share);

struct CompareOptions {
  std::optional<std::int32_t> iteration;  // of both; else the steady one of each (traces/timeline/iterations.h)
  std::optional<std::int32_t> rank;       // else all that both have
  // Of one side alone. A rank of one side without one of the other is compared with `rank`, else with the same number.
  std::optional<std::int32_t> rank_a, rank_b, iteration_a, iteration_b;
  bool force = false;  // compare what stems from different plans
};

/// The same number on both sides.
struct Pair {
  double a = 0, b = 0;
  double difference() const { return a - b; }
  /// (A - B) / B; 0 if both are nothing, 1 if only A is something.
  double error() const;
  bool operator==(const Pair&) const = default;
};

struct InstructionPair {
  std::int32_t rank = 0;
  std::string stream;
  InstructionId instruction;  // A's id in the plan; invalid where joined by order
  SpanKind kind = SpanKind::Other;
  std::string name, unit;
  std::int32_t phase = 0;
  Pair start, duration;  // from the iteration's begin; the sum of its spans
};

/// Busy time of the streams by unit and what was done for it; host spans apart.
struct UnitPair {
  std::string unit;
  Pair compute, comm, copies, host;
  Pair busy() const { return {compute.a + comm.a + copies.a, compute.b + comm.b + copies.b}; }
};

struct CausePair {
  std::string cause;
  SpanKind kind = SpanKind::AllGather;
  Pair time;
};

struct CategoryPair {
  std::string category;
  Pair peak;                      // bytes, inside the iteration
  bool in_a = true, in_b = true;  // recorded there: else its 0 means nothing
};

struct StreamPair {
  std::string stream;
  Pair busy;  // time that slices share, nested ones among them, counts once
};

struct Comparison {
  std::int32_t iteration_a = 0, iteration_b = 0;
  std::vector<std::int32_t> ranks, ranks_b;         // A's, and whom each was compared with
  std::int64_t joined = 0, only_a = 0, only_b = 0;  // instructions on a stream, the host's issue among them
  Pair step, compute, comm, exposed, peak_memory;   // ns and bytes; time that spans share counts once
  bool memory_in_a = true, memory_in_b = true;      // recorded there: else the peak's 0 means nothing
  std::optional<StepSpread> spread_a, spread_b;     // of recordings whose steps repeat
  /// What changed: where the step's time went. Steps here last from their first work to that of the next one (the last
  /// ones to their last work), and the differences add up to theirs. Empty where a side has no work on a device.
  Pair accounted;
  std::vector<StepChange> changes;
  std::vector<std::string> notes;      // next to nothing was joined, and why
  double exposed_comm_points() const;  // percentage points of the step, A - B
  // Each sorted by the size of the difference.
  std::vector<UnitPair> by_unit;
  std::vector<CausePair> by_cause;
  std::vector<CategoryPair> by_category;
  std::vector<StreamPair> by_stream;
  std::vector<InstructionPair> by_instruction;  // work on streams, by duration
  std::vector<InstructionPair> missing;         // in one of them only: the other side's numbers are 0
};

/// Errors: timelines of different plans (unless forced), no rank in both, an iteration that one of them does not have.
Result<Comparison> compare_timelines(const Timeline& a, const Timeline& b, const CompareOptions& options = {});

}  // namespace foreshard
