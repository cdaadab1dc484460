#include "exec/plan_runner_support.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>

namespace foreshard::exec {
namespace {

using Kind = InstructionKind;

Error not_run(std::string place, std::string got) {
  Error error;
  error.code = ErrorCode::Unsupported;
  error.message = "the executor does not run this plan yet";
  error.place = std::move(place);
  error.got = std::move(got);
  return error;
}

bool runs_buffer(Kind kind, BufferWhat what) {
  switch (kind) {
    case Kind::Alloc:
      return what == BufferWhat::AgBuffer || what == BufferWhat::RsInput || what == BufferWhat::RsOutput ||
             what == BufferWhat::CastBuffer || what == BufferWhat::AccumulatedGrad;
    case Kind::Free: return what == BufferWhat::Grad || runs_buffer(Kind::Alloc, what);
    case Kind::Cast: return what == BufferWhat::CastBuffer || what == BufferWhat::AccumulatedGrad;
    case Kind::Accumulate: return what == BufferWhat::Grad;
    case Kind::Add: return what == BufferWhat::ShardGrad || what == BufferWhat::AccumulatedGrad;
    case Kind::Resize: return what == BufferWhat::Full;
    case Kind::CopyIn: return what == BufferWhat::AgBuffer || what == BufferWhat::RsInput;
    case Kind::CopyOut: return what == BufferWhat::AgBuffer || what == BufferWhat::Full || what == BufferWhat::RsOutput;
    case Kind::AllGather: return what == BufferWhat::AgBuffer;
    case Kind::ReduceScatter: return what == BufferWhat::RsInput;
    default: return true;
  }
}

bool runs(const Plan& plan, const Instruction& instruction) {
  switch (instruction.kind) {
    case Kind::WaitStream:
    case Kind::RecordEvent:
    case Kind::WaitEvent:
    case Kind::Forward:
    case Kind::Backward:
    case Kind::Zero:
    case Kind::Mark: return true;
    case Kind::Alloc:
    case Kind::Resize:
    case Kind::Free:
    case Kind::Cast:
    case Kind::Add:
    case Kind::Accumulate:
    case Kind::CopyIn:
    case Kind::CopyOut: return runs_buffer(instruction.kind, instruction.buffer.what);
    case Kind::AllGather:
    case Kind::ReduceScatter:
      return runs_buffer(instruction.kind, instruction.buffer.what) && instruction.group == GroupKind::Shard &&
             instruction.group_size == plan.world_size;
    case Kind::AllReduce: return plan.name_of(instruction.name) == "norm";
    case Kind::Clip:
    case Kind::OptimizerStep: return !instruction.on_host;
    default: return false;
  }
}

bool is_collective(Kind kind) {
  return kind == Kind::AllGather || kind == Kind::ReduceScatter || kind == Kind::AllReduce || kind == Kind::Broadcast;
}

std::optional<Error> unsupported_unit(const PlanUnit& unit) {
  const std::string place = fmt::format("unit \"{}\"", unit.name);
  if (unit.reduce_dtype != unit.orig_dtype) {
    return not_run(place, "gradients reduced in another dtype than the shards");
  }
  if (!unit.requires_grad) return not_run(place, "frozen parameters");
  return std::nullopt;
}

}  // namespace

std::int32_t first_instruction(const Plan& plan, std::size_t iteration) {
  std::size_t first = 0;
  for (std::size_t i = 0; i < iteration; ++i) first += plan.iterations[i].instructions.size();
  return static_cast<std::int32_t>(first);
}

std::optional<Error> unsupported_instruction(const Plan& plan) {
  if (plan.runtime != Runtime::Fsdp2) return not_run("runtime", std::string(runtime_name(plan.runtime)));
  if (plan.failure) return not_run("failure", plan.failure->text);
  if (plan.iterations.empty()) return not_run("iterations", "none");
  for (const PlanUnit& unit : plan.units) {
    if (auto error = unsupported_unit(unit)) return error;
  }
  for (const Segment& segment : plan.segments) {
    if (segment.op_begin == segment.op_end) return not_run(segment.label, "a segment without operators");
  }
  std::int32_t id = 0;
  for (const PlanIteration& iteration : plan.iterations) {
    std::set<EventId> recorded;
    for (const Instruction& instruction : iteration.instructions) {
      const std::string place = fmt::format("instruction {}", id++);
      if (!runs(plan, instruction)) return not_run(place, std::string(instruction_kind_name(instruction.kind)));
      if (instruction.kind == Kind::RecordEvent) recorded.insert(instruction.event);
      if (instruction.kind == Kind::WaitEvent && !recorded.contains(instruction.event)) {
        return not_run(place, "a wait for an event of another iteration");
      }
    }
  }
  return std::nullopt;
}

std::optional<Error> missing_communicator(const PlanRunnerSetup& setup) {
  for (const PlanIteration& iteration : setup.plan.iterations) {
    for (const Instruction& instruction : iteration.instructions) {
      if (!is_collective(instruction.kind)) continue;
      const auto found = setup.communicators.find(instruction.stream);
      const std::string place = fmt::format("communicator of stream {}", stream_name(instruction.stream));
      if (found == setup.communicators.end()) return not_run(place, "none");
      if (found->second->rank() != setup.plan.rank || found->second->size() != setup.plan.world_size) {
        return not_run(place, fmt::format("rank {} of {}", found->second->rank(), found->second->size()));
      }
    }
  }
  return std::nullopt;
}

}  // namespace foreshard::exec
