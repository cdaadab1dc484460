#include "core/plan/fsdp1/run.h"

#include <algorithm>
#include <utility>

#include "core/plan/fsdp1/gathering.h"
#include "core/plan/fsdp1/gradients.h"
#include "core/plan/graph/root_of_units.h"
#include "core/plan/runtime/plan_frame.h"

namespace foreshard::fsdp1 {
namespace {

bool reshards_after_forward(Strategy strategy) {
  return strategy == Strategy::FullShard || strategy == Strategy::HybridShard;
}

BackwardPrefetch prefetch_of(const Job& job, const PlanUnit& unit) {
  BackwardPrefetch prefetch = job.fsdp.backward_prefetch;
  for (const UnitOverride& change : job.fsdp.overrides) {
    const bool meant = std::any_of(change.units.begin(), change.units.end(),
                                   [&](const std::string& pattern) { return matches_pattern(pattern, unit.name); });
    if (meant && change.backward_prefetch) prefetch = *change.backward_prefetch;
  }
  return prefetch;
}

}  // namespace

Run::Run(const PlanRequest& given)
    : request(given),
      job(given.job),
      model(given.model),
      graph(given.graph),
      node_autograd(given.model, given.graph, given.table.trainable, given.autograd),
      plan(frame_of(given.model, given.job, given.table)),
      autograd(next_event),
      out(autograd, next_event) {
  if (compressing_hook(job)) {
    for (PlanUnit& unit : plan.units) unit.reduce_dtype = unit.param_dtype;  // G5
  }
  find_roots();
  make_units();
  make_segments();
  plan.names = mark_names();
}

void Run::find_roots() {
  root_is_unit = job.fsdp.wrap.root;
  root_of.assign(plan.units.size(), UnitId(0));
  orders.resize(plan.units.size());
  if (root_is_unit) return;
  root_of = root_of_units(model, request.table.unit_of_module, plan.units.size());
  out.name_roots();
}

std::vector<UnitId> Run::roots() const {
  std::vector<UnitId> found;
  for (const UnitState& u : units)
    if (u.is_root) found.push_back(u.id);
  return found;
}

void Run::make_units() {
  units.resize(plan.units.size());
  place_of_param.resize(model.params.size());
  ignored_grads.resize(model.params.size());
  for (std::size_t i = 0; i < units.size(); ++i) make_unit(UnitId(i));
  for (const PlanUnit& unit : plan.units) {
    for (const SharedName& shared : unit.shared) {
      place_of_param[shared.name.index()] = place_of_param[shared.of.index()];
    }
  }
  // R2: three streams, four with hybrid; priority -1 if the limiter is on and some unit is hybrid.
  const bool any_hybrid = std::any_of(units.begin(), units.end(), [](const UnitState& u) { return u.hybrid; });
  const std::int32_t priority = any_hybrid && job.fsdp.limit_all_gathers ? -1 : 0;
  plan.streams = {{Stream::U, priority}, {Stream::G, priority}, {Stream::Q, priority}};
  if (any_hybrid) plan.streams.push_back({Stream::H, 0});
}

void Run::make_unit(UnitId id) {
  const PlanUnit& unit = plan.units[id.index()];
  UnitState& u = units[id.index()];
  u.id = id;
  u.unit = &unit;
  u.has_handle = !unit.params.empty();
  u.is_root = root_of[id.index()] == id && (root_is_unit || id.value != 0);
  u.sharded = unit.strategy != Strategy::NoShard;
  u.hybrid = unit.strategy == Strategy::HybridShard || unit.strategy == Strategy::HybridShardZero2;
  // S1, S2: a root stays gathered, but for one inside of a wrapper that has nothing left to gather (wrapped twice).
  u.reshard_after_forward = reshards_after_forward(unit.strategy);
  u.frees_after_forward = u.reshard_after_forward && (!u.is_root || unit.wrapped_twice);
  u.casts_params = unit.param_dtype != unit.orig_dtype;
  u.offload = job.fsdp.cpu_offload;
  u.use_orig_params = job.fsdp.use_orig_params;
  u.backward_prefetch = prefetch_of(job, unit);
  u.data_dtype = unit.orig_dtype;
  u.data_on_host = u.offload;
  u.views.assign(unit.params.size(), autograd::kNoNode);
  u.entry_of_param.assign(unit.params.size(), 0);
  std::size_t next = 0;
  const Numel begin = u.sharded ? unit.shard_numel * position_in_shard_group() : 0;
  const Numel end = u.sharded ? begin + unit.shard_numel : unit.flat_numel;
  u.any_in_shard = false;
  for (std::size_t e = 0; e < unit.flat.size(); ++e) {
    const FlatEntry& entry = unit.flat[e];
    if (!entry.param.valid()) continue;
    if (next < u.entry_of_param.size()) u.entry_of_param[next++] = static_cast<std::int32_t>(e);
    const bool here = entry.offset < end && entry.offset + entry.numel > begin;
    u.any_in_shard = u.any_in_shard || (here && request.table.trainable[model.storage_of(entry.param).index()]);
  }
  for (std::size_t p = 0; p < unit.params.size(); ++p) {
    place_of_param[unit.params[p].index()] = {id.value, static_cast<std::int32_t>(p)};
  }
  // Construction makes views too, and moves what is offloaded; reentrant checkpointing compares the numbers of two
  // threads (R16).
  if (u.has_handle && unit.requires_grad) autograd.skip_number(unit.params.size() + (u.offload ? 2 : 1));
  number_shard_views(autograd, u);
  // R26: without original parameters NO_SHARD keeps the accumulation node of its construction, made on D.
  if (u.has_handle && !u.sharded && !u.use_orig_params && unit.requires_grad) {
    u.accumulation = autograd.add_accumulation(kAccumulate, id.value, Stream::D);
  }
}

std::int64_t Run::position_in_shard_group() const {
  const std::vector<std::int32_t>& ranks = plan.groups.shard;
  const auto it = std::find(ranks.begin(), ranks.end(), plan.rank);
  return it == ranks.end() ? 0 : it - ranks.begin();
}

void Run::make_segments() {
  unit_of_node.assign(graph.nodes.size(), 0);
  std::vector<bool> checkpointed(graph.nodes.size(), false);
  if (!graph.calls.empty()) note_unit_of_nodes(0, 0, false, checkpointed);
  plan.segments.reserve(graph.nodes.size());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const GraphNode& node = graph.nodes[i];
    plan.segments.push_back(
        {node.label, node.module, UnitId(unit_of_node[i]), node.op_begin, node.op_end, node.params, checkpointed[i]});
  }
}

void Run::note_unit_of_nodes(std::int32_t call_index, std::int32_t unit, bool inside, std::vector<bool>& checkpointed) {
  const GraphCall& call = graph.calls[static_cast<std::size_t>(call_index)];
  if (const UnitState* own = unit_of_module(call.hooked())) unit = own->id.value;
  inside = inside || call.checkpoint != CheckpointKind::None;
  for (const GraphStep& step : call.steps) {
    if (step.is_call) {
      note_unit_of_nodes(step.index, unit, inside, checkpointed);
    } else {
      unit_of_node[static_cast<std::size_t>(step.index)] = unit;
      checkpointed[static_cast<std::size_t>(step.index)] = inside;
    }
  }
}

const UnitState* Run::unit_of_module(ModuleId module) const {
  if (!module.valid()) return nullptr;
  const ModuleId alias = model.modules[module.index()].alias_of;
  const UnitId unit = request.table.unit_of_module[(alias.valid() ? alias : module).index()];
  if (!unit.valid() || (unit.value == 0 && !root_is_unit)) return nullptr;
  return &units[unit.index()];
}

UnitState* Run::unit_of_module(ModuleId module) {
  return const_cast<UnitState*>(std::as_const(*this).unit_of_module(module));
}

void Run::fail(std::string error_class, std::string text) {
  if (failed()) return;
  plan.failure = PlanFailure{script_iteration, {}, std::move(error_class), std::move(text)};
}

void Run::warn(std::string text) {
  if (std::find(plan.warnings.begin(), plan.warnings.end(), text) == plan.warnings.end()) {
    plan.warnings.push_back(std::move(text));
  }
}

}  // namespace foreshard::fsdp1
