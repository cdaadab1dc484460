#include "exec/run/plan_runner_support.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "core/lowering/mesh_rules.h"

namespace foreshard::exec {
namespace {

using Kind = InstructionKind;

/// What `run` has instead.
const char* remedy_of(const std::string& got) {
  if (got.find("summon") != std::string::npos)
    return "whole parameters are shown between steps: train.checkpoint and `foreshard checkpoint export`; "
           "`simulate --action summon` tells what it would need";
  if (got.find("forward") != std::string::npos)
    return "one forward and one backward a micro-batch: train.micro_batches, or both inputs as rows of one batch";
  return "";
}

Error not_run(std::string place, std::string got) {
  Error error;
  error.code = ErrorCode::Unsupported;
  error.message = "the executor does not run this plan";
  error.place = std::move(place);
  error.expected = "a plan of a usual training loop";
  error.hint = remedy_of(got);
  error.got = std::move(got);
  return error;
}

/// fsdp2: what a script of method calls can ask for beyond the usual loop.
std::optional<std::string> unsupported(const Plan& plan, const Instruction& instruction) {
  const bool fsdp2 = plan.runtime == Runtime::Fsdp2;
  switch (instruction.kind) {
    case Kind::Broadcast: return "a broadcast inside a training iteration";
    case Kind::Add:
      if (fsdp2 && instruction.buffer.what == BufferWhat::RsOutput) return "a reduction held before its all-reduce";
      return std::nullopt;
    case Kind::Mark:
      if (plan.name_of(instruction.name) == "summon_enter") return "summon inside a training iteration";
      return std::nullopt;
    default: return std::nullopt;
  }
}

/// A micro-batch's graph lives from its forward to its backward; two of them at once are not kept.
std::optional<Error> overlapping_forwards(const PlanIteration& iteration) {
  int pending = 0;
  for (const std::string& action : iteration.actions) {
    if (action == "fwd" && ++pending > 1)
      return not_run("train.script", "a second forward before the first's backward");
    if (action == "fwd_rest") return not_run("train.script", "fwd_rest");
    if (action == "bwd_keep") return not_run("train.script", "bwd_keep");
    if (action.starts_with("bwd")) pending = 0;
  }
  return std::nullopt;
}

}  // namespace

bool calls_own_hook(const Plan& plan) {
  return std::any_of(plan.iterations.begin(), plan.iterations.end(), [&](const PlanIteration& iteration) {
    return std::any_of(iteration.instructions.begin(), iteration.instructions.end(), [&](const Instruction& i) {
      const bool reduces = i.kind == Kind::ReduceScatter || i.kind == Kind::AllReduce;
      return reduces && plan.name_of(i.name) == "comm_hook";
    });
  });
}

std::optional<Error> unsupported_instruction(const Plan& plan) {
  if (plan.failure) return not_run("failure", plan.failure->text);
  if (plan.iterations.empty()) return not_run("iterations", "none");
  for (const Segment& segment : plan.segments) {
    if (segment.op_begin == segment.op_end) return not_run(segment.label, "a segment without operators");
  }
  std::int32_t id = 0;
  std::set<EventId> recorded;
  for (const PlanIteration& iteration : plan.iterations) {
    if (auto error = overlapping_forwards(iteration)) return error;
    for (const Instruction& instruction : iteration.instructions) {
      const std::string place = fmt::format("instruction {}", id++);
      if (auto got = unsupported(plan, instruction)) {
        return not_run(place, fmt::format("{}: {}", instruction_kind_name(instruction.kind), *got));
      }
      if (instruction.kind == Kind::RecordEvent || instruction.kind == Kind::LimiterPush) {
        recorded.insert(instruction.event);
      }
      const bool waits = instruction.kind == Kind::WaitEvent || instruction.kind == Kind::HostWait;
      if (waits && instruction.event.valid() && !recorded.contains(instruction.event)) {
        return not_run(place, "a wait for an event that was never recorded");
      }
    }
  }
  return std::nullopt;
}

SegmentRoles segment_roles(const Plan& plan, const PlanIteration& iteration) {
  SegmentRoles roles;
  roles.recomputed.assign(plan.segments.size(), false);
  roles.region.resize(plan.segments.size());
  std::vector<std::size_t> run;  // recomputed one after another, no backward between them
  const auto close = [&] {
    for (const std::size_t segment : run) {
      if (run.size() > 1)
        roles.region[segment] = {plan.segments[run.front()].op_begin, plan.segments[run.back()].op_end};
    }
    run.clear();
  };
  for (const Instruction& instruction : iteration.instructions) {
    if (instruction.kind == Kind::Backward || instruction.kind == Kind::Forward) close();
    if (instruction.kind != Kind::Recompute) continue;
    roles.recomputed[instruction.segment.index()] = true;
    run.push_back(instruction.segment.index());
  }
  close();
  bool training = true;
  for (const std::string& action : iteration.actions) {
    if (action == "eval" || action == "train") training = action == "train";
    if (action != "fwd" && action != "nograd_fwd") continue;
    roles.forward_grad.push_back(action == "fwd");
    roles.forward_training.push_back(training);
  }
  return roles;
}

namespace {

bool counts_as_product(const Op& op, const SavedOps& saved) {
  return saved.rerun_product > 0 && dispatched_name(op) == "aten.mm.default";
}

/// One call that runs again: `products` counts those that are listed.
bool keeps(const Model& model, std::int32_t place, const SavedOps& saved, std::int64_t& products) {
  const Op& op = model.ops[static_cast<std::size_t>(place)];
  if (op.region >= 0) {
    const std::vector<std::int32_t>& save = model.regions[static_cast<std::size_t>(op.region)].save;
    return std::find(save.begin(), save.end(), place) != save.end();
  }
  if (!saved.lists(dispatched_name(op))) return false;
  return !counts_as_product(op, saved) || ++products % saved.rerun_product != 0;
}

}  // namespace

std::vector<bool> kept_operators(const Model& model, const Plan& plan, const SavedOps& saved) {
  std::vector<bool> kept(model.ops.size(), false);
  if (plan.iterations.empty()) return kept;
  const SegmentRoles roles = segment_roles(plan, plan.iterations.back());
  std::set<std::int32_t> seen;  // calls, by their first operator
  for (std::size_t s = 0; s < plan.segments.size(); ++s) {
    if (!roles.recomputed[s]) continue;
    OpRange call = roles.region[s];
    if (call.begin == call.end) call = {plan.segments[s].op_begin, plan.segments[s].op_end};
    if (!seen.insert(call.begin).second) continue;
    std::int64_t products = 0;
    for (std::int32_t i = call.begin; i < call.end; ++i)
      kept[static_cast<std::size_t>(i)] = keeps(model, i, saved, products);
  }
  return kept;
}

namespace {

std::int32_t first_event(const PlanIteration& iteration) {
  std::int32_t first = 0;
  for (const Instruction& instruction : iteration.instructions) {
    if (instruction.kind != Kind::RecordEvent && instruction.kind != Kind::LimiterPush) continue;
    if (first == 0 || instruction.event.value < first) first = instruction.event.value;
  }
  return first;
}

}  // namespace

std::int32_t event_shift(const Plan& plan) {
  const std::size_t count = plan.iterations.size();
  if (count < 2) return 0;
  return first_event(plan.iterations[count - 1]) - first_event(plan.iterations[count - 2]);
}

std::int32_t last_event(const Plan& plan) {
  std::int32_t last = 0;
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& instruction : iteration.instructions) last = std::max(last, instruction.event.value);
  }
  return last;
}

MeshGroups mesh_groups(const Model& model, const Plan& plan, const Communicators& communicators) {
  MeshGroups groups(model.mesh.size());
  for (std::size_t d = 0; d < groups.size(); ++d) {
    for (std::size_t c = 0; c < plan.communicators.size(); ++c) {
      const PlanCommunicator& one = plan.communicators[c];
      const bool same = one.kind == model.mesh[d].name || one.name == kWorldDimension;
      if (same && one.ranks == model.mesh[d].ranks) groups[d] = communicators.find(CommunicatorId(c));
    }
  }
  return groups;
}

std::optional<Error> missing_dimension(const Model& model, const Plan& plan, const Communicators& communicators) {
  const MeshGroups groups = mesh_groups(model, plan, communicators);
  for (std::size_t d = 0; d < groups.size(); ++d) {
    if (groups[d] != nullptr || model.mesh[d].ranks.size() < 2) continue;
    Error error;
    error.code = ErrorCode::Inconsistent;
    error.message = "the plan has no communicator for a dimension of the mesh over which the program meets";
    error.place = fmt::format("dimension {} of ranks {}", model.mesh[d].name, fmt::join(model.mesh[d].ranks, ","));
    error.expected = "a group of these ranks";
    error.got = "none";
    return error;
  }
  return std::nullopt;
}

std::vector<std::shared_ptr<Communicator>> meetings(const Model& model, const Plan& plan, const MeshGroups& groups) {
  std::vector<std::shared_ptr<Communicator>> met(plan.segments.size());
  for (std::size_t s = 0; s < met.size() && !groups.empty(); ++s) {
    for (std::int32_t i = plan.segments[s].op_begin; i < plan.segments[s].op_end; ++i) {
      const std::int32_t dimension = mesh_dimension_either_way(model.ops[static_cast<std::size_t>(i)]);
      if (dimension >= 0) met[s] = groups[static_cast<std::size_t>(dimension)];
    }
  }
  return met;
}

std::vector<CommunicatorId> norms_beside(const Plan& plan, const Model& model) {
  std::vector<CommunicatorId> groups;
  if (plan.runtime != Runtime::Fsdp1) return groups;
  for (std::size_t d = 0; d < model.mesh.size(); ++d) {
    const bool cut = std::any_of(model.params.begin(), model.params.end(), [d](const ParamInfo& param) {
      return param.part.dimension == static_cast<std::int32_t>(d);
    });
    for (std::size_t c = 0; cut && c < plan.communicators.size(); ++c)
      if (plan.communicators[c].ranks == model.mesh[d].ranks) groups.emplace_back(c);
  }
  return groups;
}

bool is_of_matrices(const Instruction& instruction) {
  if (instruction.kind == Kind::OptimizerStep) return instruction.name.valid();
  const BufferWhat what = instruction.buffer.what;
  if (what == BufferWhat::OptimizerTemp || what == BufferWhat::OptimizerState) return true;
  return is_collective(instruction.kind) && instruction.stream == Stream::M && what == BufferWhat::None;
}

std::int32_t instance_of(const Instruction& instruction) {
  switch (instruction.buffer.what) {
    case BufferWhat::AgBuffer:
    case BufferWhat::RsOutput:
    case BufferWhat::GradCast:
    case BufferWhat::PostForwardShard:
    case BufferWhat::MeshGrad:
    case BufferWhat::Bucket: return instruction.arg;
    default: return 0;
  }
}

}  // namespace foreshard::exec
