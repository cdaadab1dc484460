// The parts of core/plan/checks/checks.cpp: each function decides one invariant and says what it found.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "core/plan.h"
#include "core/plan/form/plan_writer.h"

namespace foreshard::detail {

/// What one check found. Findings beyond a few are counted, not told.
class Finding {
 public:
  void wrong(std::string text);
  bool failed() const { return count_ > 0; }
  /// The first findings, then how many more there are.
  std::string text() const;

 private:
  std::vector<std::string> texts_;
  std::int64_t count_ = 0;
};

/// Our plans number their events from 0, so that what is known of each lies side by side; one that was read may hold
/// any number.
inline constexpr std::int32_t kNearEvents = 1 << 16;

/// A plan, and where its instructions of some kinds stand: a plan is larger than a processor's nearest cache, and most
/// checks look at few of its instructions. Borrows the plan.
struct IndexedPlan {
  enum class Kinds : std::uint8_t {
    Memory,  // is_alloc, is_free
    Events,  // recorded, and what the limiter does with them
    StreamWaits,
    Collectives,  // and whatever else names a communicator
    Runs,         // of segments
  };
  static constexpr std::size_t kKinds = 5;

  struct Iteration {
    const PlanIteration& of;
    std::int64_t first_id;  // of its instructions in the plan
    std::array<std::vector<std::int32_t>, kKinds> places;

    /// f(place in the iteration, instruction), in order.
    template <class F>
    void for_each(Kinds kinds, const F& f) const {
      for (const std::int32_t at : places[static_cast<std::size_t>(kinds)])
        f(static_cast<std::size_t>(at), of.instructions[static_cast<std::size_t>(at)]);
    }
  };

  explicit IndexedPlan(const Plan& indexed);

  const Plan& plan;
  std::vector<Iteration> iterations;
};

/// Who has waited for whom: per stream, the last instruction of every stream that its next work comes after. The host
/// is a stream too; instructions are named by their id (position over all iterations, plus one; 0 = nothing).
class StreamClocks {
 public:
  using Clock = std::array<std::int64_t, kStreamCount>;

  void apply(const Instruction& instruction, std::int64_t id) {
    if (!waits_for_nobody(instruction.kind) || instruction.blocking) apply_work(instruction, id);
  }
  /// True if work issued to `stream` now starts after instruction `id` of `other` has ended.
  bool covers(Stream stream, Stream other, std::int64_t id) const { return clock(stream)[slot(other)] >= id; }
  bool recorded(EventId event) const { return find(event) != nullptr; }

 private:
  /// Most of a plan's instructions.
  static bool waits_for_nobody(InstructionKind kind) {
    return is_memory(kind) || kind == InstructionKind::Mark || kind == InstructionKind::LimiterCheck;
  }
  void apply_work(const Instruction& instruction, std::int64_t id);
  static std::size_t slot(Stream stream) { return static_cast<std::size_t>(stream); }
  const Clock& clock(Stream stream) const { return clocks_[slot(stream)]; }
  static void merge(Clock& into, const Clock& from);
  void follow_host(std::size_t stream);
  void record(EventId event, const Clock& clock);
  const Clock* find(EventId event) const;

  std::array<Clock, kStreamCount> clocks_{};
  std::vector<Clock> events_;                            // near ones
  std::vector<bool> has_event_;                          // ... and were recorded
  std::map<EventId, Clock> far_;                         // the others
  std::uint64_t host_changes_ = 1;                       // of the host's clock
  std::array<std::uint64_t, kStreamCount> host_seen_{};  // by stream: how many of them it has taken over
};

/// Whether an event is recorded here.
bool records_event(const Instruction& instruction);
/// An iteration whose actions are an ordinary training loop's: every forward has its backward, the last one
/// synchronises.
bool is_plain_training(const PlanIteration& iteration);
/// Gradients are held in all but the last of its micro-batches.
bool holds_gradients(const PlanIteration& iteration);
/// A root forward's wait of the stream for compute.
bool is_root_wait(const Instruction& instruction, Stream stream);
/// The model's root is no unit, units inside it are roots (fsdp.wrap.root = false).
bool has_roots_inside(const Plan& plan);
/// By unit: its root, whose context it shares; units are inside others by their names.
std::vector<UnitId> roots_by_name(const Plan& plan);
/// Sharded over more than one rank, and with parameters.
bool is_sharded(const PlanUnit& unit);
/// `is_root`: of FSDP's (roots_by_name).
bool keeps_after_forward(const Plan& plan, UnitId unit, bool is_root);
std::string show(const Plan& plan, std::int64_t id, const Instruction& instruction);

/// One buffer: its name, and the instance where several of one name are alive at once.
using BufferKey = std::tuple<BufferWhat, UnitId, ParamId, std::int32_t>;
BufferKey key_of(const Instruction& instruction);
bool is_alloc(const Instruction& instruction);
bool is_free(const Instruction& instruction);

using Note = std::string;  // what a passing check looked at

struct Verdict {
  Finding finding;
  Note note;              // text of a pass
  std::string undecided;  // not empty: a plan does not decide it, and why
};

/// V1 and V5, which look at the same waits.
struct OrderVerdicts {
  Verdict gathered, reduced;
};
OrderVerdicts check_order(const Plan& plan);

Verdict check_buffers_balance(const IndexedPlan& indexed);    // V2
Verdict check_collective_counts(const IndexedPlan& indexed);  // V3
Verdict check_root_waits(const IndexedPlan& indexed);         // V6
Verdict check_limiter(const IndexedPlan& indexed);            // V7
Verdict check_divide_factors(const IndexedPlan& indexed);     // V8
Verdict check_backward_order(const IndexedPlan& indexed);     // V9
Verdict check_fsdp2_buffers(const IndexedPlan& indexed);      // V11
Verdict check_ledger(const IndexedPlan& indexed);             // V14
Verdict check_forward_prefetch(const IndexedPlan& indexed);   // V15
Verdict check_communicators(const IndexedPlan& indexed);      // V16

}  // namespace foreshard::detail
