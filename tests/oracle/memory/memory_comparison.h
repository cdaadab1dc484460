// What a memory row states against what is predicted: every quantity of every recorded step and phase, out of memory,
// counts of the allocator. Shared by the kinds whose rows hold `result.steps`.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/lowering/lowering.h"
#include "core/plan.h"
#include "core/units.h"
#include "sim/play/prediction.h"
#include "tests/oracle/memory/gpu_memory_row.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {

/// Relative errors of one quantity over all rows.
struct QuantityErrors {
  double sum = 0, worst = 0;
  std::size_t count = 0, exact = 0;
  std::string worst_id;
  void add(double relative, const std::string& id);
};
using QuantityTable = std::map<std::string, QuantityErrors>;
std::vector<std::string> summary_of(const QuantityTable& table);
/// The first quantity of whole steps whose mean error is too large, in words; empty if none is.
std::string means_exceed(const QuantityTable& table, const struct MemoryBounds& bounds);

/// How far one number may be off; relative. The design asks for the errors, not for a bound; each is a little above the
/// worst of the recordings, which stands beside it, and says what cannot be known from the plan. Means over all rows
/// are held to a fifth of it (means_exceed). Where nothing hangs on when blocks return (FSDP2, a clock that does not
/// run) active, requested and reserved bytes are held to `bytes`, but for one segment.
struct MemoryBounds {
  double bytes = 0.005;     // allocated (0.3 %): scratch of kernels whose sizes libraries choose
  double reserved = 0.035;  // reserved bytes, counts of segments and driver calls (3.0 %): which block a request meets
                            // hangs on when FSDP1's blocks return
  double waiting = 0.12;    // active and requested: blocks that wait, as a share of the step's peak (10.5 %)
  double split_of_reserved = 0.08;  // inactive splits, as a share of the reserved peak (7.6 %): rests of those blocks
  double allocations = 0.05;        // how many there were (4.3 %): small ones that operators make for themselves
  // Virtual time of a step counts calls of the host, of which a plan has the training's alone. In the first step
  // libraries make handles and workspaces, modules are loaded and streams made (20 %; in steady steps 9 %).
  double time = 0.25;
  std::int64_t segments = 1;  // besides `reserved`
};

/// FSDP1's blocks return when streams have passed them, which the clock says and the host's waits.
bool hangs_on_no_clock(const MemoryRow& row);

class MemoryComparison {
 public:
  MemoryComparison(std::string id, QuantityTable& table, const MemoryBounds& bounds, bool timeless);

  /// Everything that `result` states in `after_init` and `steps`.
  void compare(const Json& result, const Prediction& prediction);
  /// As many steps as the configuration asks for, or an error in the last.
  void all_steps(const Json& row);

  /// The row states nothing else.
  void only(const Json& object, const std::vector<std::string>& keys);
  void exact(const std::string& place, const Json& expected, const Json& got);
  void within(const std::string& quantity, const std::string& place, double expected, double got, double allowed);
  void fail(const std::string& place, const std::string& expected, const std::string& got);
  RowResult finish();

 private:
  void bytes(const std::string& name, const std::string& place, const Json& expected, Bytes got,
             const AllocatorStats& whole);
  double allowed(std::string_view name, double expected, const AllocatorStats& whole) const;
  void pair(const std::string& phase, const std::string& place, const Json& expected, const AllocatorStats& got,
            const AllocatorStats& whole);
  void step(const Json& expected, const IterationResult* got);
  void phases(const Json& expected, const IterationResult& got, const std::string& place);
  void unfinished(const Json& expected, const IterationResult& got);
  void counts(const Json& expected, const IterationResult& got, const std::string& place);

  std::string id_;
  QuantityTable& table_;
  MemoryBounds bounds_;
  bool timeless_;  // when a block returns does not hang on the clock
  RowResult result_;
  std::string lines_;
  double worst_ = 0;
};

/// A plan of the row's job, its lowered program and what the simulator says of both. Throws std::runtime_error with the
/// product's own words where it refuses.
struct PredictedRow {
  Plan plan;
  LoweredProgram lowered;
  Prediction prediction;
};
PredictedRow predict_row(const MemoryRow& row);

}  // namespace foreshard::oracle
