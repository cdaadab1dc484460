#include "sim/schedule/candidate.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "core/text/digest.h"

namespace foreshard {
namespace {

/// Units in the order in which their hooks of this name first run in the last iteration.
std::vector<int> hook_order(const Plan& plan, std::string_view hook) {
  std::vector<int> order;
  if (plan.iterations.empty()) return order;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (i.kind != InstructionKind::Mark || !i.unit.valid() || plan.name_of(i.name) != hook) continue;
    if (plan.units[i.unit.index()].params.empty()) continue;
    if (std::find(order.begin(), order.end(), i.unit.value) == order.end()) order.push_back(i.unit.value);
  }
  return order;
}

std::vector<int> places_in(const std::vector<int>& order, std::size_t units) {
  std::vector<int> at(units, -1);
  for (std::size_t k = 0; k < order.size(); ++k) at[static_cast<std::size_t>(order[k])] = static_cast<int>(k);
  return at;
}

/// Before whom the first gather of each unit is issued, by the hook in which the plan has it.
void read_starts(UnitFrame& frame) {
  const Plan& plan = *frame.plan;
  frame.own_starts.resize(plan.units.size());
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    frame.own_starts[u].forward = std::max(0, frame.forward_at[u]);
    frame.own_starts[u].backward = std::max(0, frame.backward_at[u]);
  }
  if (plan.iterations.empty()) return;
  int forward = -1, backward = -1;  // places whose hook was entered last
  std::vector<bool> seen_forward(plan.units.size()), seen_backward(plan.units.size());
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (!i.unit.valid()) continue;
    const std::size_t u = i.unit.index();
    if (i.kind == InstructionKind::Mark) {
      const std::string_view name = plan.name_of(i.name);
      if (name == "begin pre_forward") forward = frame.forward_at[u];
      if (name == "begin pre_backward") backward = frame.backward_at[u];
      continue;
    }
    if (i.kind != InstructionKind::AllGather) continue;
    const bool ahead_in_backward = i.phase == Phase::PreBackward;
    const int from = ahead_in_backward ? backward : forward;
    std::vector<bool>& seen = ahead_in_backward ? seen_backward : seen_forward;
    if (from < 0 || seen[u]) continue;
    seen[u] = true;
    int& start = ahead_in_backward ? frame.own_starts[u].backward : frame.own_starts[u].forward;
    start = std::min(start, from);
  }
}

/// The outermost blocks; those of a unit that is nothing else are decided together.
void read_blocks(UnitFrame& frame, const Model& model, const std::vector<bool>& blocks,
                 const std::vector<bool>& checkpointed) {
  std::vector<int> unit_of(model.modules.size(), -1);
  const std::vector<PlanUnit>& units = frame.plan->units;
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (!frame.block[u] || units[u].params.empty()) continue;  // a unit of nothing shares no decision with its block
    for (const ModuleId module : units[u].modules) unit_of[module.index()] = static_cast<int>(u);
  }
  std::vector<int> block_of(units.size(), -1);
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    if (!blocks[m]) continue;
    ModuleId outer = model.modules[m].parent;
    while (outer.valid() && !blocks[outer.index()]) outer = model.modules[outer.index()].parent;
    if (outer.valid()) continue;
    const int unit = unit_of[m];
    if (unit < 0 || block_of[static_cast<std::size_t>(unit)] < 0) {
      if (unit >= 0) block_of[static_cast<std::size_t>(unit)] = static_cast<int>(frame.blocks.size());
      frame.blocks.push_back({{}, 0, unit, checkpointed[m]});
    }
    ScheduledBlock& block = unit < 0 ? frame.blocks.back()
                                     : frame.blocks[static_cast<std::size_t>(block_of[static_cast<std::size_t>(unit)])];
    block.modules.push_back(model.modules[m].fqn);
    block.numel += numel_within(model, model.modules[m].fqn);
  }
}

/// Blocks of as many parameters may run other operators (layers with a window beside layers without): what one of them
/// keeps and takes says nothing of the others.
void tell_kinds(UnitFrame& frame, const Model& model) {
  std::vector<int> block_of(model.modules.size(), -1);
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    for (std::size_t b = 0; b < frame.blocks.size() && block_of[m] < 0; ++b)
      for (const std::string& outer : frame.blocks[b].modules)
        if (is_within(model.modules[m].fqn, outer)) block_of[m] = static_cast<int>(b);
  }
  std::vector<std::string> runs(frame.blocks.size());
  for (const Op& op : model.ops) {
    const int block = op.module.valid() ? block_of[op.module.index()] : -1;
    if (block < 0) continue;
    std::string& text = runs[static_cast<std::size_t>(block)];
    text += op.name;
    for (const ValueId out : op.out)
      if (out.valid())
        for (const std::int64_t size : model.values[out.index()].shape) text += ' ' + std::to_string(size);
    text += '\n';
  }
  std::map<std::pair<Numel, std::uint64_t>, int> kinds;
  for (std::size_t b = 0; b < frame.blocks.size(); ++b)
    frame.blocks[b].kind =
        kinds.emplace(std::pair(frame.blocks[b].numel, fnv1a(runs[b])), static_cast<int>(kinds.size())).first->second;
}

}  // namespace

bool is_within(const std::string& inner, const std::string& outer) {
  return outer.empty() || inner == outer ||
         (inner.size() > outer.size() && inner.starts_with(outer) && inner[outer.size()] == '.');
}

Numel own_numel(const Model& model, const ModuleInfo& module) {
  Numel numel = 0;
  for (const ParamId param : module.params) numel += numel_of(model.params[param.index()].shape);
  return numel;
}

Numel numel_within(const Model& model, const std::string& name) {
  Numel numel = 0;
  for (const ModuleInfo& module : model.modules) {
    if (is_within(module.fqn, name)) numel += own_numel(model, module);
  }
  return numel;
}

UnitFrame frame_of_units(const Job& job, const Model& model, std::shared_ptr<const Plan> plan,
                         const std::vector<bool>& blocks, const std::vector<bool>& checkpointed) {
  UnitFrame frame;
  frame.job = job;
  frame.plan = std::move(plan);
  const std::vector<PlanUnit>& units = frame.plan->units;
  frame.forward = hook_order(*frame.plan, "begin pre_forward");
  frame.backward = hook_order(*frame.plan, "begin pre_backward");
  frame.forward_at = places_in(frame.forward, units.size());
  frame.backward_at = places_in(frame.backward, units.size());
  const CheckpointPolicy policy = job.checkpointing.policy;
  const bool free = policy == CheckpointPolicy::None || policy == CheckpointPolicy::Block ||
                    policy == CheckpointPolicy::EveryK;  // finer choices are the user's
  for (const PlanUnit& unit : units) {
    frame.names.push_back(model.modules[unit.modules.front().index()].fqn);
    std::vector<std::string>& modules = frame.modules.emplace_back();
    for (const ModuleId module : unit.modules) modules.push_back(model.modules[module.index()].fqn);
    frame.bytes.push_back(unit.padded_numel * itemsize(unit.param_dtype));
    frame.kept.push_back(unit.reshard_after_forward.kind == ReshardAfterForward::Kind::False);
    frame.block.push_back(
        std::all_of(unit.modules.begin(), unit.modules.end(), [&](ModuleId module) { return blocks[module.index()]; }));
  }
  if (free) {
    read_blocks(frame, model, blocks, checkpointed);
    tell_kinds(frame, model);
  }
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    if (checkpointed[m] && !(free && blocks[m])) frame.recomputed.push_back(model.modules[m].fqn);
  }
  read_starts(frame);
  return frame;
}

std::string Candidate::key() const {
  std::string text = starts ? "s" : "f";
  for (const KeepActivations block : activations) text += static_cast<char>('a' + static_cast<int>(block));
  for (const UnitChoice& unit : units) {
    text += static_cast<char>('a' + static_cast<int>(unit.params));
    if (!starts) continue;
    text += std::to_string(unit.forward) + "," + std::to_string(unit.backward) + ";";
  }
  return text;
}

Candidate as_fsdp2(const UnitFrame& frame) {
  Candidate candidate;
  candidate.units = frame.own_starts;
  candidate.activations.resize(frame.blocks.size());
  return candidate;
}

bool keeps_params(const UnitFrame& frame, const Candidate& candidate, int unit) {
  const KeepParams params = candidate.units[static_cast<std::size_t>(unit)].params;
  return params == KeepParams::AsJob ? frame.kept[static_cast<std::size_t>(unit)] : params != KeepParams::Reshard;
}

bool recomputes(const UnitFrame& frame, const Candidate& candidate, int block) {
  const KeepActivations activations = candidate.activations[static_cast<std::size_t>(block)];
  return activations == KeepActivations::AsJob ? frame.blocks[static_cast<std::size_t>(block)].recomputed
                                               : activations == KeepActivations::Recompute;
}

std::vector<std::string> recomputed_modules(const UnitFrame& frame, const Candidate& candidate) {
  std::vector<std::string> modules = frame.recomputed;
  for (std::size_t b = 0; b < frame.blocks.size(); ++b) {
    const std::vector<std::string>& own = frame.blocks[b].modules;
    if (recomputes(frame, candidate, static_cast<int>(b))) modules.insert(modules.end(), own.begin(), own.end());
  }
  return modules;
}

bool meets_unit(const UnitFrame& frame, int unit, const std::vector<std::string>& modules) {
  const std::vector<std::string>& own = frame.modules[static_cast<std::size_t>(unit)];
  return std::any_of(own.begin(), own.end(), [&](const std::string& module) {
    return std::any_of(modules.begin(), modules.end(), [&](const std::string& other) {
      return module == other || (!module.empty() && (is_within(module, other) || is_within(other, module)));
    });
  });
}

namespace {

/// What a unit is called where keys name it.
const std::string& name_at(const UnitFrame& frame, const std::vector<int>& order, int place) {
  return frame.names[static_cast<std::size_t>(order[static_cast<std::size_t>(place)])];
}

void set_resharding(const UnitFrame& frame, const Candidate& candidate, Job& job) {
  UnitOverride kept, resharded;
  for (std::size_t u = 0; u < candidate.units.size(); ++u) {
    if (candidate.units[u].params == KeepParams::AsJob) continue;
    (candidate.units[u].params == KeepParams::Reshard ? resharded : kept).units.push_back(frame.names[u]);
  }
  using Kind = ReshardAfterForward::Kind;
  kept.reshard_after_forward = ReshardAfterForward{Kind::False, 0};
  resharded.reshard_after_forward = ReshardAfterForward{Kind::True, 0};
  if (!kept.units.empty()) job.fsdp.overrides.push_back(std::move(kept));
  if (!resharded.units.empty()) job.fsdp.overrides.push_back(std::move(resharded));
}

void set_starts(const UnitFrame& frame, const Candidate& candidate, Job& job) {
  PrefetchOptions& lists = job.fsdp.prefetch;
  lists = {};
  for (const int u : frame.forward) {
    const int start = candidate.units[static_cast<std::size_t>(u)].forward;
    const std::string& name = frame.names[static_cast<std::size_t>(u)];
    if (start != frame.forward_at[static_cast<std::size_t>(u)])
      lists.forward[name_at(frame, frame.forward, start)].push_back(name);
  }
  for (const int u : frame.backward) {
    const int start = candidate.units[static_cast<std::size_t>(u)].backward;
    const std::string& name = frame.names[static_cast<std::size_t>(u)];
    if (start != frame.backward_at[static_cast<std::size_t>(u)])
      lists.backward[name_at(frame, frame.backward, start)].push_back(name);
  }
  for (const int u : frame.backward) {  // without a list fsdp2 gathers the next unit ahead
    std::vector<std::string>& list = lists.backward[frame.names[static_cast<std::size_t>(u)]];
    if (list.empty()) list.push_back(frame.names[static_cast<std::size_t>(u)]);
  }
}

void set_activations(const UnitFrame& frame, const Candidate& candidate, Job& job) {
  const bool decided = std::any_of(candidate.activations.begin(), candidate.activations.end(),
                                   [](KeepActivations block) { return block != KeepActivations::AsJob; });
  if (!decided) return;
  if (job.checkpointing.policy == CheckpointPolicy::None) job.checkpointing.reentrant = false;  // said nothing of it
  job.checkpointing.policy = CheckpointPolicy::None;
  job.checkpointing.units.clear();
  for (std::size_t b = 0; b < frame.blocks.size(); ++b) {
    if (!recomputes(frame, candidate, static_cast<int>(b))) continue;
    job.checkpointing.policy = CheckpointPolicy::Selective;
    const std::vector<std::string>& modules = frame.blocks[b].modules;
    job.checkpointing.units.insert(job.checkpointing.units.end(), modules.begin(), modules.end());
  }
}

}  // namespace

Job job_of(const UnitFrame& frame, const Candidate& candidate) {
  Job job = frame.job;
  job.fsdp.runtime = Runtime::Planned;
  job.schedule.objective = "given";
  set_resharding(frame, candidate, job);
  // Lists and depths exclude each other.
  const bool depths = job.fsdp.prefetch.forward_depth > 0 || job.fsdp.prefetch.backward_depth > 0;
  if (candidate.starts || depths) set_starts(frame, candidate, job);
  set_activations(frame, candidate, job);
  for (std::size_t u = 0; u < candidate.units.size(); ++u) {  // itself: still there
    if (candidate.units[u].params == KeepParams::Always && frame.forward_at[u] >= 0)
      job.fsdp.prefetch.forward[frame.names[u]].push_back(frame.names[u]);
  }
  return job;
}

}  // namespace foreshard
