#include "core/plan/checks/check_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/plan/form/plan_writer.h"
#include "core/runtime_layouts.h"

namespace foreshard::detail {
namespace {

constexpr std::size_t kTold = 4;

}  // namespace

void Finding::wrong(std::string text) {
  ++count_;
  if (texts_.size() < kTold) texts_.push_back(std::move(text));
}

std::string Finding::text() const {
  std::string out = fmt::format("{}", fmt::join(texts_, "; "));
  const std::int64_t more = count_ - static_cast<std::int64_t>(texts_.size());
  if (more > 0) out += fmt::format("; and {} more", more);
  return out;
}

BufferKey key_of(const Instruction& instruction) {
  return {instruction.buffer.what, instruction.buffer.unit, instruction.buffer.param, instruction.arg};
}

bool is_alloc(const Instruction& instruction) {
  return instruction.kind == InstructionKind::Alloc ||
         (instruction.kind == InstructionKind::Resize && instruction.bytes > 0);
}

bool is_free(const Instruction& instruction) {
  return instruction.kind == InstructionKind::Free ||
         (instruction.kind == InstructionKind::Resize && instruction.bytes == 0);
}

IndexedPlan::IndexedPlan(const Plan& indexed) : plan(indexed) {
  iterations.reserve(plan.iterations.size());
  std::int64_t id = 0;
  for (const PlanIteration& iteration : plan.iterations) {
    Iteration& own = iterations.emplace_back(Iteration{iteration, id, {}});
    id += static_cast<std::int64_t>(iteration.instructions.size());
    for (std::size_t at = 0; at < iteration.instructions.size(); ++at) {
      const Instruction& i = iteration.instructions[at];
      const auto note = [&](Kinds kinds) {
        own.places[static_cast<std::size_t>(kinds)].push_back(static_cast<std::int32_t>(at));
      };
      switch (i.kind) {
        case InstructionKind::Alloc:
        case InstructionKind::Resize:
        case InstructionKind::Free: note(Kinds::Memory); break;
        case InstructionKind::RecordEvent:
        case InstructionKind::LimiterPush:
        case InstructionKind::LimiterCheck: note(Kinds::Events); break;
        case InstructionKind::WaitStream: note(Kinds::StreamWaits); break;
        default:
          if (is_segment_run(i.kind)) note(Kinds::Runs);
          break;
      }
      if (is_collective(i.kind) || i.communicator.valid()) note(Kinds::Collectives);
    }
  }
}

void StreamClocks::merge(Clock& into, const Clock& from) {
  for (std::size_t s = 0; s < kStreamCount; ++s) into[s] = std::max(into[s], from[s]);
}

/// What is issued to the stream comes after what the host waited for.
void StreamClocks::follow_host(std::size_t stream) {
  if (host_seen_[stream] == host_changes_) return;
  merge(clocks_[stream], clock(Stream::Host));
  host_seen_[stream] = host_changes_;
}

void StreamClocks::record(EventId event, const Clock& clock) {
  if (event.value < 0 || event.value >= kNearEvents) {
    far_[event] = clock;
    return;
  }
  if (event.index() >= events_.size()) {
    events_.resize(event.index() + 1);
    has_event_.resize(event.index() + 1, false);
  }
  events_[event.index()] = clock;
  has_event_[event.index()] = true;
}

const StreamClocks::Clock* StreamClocks::find(EventId event) const {
  if (event.value >= 0 && event.value < kNearEvents)
    return event.index() < events_.size() && has_event_[event.index()] ? &events_[event.index()] : nullptr;
  const auto at = far_.find(event);
  return at == far_.end() ? nullptr : &at->second;
}

bool records_event(const Instruction& i) {  // R7: on a stream, a push records the event that it queues
  return i.kind == InstructionKind::RecordEvent || (i.kind == InstructionKind::LimiterPush && i.stream != Stream::Host);
}

void StreamClocks::apply_work(const Instruction& i, std::int64_t id) {
  const std::size_t stream = slot(i.stream);
  Clock& own = clocks_[stream];
  Clock& host = clocks_[slot(Stream::Host)];
  bool changes_host = i.stream == Stream::Host;
  switch (i.kind) {
    case InstructionKind::WaitStream: merge(own, clock(i.other)); break;
    case InstructionKind::RecordEvent:
    case InstructionKind::LimiterPush:
      if (records_event(i)) record(i.event, own);
      break;
    case InstructionKind::WaitEvent:
      if (const Clock* const event = find(i.event)) merge(own, *event);
      break;
    case InstructionKind::HostWait:
      changes_host = true;
      if (!i.event.valid()) {  // one stream, or the whole device
        const Stream one = i.other != Stream::Host ? i.other : i.stream;
        for (std::size_t s = 0; s < kStreamCount; ++s) {
          if (one == Stream::Host || s == slot(one)) merge(host, clocks_[s]);
        }
      } else if (const Clock* const event = find(i.event)) {
        merge(host, *event);
      }
      break;
    default:
      if (waits_for_nobody(i.kind)) {
        changes_host = false;
        break;
      }
      follow_host(stream);
      own[stream] = id;
  }
  if (i.blocking) {
    host[stream] = id;
    changes_host = true;
  }
  if (changes_host) ++host_changes_;
}

bool is_plain_training(const PlanIteration& iteration) {
  int pending = 0, held = 0;
  bool trained = false, synchronised = false;
  for (const std::string& action : iteration.actions) {
    if (action == "fwd") {
      ++pending;
    } else if (action == "bwd") {
      if (--pending < 0) return false;
      trained = true;
      synchronised = held == 0;
    } else if (action == "no_sync{") {
      ++held;
    } else if (action == "}") {
      --held;
    } else if (action != "zero" && action != "step" && action != "clip" && action != "unscale" && action != "update") {
      return false;
    }
    if (pending > 1) return false;
  }
  return trained && synchronised && pending == 0 && held == 0;
}

bool holds_gradients(const PlanIteration& iteration) {
  return std::find(iteration.actions.begin(), iteration.actions.end(), "no_sync{") != iteration.actions.end();
}

bool is_root_wait(const Instruction& i, Stream stream) {
  return i.kind == InstructionKind::WaitStream && i.origin == Origin::Fsdp && i.stream == stream &&
         i.other == Stream::D;
}

bool has_roots_inside(const Plan& plan) {
  const bool fsdp1 = plan.runtime == Runtime::Fsdp1;
  if (!fsdp1 && plan.runtime != Runtime::Fsdp2) return false;
  if (plan.units.empty() || !plan.units.front().params.empty()) return false;
  bool inside = false;
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& i : iteration.instructions) {
      if (!is_root_wait(i, fsdp1 ? Stream::U : Stream::C)) continue;
      if (i.unit.value <= 0) return false;
      inside = true;
    }
  }
  return inside;
}

std::vector<UnitId> roots_by_name(const Plan& plan) {
  std::vector<UnitId> root_of(plan.units.size(), UnitId(0));
  if (!has_roots_inside(plan)) return root_of;
  for (std::size_t u = 1; u < plan.units.size(); ++u) {  // a unit stands before those in it
    const std::string& name = plan.units[u].name;
    root_of[u] = UnitId(u);
    for (std::size_t around = 1; around < u && root_of[u].index() == u; ++around) {
      const std::string& outer = plan.units[around].name;
      if (name.size() > outer.size() && name[outer.size()] == '.' && name.starts_with(outer))
        root_of[u] = root_of[around];
    }
  }
  return root_of;
}

bool is_sharded(const PlanUnit& unit) {
  return unit.strategy != Strategy::NoShard && unit.shard_size > 1 && !unit.params.empty();
}

bool keeps_after_forward(const Plan& plan, UnitId id, bool is_root) {
  const PlanUnit& unit = plan.units[id.index()];
  if (has_fsdp2_layouts(plan.runtime)) return unit.reshard_after_forward.kind == ReshardAfterForward::Kind::False;
  if (is_root && !unit.wrapped_twice) return true;  // S2
  return unit.strategy == Strategy::ShardGradOp || unit.strategy == Strategy::HybridShardZero2;
}

std::string show(const Plan& plan, std::int64_t id, const Instruction& i) {
  std::string text = fmt::format("#{} {}", id, instruction_kind_name(i.kind));
  const UnitId unit = i.segment.valid() ? plan.segments[i.segment.index()].unit : i.unit;
  if (unit.valid()) text += fmt::format(" of {}", unit.value == 0 ? "the root" : plan.units[unit.index()].name);
  return text + fmt::format(" on {}", stream_name(i.stream));
}

}  // namespace foreshard::detail
