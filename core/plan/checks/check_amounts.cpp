// V3, V7, V8, V15: counts, the limiter's queue, divide factors, forward prefetch.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "core/plan/checks/check_parts.h"
#include "core/plan/form/plan_writer.h"
#include "core/runtime_layouts.h"

namespace foreshard::detail {
namespace {

/// The counts of 19.11 as rules: what one ordinary iteration must hold when every unit runs once forward and once
/// backward.
struct Expected {
  std::int64_t all_gather = 0, reduce_scatter = 0, all_reduce = 0;
};

/// S1, S2, F2-11, F2-12: gathers of one unit over the iteration's micro-batches.
std::int64_t gathers_of(const Plan& plan, UnitId id, bool is_root, std::int64_t micro_batches, bool holds) {
  if (!is_sharded(plan.units[id.index()])) return 0;
  if (!keeps_after_forward(plan, id, is_root)) return 2 * micro_batches;
  // Kept after forward; freed by post-backward unless it is of the SHARD_GRAD_OP family in no_sync. The fsdp1 root
  // keeps its own strategy there.
  const Strategy strategy = plan.units[id.index()].strategy;
  const bool kept =
      plan.runtime == Runtime::Fsdp1 && (strategy == Strategy::ShardGradOp || strategy == Strategy::HybridShardZero2);
  return holds && kept ? 1 : micro_batches;
}

bool runs_once(const Plan& plan, const IndexedPlan::Iteration& iteration) {
  bool recomputes = false;  // P9
  std::set<UnitId> backward;
  iteration.for_each(IndexedPlan::Kinds::Runs, [&](std::size_t, const Instruction& i) {
    recomputes = recomputes || i.kind == InstructionKind::Recompute;
    if (recomputes || i.kind != InstructionKind::Backward || !i.segment.valid()) return;
    backward.insert(plan.segments[i.segment.index()].unit);
  });
  const std::vector<UnitId>& post_order = iteration.of.post_order;
  const std::set<UnitId> forward(post_order.begin(), post_order.end());
  if (recomputes || forward.size() != post_order.size()) return false;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const PlanUnit& unit = plan.units[u];
    if (unit.params.empty()) continue;
    if (!unit.requires_grad || forward.count(UnitId(u)) == 0 || backward.count(UnitId(u)) == 0) return false;
  }
  return true;
}

/// `root_of`: roots_by_name.
Expected expected_counts(const Plan& plan, const std::vector<UnitId>& root_of, const PlanIteration& iteration,
                         std::int64_t micro_batches) {
  const bool holds = holds_gradients(iteration);
  const std::int64_t reductions = holds ? 1 : micro_batches;
  Expected expected;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const PlanUnit& unit = plan.units[u];
    if (unit.params.empty()) continue;
    expected.all_gather += gathers_of(plan, UnitId(u), root_of[u].index() == u, micro_batches, holds);
    const bool hybrid = unit.strategy == Strategy::HybridShard || unit.strategy == Strategy::HybridShardZero2;
    if (is_sharded(unit)) expected.reduce_scatter += reductions;
    if (has_fsdp2_layouts(plan.runtime) ? hybrid : hybrid || unit.strategy == Strategy::NoShard) {
      expected.all_reduce += reductions;
    }
  }
  return expected;
}

class EventSet {
 public:
  void insert(EventId event) {
    if (!is_near(event)) {
      far_.insert(event);
      return;
    }
    if (event.index() >= near_.size()) near_.resize(event.index() + 1, false);
    near_[event.index()] = true;
  }
  bool contains(EventId event) const {
    return is_near(event) ? event.index() < near_.size() && near_[event.index()] : far_.contains(event);
  }

 private:
  static bool is_near(EventId event) { return event.value >= 0 && event.value < kNearEvents; }

  std::vector<bool> near_;
  std::set<EventId> far_;
};

std::int64_t count_in_training(const IndexedPlan::Iteration& iteration, InstructionKind kind) {
  std::int64_t count = 0;
  iteration.for_each(IndexedPlan::Kinds::Collectives, [&](std::size_t, const Instruction& i) {
    // Scales of what is gathered in 8 bits, gradients summed over tensor ranks: no unit's own.
    const bool beside = i.stream == Stream::M;
    if (i.kind == kind && i.phase != Phase::Clip && i.phase != Phase::Init && !beside) ++count;
  });
  return count;
}

}  // namespace

/// V3: table 19.11, for iterations in which every unit runs once.
Verdict check_collective_counts(const IndexedPlan& indexed) {
  const Plan& plan = indexed.plan;
  Verdict verdict;
  std::int64_t looked = 0;
  const std::vector<UnitId> root_of = roots_by_name(plan);
  for (const IndexedPlan::Iteration& one : indexed.iterations) {
    const PlanIteration& iteration = one.of;
    const auto micro_batches = std::count(iteration.actions.begin(), iteration.actions.end(), "fwd");
    if (plan.runtime == Runtime::None || plan.failure || !is_plain_training(iteration)) continue;
    // Several micro-batches have several passes in one post-forward order; the last pass is what it holds.
    if (!runs_once(plan, one)) continue;
    // A schedule may keep what it has gathered over micro-batches.
    if (plan.runtime == Runtime::Planned && micro_batches > 1) continue;
    ++looked;
    const Expected expected = expected_counts(plan, root_of, iteration, micro_batches);
    const auto compare = [&](InstructionKind kind, std::int64_t wanted) {
      const std::int64_t got = count_in_training(one, kind);
      if (got != wanted) {
        verdict.finding.wrong(
            fmt::format("iteration {}: {} {}, expected {}", iteration.index, got, instruction_kind_name(kind), wanted));
      }
    };
    compare(InstructionKind::AllGather, expected.all_gather);
    compare(InstructionKind::ReduceScatter, expected.reduce_scatter);
    compare(InstructionKind::AllReduce, expected.all_reduce);
    verdict.note = fmt::format("{} all-gathers, {} reduce-scatters, {} all-reduces an iteration", expected.all_gather,
                               expected.reduce_scatter, expected.all_reduce);
  }
  if (looked == 0) verdict.undecided = "no ordinary training iteration in which every unit runs once and trains";
  return verdict;
}

/// V7: pops only at queue length 2 and more, oldest first; one check per unshard; NO_SHARD has no events in the queue.
Verdict check_limiter(const IndexedPlan& indexed) {
  const Plan& plan = indexed.plan;
  Verdict verdict;
  if (plan.runtime != Runtime::Fsdp1) {
    verdict.undecided = "the limiter is fsdp1's";
    return verdict;
  }
  const std::vector<UnitId> root_of = roots_by_name(plan);
  std::map<UnitId, std::deque<EventId>> queues;  // by root
  EventSet recorded;
  std::int64_t pops = 0, pushes = 0, checks = 0;
  for (const IndexedPlan::Iteration& one : indexed.iterations) {
    const PlanIteration& iteration = one.of;
    one.for_each(IndexedPlan::Kinds::Events, [&](std::size_t k, const Instruction& i) {
      if (records_event(i)) recorded.insert(i.event);
      if (i.kind == InstructionKind::RecordEvent) return;
      const std::int64_t id = one.first_id + static_cast<std::int64_t>(k);
      std::deque<EventId>& queue = queues[i.unit.valid() ? root_of[i.unit.index()] : UnitId(0)];
      if (i.kind == InstructionKind::LimiterPush) {
        ++pushes;
        queue.push_back(i.event);
        if (!recorded.contains(i.event))
          verdict.finding.wrong(show(plan, id, i) + " queues an event that nobody recorded");
        if (i.unit.valid() && plan.units[i.unit.index()].strategy == Strategy::NoShard) {
          verdict.finding.wrong(show(plan, id, i) + " queues an event of a NO_SHARD unit");
        }
      } else if (i.kind == InstructionKind::LimiterCheck) {
        ++checks;
        if (i.event.valid() != (queue.size() >= 2)) {
          verdict.finding.wrong(fmt::format("{} {} at queue length {}", show(plan, id, i),
                                            i.event.valid() ? "pops" : "does not pop", queue.size()));
        }
        if (i.event.valid() && !queue.empty()) {
          if (queue.front() != i.event) {
            verdict.finding.wrong(fmt::format("{} pops {}, the oldest is {}", show(plan, id, i), event_name(i.event),
                                              event_name(queue.front())));
          }
          queue.pop_front();
          ++pops;
          const bool waits = k + 1 < iteration.instructions.size() &&
                             iteration.instructions[k + 1].kind == InstructionKind::HostWait &&
                             iteration.instructions[k + 1].event == i.event;
          if (!waits) verdict.finding.wrong(show(plan, id, i) + " pops without the host waiting for the event");
        }
      }
    });
    std::vector<EventId> queued;
    for (const auto& [root, queue] : queues) queued.insert(queued.end(), queue.begin(), queue.end());
    if (queued != iteration.limiter_queue) {
      verdict.finding.wrong(fmt::format("iteration {} ends with {} events queued, its state says {}", iteration.index,
                                        queued.size(), iteration.limiter_queue.size()));
    }
  }
  verdict.note = fmt::format("{} checks, {} pops, {} events queued", checks, pops, pushes);
  return verdict;
}

/// V8: pre times post is the number of ranks that the gradients are averaged over.
Verdict check_divide_factors(const IndexedPlan& indexed) {
  const Plan& plan = indexed.plan;
  Verdict verdict;
  const double ranks = static_cast<double>(std::max<std::size_t>(1, plan.groups.shard.size())) *
                       static_cast<double>(std::max<std::size_t>(1, plan.groups.replicate.size()));
  const double product = plan.pre_divide * plan.post_divide;
  // F2-21: fsdp2 leaves the division to the collective unless the reduction is in fp16.
  const bool by_collective = plan.runtime != Runtime::Fsdp1 && plan.pre_divide == 1.0 && plan.post_divide == 1.0;
  if (!by_collective && std::abs(product - ranks) > 1e-9 * ranks) {
    verdict.finding.wrong(fmt::format("pre {} times post {} is {}, the groups have {} ranks", plan.pre_divide,
                                      plan.post_divide, product, ranks));
  }
  verdict.note = by_collective ? "the collectives average"
                               : fmt::format("{} x {} = {} ranks", plan.pre_divide, plan.post_divide, ranks);
  return verdict;
}

/// V15: no forward prefetch while the order is being recorded (P1).
Verdict check_forward_prefetch(const IndexedPlan& indexed) {
  const Plan& plan = indexed.plan;
  Verdict verdict;
  if (plan.runtime != Runtime::Fsdp1) {
    verdict.undecided = "recorded forward prefetch is fsdp1's";
    return verdict;
  }
  std::int64_t id = 0, later = 0;
  for (const PlanIteration& iteration : plan.iterations) {
    const auto place = [&](UnitId unit) {
      return std::find(iteration.pre_order.begin(), iteration.pre_order.end(), unit) - iteration.pre_order.begin();
    };
    std::vector<std::pair<std::int64_t, const Instruction*>> gathered;  // not yet followed by compute
    bool in_backward = false;
    for (const Instruction& i : iteration.instructions) {
      in_backward = in_backward || i.kind == InstructionKind::Backward || i.phase == Phase::PreBackward;
      if (i.kind == InstructionKind::AllGather && i.unit.valid() && i.phase == Phase::PreForward)
        gathered.emplace_back(id, &i);
      if (i.kind == InstructionKind::Forward && i.segment.valid()) {
        const UnitId runs = plan.segments[i.segment.index()].unit;
        for (const auto& [at, gather] : gathered) {
          if (!runs.valid() || gather->unit == runs || place(runs) >= place(gather->unit)) continue;
          if (iteration.index == 0 && !in_backward && is_plain_training(iteration)) {
            verdict.finding.wrong(fmt::format("{} is issued before {} has run, in the first iteration",
                                              show(plan, at, *gather), plan.units[runs.index()].name));
          } else {
            ++later;
          }
        }
        gathered.clear();
      }
      ++id;
    }
  }
  verdict.note =
      later == 0 ? "no forward prefetch" : fmt::format("{} gathers ahead, all after the first iteration", later);
  return verdict;
}

}  // namespace foreshard::detail
