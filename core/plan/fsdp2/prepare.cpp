// Before the first iteration: sizes and switches of every unit, and what fully_shard refuses (F2-1, F2-3, F2-12, F2-16,
// F2-27).
#include <algorithm>

#include "core/model/mesh_dimension.h"
#include "core/plan/fsdp2/run.h"
#include "core/plan/graph/root_of_units.h"
#include "core/plan/units/groups.h"
#include "core/plan/units/unit_params.h"

namespace foreshard::fsdp2 {
namespace {

/// Units in the order in which their hooks first run; `before` for pre-forward, otherwise post-forward.
void first_calls(const PlanRequest& request, std::int32_t index, bool before, std::vector<UnitId>& order) {
  const GraphCall& call = request.graph.calls[static_cast<std::size_t>(index)];
  const UnitId id = call.region < 0 ? request.table.unit_of_module[call.module.index()] : UnitId();
  const auto note = [&] {
    if (id.valid() && std::find(order.begin(), order.end(), id) == order.end()) order.push_back(id);
  };
  if (before) note();
  for (const GraphStep& step : call.steps) {
    if (step.is_call) first_calls(request, step.index, before, order);
  }
  if (!before) note();
}

/// A unit of a schedule in a reentrant checkpoint, for which its decisions are not made; invalid if there is none.
UnitId unit_in_reentrant(const PlanRequest& request) {
  if (request.job.fsdp.runtime != Runtime::Planned) return {};
  std::vector<bool> inside(request.graph.calls.size(), false);
  for (std::size_t c = 0; c < request.graph.calls.size(); ++c) {  // callers stand before what they call
    const GraphCall& call = request.graph.calls[c];
    const bool region = call.checkpoint == CheckpointKind::Reentrant;
    const UnitId id = call.region < 0 ? request.table.unit_of_module[call.module.index()] : UnitId();
    const bool around = region && !call.checkpoint_inside;
    if (id.valid() && (inside[c] || around)) return id;
    for (const GraphStep& step : call.steps) {
      if (step.is_call && (inside[c] || region)) inside[static_cast<std::size_t>(step.index)] = true;
    }
  }
  return {};
}

/// A unit of experts: the ranks that share them have samples of their own, so gradients are sums over those already.
Result<void> prepare_experts(Run& run, UnitState& u, const MeshDimension& dimension) {
  u.experts = true;
  const std::int64_t factor = run.request.job.mesh.expert_divide_factor;
  const std::int32_t data = run.shard_size * run.replicate_size;
  if (factor >= 0) u.divide_factor = factor > 0 ? static_cast<double>(factor) : data;
  const bool hybrid = is_hybrid(run.plan.units[u.id.index()].strategy);
  const Job& job = run.request.job;
  auto same = expert_groups(job.cluster, hybrid, ranks_of_all_experts(dimension), job.mesh.tensor);
  if (!same) return tl::unexpected(same.error());
  run.groups.set_experts(std::move(same->groups.shard));
  return {};
}

/// As backward leaves it: of all ranks' rows where these cut a table; this rank may have none.
Numel gradient_numel(const ParamInfo& info) {
  if (info.part.gradient != MeshPart::Gradient::Whole) return numel_of(info.shape);
  Shape whole = info.shape;
  whole[static_cast<std::size_t>(info.part.dim)] = info.part.whole;
  return numel_of(whole);
}

/// F2-13: shards that are kept among few ranks after forward.
Result<void> check_partial_reshard(const Run& run, const PlanUnit& planned, const UnitState& u) {
  if (u.reshard_size <= 0 || u.reshard_size >= u.shard_size) return {};
  const auto refuse = [&](ErrorCode code, std::string message, std::string expected, std::string hint) {
    return fail({code,
                 std::move(message),
                 {},
                 "unit \"" + planned.name + "\"",
                 std::move(expected),
                 "reshard_after_forward " + std::to_string(u.reshard_size),
                 std::move(hint)});
  };
  const auto on_mesh = [&](ParamId param) { return run.model.params[param.index()].part.dimension >= 0; };
  if (std::any_of(planned.params.begin(), planned.params.end(), on_mesh)) {  // to_sharded_post_forward
    return refuse(ErrorCode::Refused, "NotImplementedError: Resharding to smaller mesh with TP is not supported yet",
                  "reshard_after_forward true or false beside [mesh]",
                  "set fsdp.reshard_after_forward = true, or false where memory allows");
  }
  if (std::any_of(u.params.begin(), u.params.end(),
                  [](const ParamSizes& p) { return p.narrow; })) {  // all_gather_inputs
    return refuse(ErrorCode::Refused, "NotImplementedError: what a partial reshard keeps is not gathered in 8 bits",
                  "reshard_after_forward true or false beside matrices that are cast before they are gathered",
                  "set fsdp.float8_all_gather = \"none\", or fsdp.reshard_after_forward = true");
  }
  if (std::any_of(u.params.begin(), u.params.end(), [](const ParamSizes& p) { return p.other_dim; })) {
    return refuse(ErrorCode::Unsupported, "a partial reshard keeps rows, so it needs shards of the first dimension",
                  "shard_dim 0, or reshard_after_forward true or false", "see F2-13");
  }
  return {};
}

/// torchao gathers the local shard without its padding: ranks with fewer rows cannot lay out the matrix.
Result<void> check_even_shards(const Run& run, const PlanUnit& planned, const UnitState& u) {
  for (std::size_t i = 0; i < u.params.size(); ++i) {
    const ParamInfo& info = run.model.params[u.params[i].param.index()];
    const std::int64_t rows = info.shape[static_cast<std::size_t>(planned.sharded[i].shard_dim)];
    if (!u.params[i].narrow || rows % u.shard_size == 0) continue;
    return fail(
        {ErrorCode::Refused,
         "RuntimeError: setStorage: ... are out of bounds: float8 gathers leave padding out, and the last ranks "
         "hold fewer rows",
         {},
         info.fqn,
         "a number of rows that " + std::to_string(u.shard_size) + " ranks divide",
         std::to_string(rows),
         "set fsdp.float8_all_gather = \"auto\" or \"none\", or change the number of ranks"});
  }
  return {};
}

Result<void> prepare_unit(Run& run, UnitId id) {
  const PlanUnit& planned = run.plan.units[id.index()];
  UnitState& u = run.unit(id);
  u.id = id;
  u.is_root = id.value == 0;
  u.has_group = !planned.params.empty();
  u.shard_size = planned.shard_size;
  u.module_count = static_cast<std::int32_t>(planned.modules.size());
  const MixedPrecision& precision = run.request.table.precision[id.index()];
  u.orig_dtype = planned.orig_dtype;
  // F2-27: a reduce dtype equal to the parameters' asked one is none.
  if (precision.reduce && precision.reduce != precision.param) u.reduce_dtype = precision.reduce;
  for (std::size_t i = 0; i < planned.params.size(); ++i) {
    const ParamInfo& info = run.model.params[planned.params[i].index()];
    const ShardedParam& sharded = planned.sharded[i];
    ParamSizes p;
    p.param = planned.params[i];
    p.trainable = run.request.table.trainable[p.param.index()];
    p.tied = run.tied[p.param.index()];
    p.other_dim = sharded.shard_dim != 0;
    p.orig_dtype = info.dtype;
    p.narrow = info.gathered && itemsize(*info.gathered) == 1;
    p.dtype = info.gathered && !p.narrow ? *info.gathered  // a root of its own, which computes in that
                                         : precision.param.value_or(info.dtype);
    p.gathered = info.gathered.value_or(p.dtype);
    p.cast = p.dtype != p.orig_dtype && !p.narrow;
    p.numel = numel_of(info.shape);
    p.local_numel = numel_of(sharded.local_shape);
    p.padded_numel = numel_of(sharded.padded_local_shape);
    p.storage_bytes = p.padded_numel * u.shard_size * itemsize(p.gathered);
    p.arrives = info.part.gradient;
    p.grad_numel = gradient_numel(info);
    p.grad_bytes = p.grad_numel * itemsize(p.dtype);
    u.mixed = u.mixed || (!u.params.empty() && u.params.front().gathered != p.gathered);
    u.params.push_back(p);
  }
  u.offload_events.resize(u.params.size());
  if (const MeshDimension* experts = u.has_group ? experts_of(run.model, planned.params.front()) : nullptr) {
    if (auto done = prepare_experts(run, u, *experts); !done) return done;
  }
  if (auto even = check_even_shards(run, planned, u); !even) return even;
  const ReshardAfterForward& reshard = planned.reshard_after_forward;
  u.reshard_size = reshard.kind == ReshardAfterForward::Kind::True ? u.shard_size
                   : reshard.kind == ReshardAfterForward::Kind::GroupSize
                       ? static_cast<std::int32_t>(reshard.group_size)
                       : 0;
  return check_partial_reshard(run, planned, u);
}

void prepare_slots(Run& run) {
  const std::vector<UnitId>& unit_of = run.request.table.unit_of_param;
  run.slot_of_param.assign(run.model.params.size(), -1);
  std::vector<std::int32_t> first_slot(run.units.size());
  for (const UnitState& u : run.units) {
    first_slot[u.id.index()] = static_cast<std::int32_t>(run.slots.size());
    for (std::size_t i = 0; i < u.params.size(); ++i) {
      run.slots.push_back({u.id, static_cast<std::int32_t>(i), u.params[i].param, u.params[i].trainable, false,
                           u.params[i].grad_numel});
      run.slot_of_param[u.params[i].param.index()] = first_slot[u.id.index()] + static_cast<std::int32_t>(i);
    }
  }
  for (std::size_t p = 0; p < run.model.params.size(); ++p) {
    if (run.slot_of_param[p] >= 0) continue;
    if (unit_of[p].valid()) {  // a later name of a parameter that its unit stores once (F2-3)
      for (const SharedName& shared : run.plan.units[unit_of[p].index()].shared) {
        if (shared.name.index() == p) run.slot_of_param[p] = run.slot_of_param[shared.of.index()];
      }
    }
    const ParamId storage = run.model.storage_of(ParamId(p));
    if (run.slot_of_param[p] < 0 && storage.index() != p) run.slot_of_param[p] = run.slot_of_param[storage.index()];
    if (run.slot_of_param[p] >= 0) continue;
    run.slot_of_param[p] = static_cast<std::int32_t>(run.slots.size());
    run.slots.push_back({{},
                         -1,
                         ParamId(p),
                         static_cast<bool>(run.request.table.trainable[p]),
                         false,
                         gradient_numel(run.model.params[p])});
  }
  std::vector<bool> listed(run.slots.size(), false);
  for (std::size_t p = 0; p < run.model.params.size(); ++p) {
    const auto slot = static_cast<std::size_t>(run.slot_of_param[p]);
    if (!listed[slot]) run.zero_order.push_back(static_cast<std::int32_t>(slot));
    listed[slot] = true;
  }
  run.accumulations.assign(run.slots.size(), autograd::kNoNode);
  run.unit_of_node.assign(run.graph.nodes.size(), UnitId(0));
  for (std::size_t n = 0; n < run.graph.nodes.size(); ++n) {
    for (ModuleId m = run.graph.nodes[n].module; m.valid(); m = run.model.modules[m.index()].parent) {
      const UnitId id = run.request.table.unit_of_module[m.index()];
      if (!id.valid()) continue;
      run.unit_of_node[n] = id;
      break;
    }
  }
}

/// Without a root that is sharded the outermost units are roots: each has its own order, and a final callback of its
/// own.
Result<void> find_roots(Run& run) {
  run.root_is_unit = run.request.job.fsdp.wrap.root;
  run.one_context = run.request.job.fsdp.runtime == Runtime::Planned;
  run.root_of.assign(run.units.size(), UnitId(0));
  if (run.root_is_unit) return {};
  if (run.units.front().has_group) {
    return fail({ErrorCode::Refused,
                 "the root module has parameters, and is to be no unit: they would be whole on every rank",
                 {},
                 "fsdp.wrap.root",
                 "a root whose parameters all lie in units",
                 run.model.params[run.units.front().params.front().param.index()].fqn,
                 "leave fsdp.wrap.root at true, or name units that hold them"});
  }
  run.root_of = root_of_units(run.model, run.request.table.unit_of_module, run.units.size());
  return {};
}

// F2-16: lists by name, or a depth along the order of execution of all units but the root.
Result<void> prepare_prefetch(Run& run) {
  const PrefetchOptions& options = run.request.job.fsdp.prefetch;
  const auto fill = [&](std::int64_t depth, const std::vector<UnitId>& order, std::vector<UnitId> UnitState::*list) {
    for (std::size_t i = 0; depth > 0 && i < order.size(); ++i) {
      const std::size_t last = std::min<std::size_t>(order.size(), i + 1 + static_cast<std::size_t>(depth));
      for (std::size_t k = i + 1; k < last; ++k) (run.unit(order[i]).*list).push_back(order[k]);
    }
  };
  std::vector<UnitId> forward_order, backward_order;
  first_calls(run.request, 0, true, forward_order);
  first_calls(run.request, 0, false, backward_order);
  std::reverse(backward_order.begin(), backward_order.end());
  // As users write it, over the list of blocks: the root keeps its default.
  std::erase(forward_order, UnitId(0));
  std::erase(backward_order, UnitId(0));
  fill(options.forward_depth, forward_order, &UnitState::forward_prefetch);
  fill(options.backward_depth, backward_order, &UnitState::backward_prefetch);
  const auto named = [&](const std::map<std::string, std::vector<std::string>>& lists, const char* place,
                         std::vector<UnitId> UnitState::*list) -> Result<void> {
    for (const auto& [name, targets] : lists) {
      Result<UnitId> source = find_unit(run, name, place);
      if (!source) return tl::unexpected(source.error());
      std::vector<UnitId>& into = run.unit(*source).*list;
      into.clear();
      for (const std::string& target : targets) {
        Result<UnitId> id = find_unit(run, target, place);
        if (!id) return tl::unexpected(id.error());
        into.push_back(*id);
      }
    }
    return {};
  };
  Result<void> done = named(options.forward, "fsdp.prefetch.forward", &UnitState::forward_prefetch);
  if (done) done = named(options.backward, "fsdp.prefetch.backward", &UnitState::backward_prefetch);
  return done;
}

}  // namespace

Result<UnitId> find_unit(const Run& run, const std::string& name, const std::string& place) {
  for (std::size_t u = 0; u < run.plan.units.size(); ++u) {
    for (ModuleId module : run.plan.units[u].modules) {
      if (run.model.modules[module.index()].fqn == name) return UnitId(u);
    }
  }
  return fail({ErrorCode::NotFound,
               "there is no such unit",
               {},
               place,
               "the name of a unit's module (the root is \"\")",
               "\"" + name + "\"",
               "`foreshard plan` lists the units"});
}

/// PyTorch 2.3 and 2.4 have no shard_placement_fn.
Result<void> check_early(const Run& run) {
  for (const UnitState& u : run.units) {
    const auto other = std::find_if(u.params.begin(), u.params.end(), [](const ParamSizes& p) { return p.other_dim; });
    if (!run.copies_in_beside || other == u.params.end()) continue;
    return fail({ErrorCode::Unsupported,
                 "this release shards along the first dimension alone",
                 {},
                 "fsdp.quirks",
                 "torch-2.11 where parameters are sharded along another (shard_dim)",
                 "torch-2.4, and " + run.model.params[other->param.index()].fqn + " along another",
                 "set fsdp.quirks = \"torch-2.11\", or drop shard_dim"});
  }
  return {};
}

Result<void> prepare(Run& run) {
  const UnitTable& table = run.request.table;
  const FsdpOptions& options = run.request.job.fsdp;
  run.offload = options.cpu_offload;
  run.pin_memory = options.offload_pin_memory;
  run.separate_reduce = run.request.job.schedule.separate_reduce_communicator;
  run.copies_in_beside = options.quirks == "torch-2.4";
  run.steps_in_backward = steps_in_backward(run.request.job.train.optimizer.impl);
  for (const PlanUnit& u : run.plan.units) run.hybrid = run.hybrid || is_hybrid(u.strategy);
  run.shard_size = run.plan.units.front().shard_size;
  run.replicate_size = run.hybrid ? static_cast<std::int32_t>(table.groups.replicate.size()) : 1;
  run.units.resize(run.plan.units.size());
  auto tied = tied_when_sharded(run.model, run.request.job);
  if (!tied) return tl::unexpected(std::move(tied.error()));
  run.tied = std::move(*tied);
  for (std::size_t u = 0; u < run.units.size(); ++u) {
    Result<void> done = prepare_unit(run, UnitId(u));
    if (!done) return done;
  }
  if (Result<void> done = find_roots(run); !done) return done;
  if (const UnitId id = unit_in_reentrant(run.request); id.valid()) {
    return fail({ErrorCode::Unsupported,
                 "units inside of what a reentrant checkpoint surrounds cannot be planned",
                 {},
                 "unit \"" + run.plan.units[id.index()].name + "\"",
                 "checkpointing.placement = \"inside\", or checkpointing.reentrant = false",
                 "a reentrant checkpoint around the unit",
                 "the non-reentrant form is the one that PyTorch recommends"});
  }
  if (auto early = check_early(run); !early) return early;
  prepare_slots(run);
  return prepare_prefetch(run);
}

}  // namespace foreshard::fsdp2
