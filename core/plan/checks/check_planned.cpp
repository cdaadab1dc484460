#include "core/plan/checks/check_planned.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace foreshard::detail {
namespace {

/// The unit's buffer of this name, whichever instance.
bool is_alive(const std::map<BufferKey, Bytes>& alive, BufferWhat what, UnitId unit) {
  return std::any_of(alive.begin(), alive.end(), [&](const auto& entry) {
    return std::get<0>(entry.first) == what && std::get<1>(entry.first) == unit;
  });
}

}  // namespace

/// V17: collectives and copies find their buffers; what FSDP holds at the most. Blocks that autograd makes are not
/// counted, nor is what it frees.
Verdict check_memory_at_instructions(const IndexedPlan& indexed) {
  const Plan& plan = indexed.plan;
  Verdict verdict;
  std::map<BufferKey, Bytes> alive;
  Bytes now = 0, most = 0;
  std::int64_t id = 0, most_at = 0;
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& i : iteration.instructions) {
      if (is_alloc(i)) {
        const auto [entry, fresh] = alive.emplace(key_of(i), i.bytes);
        if (!fresh) {
          verdict.finding.wrong(show(plan, id, i) + " allocates what is there: " + buffer_name(plan, i.buffer));
        } else {
          now += i.bytes;
        }
      } else if (is_free(i)) {
        if (const auto entry = alive.find(key_of(i)); entry != alive.end()) {
          now -= entry->second;
          alive.erase(entry);
        }
      } else if (i.kind == InstructionKind::AllGather || i.kind == InstructionKind::ReduceScatter) {
        if (i.buffer.what != BufferWhat::None && !is_alive(alive, i.buffer.what, i.buffer.unit))
          verdict.finding.wrong(show(plan, id, i) + " finds no " + buffer_name(plan, i.buffer));
      }
      if (now > most) {
        most = now;
        most_at = id;
      }
      ++id;
    }
  }
  verdict.note = fmt::format("at most {} bytes of FSDP's own buffers, at #{}", most, most_at);
  return verdict;
}

/// V18: whatever is waited for was issued before, so no rank waits for itself; equal orders on the ranks
/// (core/plan/checks/collectives_in_turn.h) leave no rank waiting for another.
Verdict check_no_deadlock(const IndexedPlan& indexed) {
  const Plan& plan = indexed.plan;
  Verdict verdict;
  StreamClocks clocks;
  std::int64_t id = 0, waits = 0;
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& i : iteration.instructions) {
      const bool waits_for_event = i.kind == InstructionKind::WaitEvent || i.kind == InstructionKind::HostWait;
      if (waits_for_event && i.event.valid()) {
        ++waits;
        if (!clocks.recorded(i.event))
          verdict.finding.wrong(
              fmt::format("{} waits for event {}, which nothing before it records", show(plan, id, i), i.event.value));
      }
      clocks.apply(i, ++id);
    }
  }
  verdict.note = fmt::format("{} waits, each for what was issued before", waits);
  return verdict;
}

}  // namespace foreshard::detail
