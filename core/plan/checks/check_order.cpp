// V1, V5, V6, V9: who waits for whom.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/plan/checks/check_parts.h"
#include "core/plan/form/plan_writer.h"

namespace foreshard::detail {
namespace {

std::optional<UnitId> unit_of_run(const Plan& plan, const Instruction& i) {
  if (!is_segment_run(i.kind) || !i.segment.valid()) return std::nullopt;
  const Segment& segment = plan.segments[i.segment.index()];
  if (!segment.unit.valid() || segment.params.empty()) return std::nullopt;
  return segment.unit;
}

bool is_training_collective(const Instruction& i) {
  return i.phase != Phase::Summon && i.phase != Phase::Init && i.phase != Phase::Save && i.phase != Phase::Load &&
         i.phase != Phase::Clip;
}

/// V1: on D, after a wait that covers AG(u), and before free(u).
class ComputeIsGathered {
 public:
  explicit ComputeIsGathered(const Plan& plan) : plan_(plan), gathers_(plan.units.size()) {}

  /// Instructions in order, each before the clocks have seen it.
  void see(const PlanIteration& iteration, const Instruction& i, std::int64_t id, const StreamClocks& clocks) {
    note_memory(i);
    if (i.kind == InstructionKind::AllGather && i.unit.valid()) {
      gathers_[i.unit.index()].stream = i.stream;
      gathers_[i.unit.index()].id = id + 1;
      return;
    }
    if (!is_segment_run(i.kind)) return;
    const std::optional<UnitId> unit = unit_of_run(plan_, i);
    if (!unit || !is_sharded(plan_.units[unit->index()])) return;
    // A backward may not need the parameters (gradients of a first layer, F2-24): only plain training decides.
    if (i.kind == InstructionKind::Backward && !trains_plainly(iteration)) return;
    ++looked_;
    const Gather& gather = gathers_[unit->index()];
    if (gather.id == 0)
      return verdict_.finding.wrong(show(plan_, id, i) + " runs, but nothing gathered the unit before");
    if (!clocks.covers(i.stream, gather.stream, gather.id)) {
      return verdict_.finding.wrong(
          fmt::format("{} does not wait for #{}, the unit's all-gather", show(plan_, id, i), gather.id - 1));
    }
    if (gather.known && gather.bytes == 0) {
      verdict_.finding.wrong(show(plan_, id, i) + " runs after the unit's full parameters were freed");
    }
  }

  Verdict verdict() && {
    verdict_.note = fmt::format("{} runs of sharded units lie behind their all-gather and before their free", looked_);
    return std::move(verdict_);
  }

 private:
  struct Gather {
    Stream stream = Stream::Host;
    std::int64_t id = 0;  // of the clocks; 0 = none yet
    std::int64_t bytes = 0;
    bool known = false;  // the plan shows allocations of this unit's full parameters
  };

  void note_memory(const Instruction& i) {
    if (i.buffer.what != BufferWhat::Full || !i.buffer.unit.valid()) return;
    Gather& gather = gathers_[i.buffer.unit.index()];
    if (i.kind == InstructionKind::Alloc || (i.kind == InstructionKind::Resize && i.bytes > 0)) {
      gather.known = true;
      ++gather.bytes;
    } else if (i.kind == InstructionKind::Free || i.kind == InstructionKind::Resize) {
      gather.bytes = std::max<std::int64_t>(0, gather.bytes - 1);
    }
  }
  bool trains_plainly(const PlanIteration& iteration) {
    if (std::exchange(asked_, &iteration) != &iteration) plain_ = is_plain_training(iteration);
    return plain_;
  }

  const Plan& plan_;
  std::vector<Gather> gathers_;  // by unit
  const PlanIteration* asked_ = nullptr;
  bool plain_ = false;
  std::int64_t looked_ = 0;
  Verdict verdict_;
};

/// V5: RS(u) after all of u's backward compute; the optimizer after the last reduction and copy to the host.
class ReductionsInOrder {
 public:
  explicit ReductionsInOrder(const Plan& plan) : plan_(plan), last_run_(plan.units.size()) {}

  /// As ComputeIsGathered::see.
  void see(const Instruction& i, std::int64_t id, const StreamClocks& clocks) {
    if (i.kind == InstructionKind::Backward) {
      if (const std::optional<UnitId> unit = unit_of_run(plan_, i)) last_run_[unit->index()] = {i.stream, id + 1};
    }
    const bool reduces = i.kind == InstructionKind::ReduceScatter || i.kind == InstructionKind::AllReduce;
    if (reduces && is_training_collective(i)) {
      ++reductions_;
      if (i.unit.valid()) {
        const Reduction& run = last_run_[i.unit.index()];
        if (run.id != 0 && !clocks.covers(i.stream, run.stream, run.id)) {
          verdict_.finding.wrong(
              fmt::format("{} does not wait for #{}, the unit's backward", show(plan_, id, i), run.id - 1));
        }
      }
      open_.push_back({i.stream, id + 1});
    }
    if (i.kind == InstructionKind::D2h && is_training_collective(i)) open_.push_back({i.stream, id + 1});
    if (i.kind == InstructionKind::OptimizerStep && i.phase == Phase::Optimizer) step(i, id, clocks);
  }

  Verdict verdict() && {
    verdict_.note =
        fmt::format("{} reductions follow their backward, {} optimizer steps follow them", reductions_, steps_);
    return std::move(verdict_);
  }

 private:
  struct Reduction {
    Stream stream = Stream::Host;
    std::int64_t id = 0;
  };

  void step(const Instruction& i, std::int64_t id, const StreamClocks& clocks) {
    ++steps_;
    const Stream waiter = i.on_host ? Stream::Host : i.stream;
    for (const Reduction& reduction : open_) {
      if (!clocks.covers(waiter, reduction.stream, reduction.id)) {
        verdict_.finding.wrong(fmt::format("{} does not wait for #{} on {}", show(plan_, id, i), reduction.id - 1,
                                           stream_name(reduction.stream)));
      }
    }
    open_.clear();
  }

  const Plan& plan_;
  std::vector<Reduction> last_run_;  // by unit
  std::vector<Reduction> open_;
  std::int64_t reductions_ = 0, steps_ = 0;
  Verdict verdict_;
};

}  // namespace

OrderVerdicts check_order(const Plan& plan) {
  ComputeIsGathered gathered(plan);
  ReductionsInOrder reduced(plan);
  StreamClocks clocks;
  std::int64_t id = 0;
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& i : iteration.instructions) {
      gathered.see(iteration, i, id, clocks);
      reduced.see(i, id, clocks);
      clocks.apply(i, ++id);  // clocks count from 1
    }
  }
  return {std::move(gathered).verdict(), std::move(reduced).verdict()};
}

namespace {

struct RootCalls {
  std::int64_t calls = 0, again = 0;  // again: of them, those for what is recomputed
  std::array<std::int64_t, 2> waits{};
  bool inside = true;  // of another unit: a root only where it is recomputed by itself
  bool runs = false;   // a forward of the root's or of a unit in it

  bool right() const {
    if (waits[0] != waits[1]) return false;
    if (inside) return waits[0] <= again;
    if (calls == 0 && !runs) return waits[0] == 0;
    return waits[0] >= std::max<std::int64_t>(1, calls - again) && waits[0] <= calls;
  }
};

/// By unit.
std::map<std::int32_t, RootCalls> root_calls(const Plan& plan, const PlanIteration& iteration,
                                             const std::vector<UnitId>& root_of, const std::array<Stream, 2>& pair) {
  std::map<std::int32_t, RootCalls> of;
  for (std::size_t u = 1; u < root_of.size(); ++u)
    if (root_of[u] == UnitId(u)) of[root_of[u].value].inside = false;
  std::vector<RootCalls*> entered;  // nothing ran since
  for (const Instruction& i : iteration.instructions) {
    if (is_segment_run(i.kind)) {
      if (i.kind == InstructionKind::Recompute)
        for (RootCalls* const call : entered) ++call->again;
      entered.clear();
      const std::optional<UnitId> unit = unit_of_run(plan, i);
      if (i.kind == InstructionKind::Forward && unit && unit->value > 0) of[root_of[unit->index()].value].runs = true;
    }
    for (std::size_t k = 0; k < pair.size(); ++k)
      if (is_root_wait(i, pair[k])) ++of[i.unit.value].waits[k];
    if (i.kind != InstructionKind::Mark || i.phase != Phase::PreForward) continue;
    const std::string_view name = plan.name_of(i.name);
    if (!i.unit.valid() || (name != "enter" && name != "begin pre_forward")) continue;
    RootCalls& call = of[i.unit.value];
    ++call.calls;
    entered.push_back(&call);
  }
  return of;
}

/// V6 of roots within a module that is no unit: each waits once for every call of it; where something runs again, a
/// call for that may find its root at work.
Verdict check_inner_root_waits(const IndexedPlan& indexed, const std::array<Stream, 2>& pair) {
  const Plan& plan = indexed.plan;
  const std::vector<UnitId> root_of = roots_by_name(plan);
  Verdict verdict;
  std::int64_t calls = 0, looked = 0;
  for (const IndexedPlan::Iteration& one : indexed.iterations) {
    if (!is_plain_training(one.of) || plan.failure) continue;
    ++looked;
    for (const auto& [unit, root] : root_calls(plan, one.of, root_of, pair)) {
      if (!root.inside) calls += root.calls;
      if (root.right()) continue;
      verdict.finding.wrong(fmt::format("iteration {}: of {} {} waits {} and {} {} times for D in {} calls",
                                        one.of.index, plan.units[static_cast<std::size_t>(unit)].name,
                                        stream_name(pair[0]), root.waits[0], stream_name(pair[1]), root.waits[1],
                                        root.calls));
    }
  }
  verdict.note = fmt::format("{} and {} wait for D once in each of {} calls of roots", stream_name(pair[0]),
                             stream_name(pair[1]), calls);
  if (looked == 0) verdict.undecided = "no ordinary training iteration";
  return verdict;
}

}  // namespace

/// V6: U and Q (fsdp2: C and A, F2-6) wait for D exactly once per root forward, autograd's waits aside.
Verdict check_root_waits(const IndexedPlan& indexed) {
  const Plan& plan = indexed.plan;
  Verdict verdict;
  if (plan.runtime == Runtime::None) {
    verdict.undecided = "no gathers without FSDP";
    return verdict;
  }
  const std::array<Stream, 2> pair =
      plan.runtime == Runtime::Fsdp1 ? std::array{Stream::U, Stream::Q} : std::array{Stream::C, Stream::A};
  if (has_roots_inside(plan)) return check_inner_root_waits(indexed, pair);
  std::int64_t forwards = 0, looked = 0;
  for (const IndexedPlan::Iteration& one : indexed.iterations) {
    const PlanIteration& iteration = one.of;
    if (!is_plain_training(iteration) || plan.failure) continue;
    ++looked;
    const auto expected = std::count(iteration.actions.begin(), iteration.actions.end(), "fwd");
    forwards += expected;
    for (const Stream stream : pair) {
      std::int64_t waits = 0;
      one.for_each(IndexedPlan::Kinds::StreamWaits, [&](std::size_t, const Instruction& i) {
        if (is_root_wait(i, stream) && i.unit.value <= 0) ++waits;  // a unit that is recomputed is a root of its own
      });
      if (waits != expected) {
        verdict.finding.wrong(fmt::format("iteration {}: {} waits {} times for D in {} root forwards", iteration.index,
                                          stream_name(stream), waits, expected));
      }
    }
  }
  verdict.note = fmt::format("{} and {} wait for D once in each of {} root forwards", stream_name(pair[0]),
                             stream_name(pair[1]), forwards);
  if (looked == 0) verdict.undecided = "no ordinary training iteration";
  return verdict;
}

/// V9: in a chain the first backward runs of the units stand in the reverse of the post-forward order.
Verdict check_backward_order(const IndexedPlan& indexed) {
  const Plan& plan = indexed.plan;
  Verdict verdict;
  std::int64_t looked = 0, reversed = 0;
  for (const IndexedPlan::Iteration& one : indexed.iterations) {
    const PlanIteration& iteration = one.of;
    if (!is_plain_training(iteration) || iteration.micro_batches != 1 || plan.failure) continue;
    std::vector<UnitId> backward;
    one.for_each(IndexedPlan::Kinds::Runs, [&](std::size_t, const Instruction& i) {
      if (i.kind != InstructionKind::Backward) return;
      const std::optional<UnitId> unit = unit_of_run(plan, i);
      if (unit && std::find(backward.begin(), backward.end(), *unit) == backward.end()) backward.push_back(*unit);
    });
    std::vector<UnitId> forward = iteration.post_order;
    if (forward.empty()) continue;  // the runtime clears it, or the plan leaves it out
    ++looked;
    std::reverse(forward.begin(), forward.end());
    for (const UnitId unit : backward) {
      if (std::find(forward.begin(), forward.end(), unit) == forward.end()) {
        verdict.finding.wrong(fmt::format("iteration {}: {} runs backward but is not in the post-forward order",
                                          iteration.index, plan.units[unit.index()].name));
      }
    }
    if (forward == backward) ++reversed;
  }
  verdict.note = fmt::format("reversed in {} iterations", reversed);
  if (reversed < looked || looked == 0) {
    verdict.undecided = "no chain: a unit runs twice or not at all, is nested, or skips ahead";
  }
  return verdict;
}

}  // namespace foreshard::detail
