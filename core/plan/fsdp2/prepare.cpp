// Before the first iteration: sizes and switches of every unit, and what fully_shard refuses (F2-1, F2-3, F2-12, F2-16,
// F2-27).
#include <algorithm>

#include "core/model/module_kind.h"
#include "core/plan/fsdp2/fsdp2_runtime.h"
#include "core/plan/units/groups.h"

namespace foreshard::fsdp2 {
namespace {

bool has_matrix(const ModuleInfo& module) {
  const ModuleKind kind = kind_of(module);
  return kind == ModuleKind::Linear || kind == ModuleKind::Convolution;
}

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

/// A unit whose hooks would run inside a reentrant checkpoint; invalid if there is none.
UnitId unit_in_reentrant(const PlanRequest& request) {
  std::vector<bool> inside(request.graph.calls.size(), false);
  for (std::size_t c = 0; c < request.graph.calls.size(); ++c) {  // callers stand before what they call
    const GraphCall& call = request.graph.calls[c];
    const bool region = call.checkpoint == CheckpointKind::Reentrant;
    const UnitId id = call.region < 0 ? request.table.unit_of_module[call.module.index()] : UnitId();
    if (id.valid() && (inside[c] || (region && !call.checkpoint_inside))) return id;
    for (const GraphStep& step : call.steps) {
      if (step.is_call && (inside[c] || region)) inside[static_cast<std::size_t>(step.index)] = true;
    }
  }
  return {};
}

}  // namespace

Fsdp2Runtime::Fsdp2Runtime(const PlanRequest& request, Plan& plan)
    : request_(request),
      model_(request.model),
      graph_(request.graph),
      plan_(plan),
      node_autograd_(request.model, request.graph, request.table.trainable),
      out_(plan),
      autograd_(out_.event_counter()) {}

Result<UnitId> Fsdp2Runtime::find_unit(const std::string& name, const std::string& place) const {
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    for (ModuleId module : plan_.units[u].modules) {
      if (model_.modules[module.index()].fqn == name) return UnitId(u);
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

Result<void> Fsdp2Runtime::prepare() {
  const UnitTable& table = request_.table;
  const FsdpOptions& options = request_.job.fsdp;
  offload_ = options.cpu_offload;
  pin_memory_ = options.offload_pin_memory;
  for (const PlanUnit& u : plan_.units) hybrid_ = hybrid_ || is_hybrid(u.strategy);
  shard_size_ = plan_.units.front().shard_size;
  replicate_size_ = hybrid_ ? static_cast<std::int32_t>(table.groups.replicate.size()) : 1;
  units_.resize(plan_.units.size());
  for (std::size_t u = 0; u < units_.size(); ++u) {
    Result<void> done = prepare_unit(UnitId(u));
    if (!done) return done;
  }
  if (const UnitId id = unit_in_reentrant(request_); id.valid()) {
    return fail({ErrorCode::Unsupported,
                 "fsdp2 units inside a reentrant checkpoint cannot be planned",
                 {},
                 "unit \"" + plan_.units[id.index()].name + "\"",
                 "checkpointing.placement = \"inside\", or checkpointing.reentrant = false",
                 "a reentrant checkpoint around the unit",
                 "the non-reentrant form is the one that PyTorch recommends"});
  }
  prepare_slots();
  uses_linear_.assign(model_.modules.size(), false);
  for (std::size_t m = model_.modules.size(); m-- > 0;) {  // parents stand before their children
    if (has_matrix(model_.modules[m])) uses_linear_[m] = true;
    if (uses_linear_[m] && model_.modules[m].parent.valid()) uses_linear_[model_.modules[m].parent.index()] = true;
  }
  for (std::size_t m = 0; m < model_.modules.size(); ++m) {
    if (model_.modules[m].alias_of.valid()) continue;
    const UnitId id = table.unit_of_module[m];
    if (id.valid()) states_in_order_.push_back(id);
  }
  tensors_.resize(graph_.tensors.size());
  return prepare_prefetch();
}

Result<void> Fsdp2Runtime::prepare_unit(UnitId id) {
  const PlanUnit& planned = plan_.units[id.index()];
  UnitState& u = unit(id);
  u.id = id;
  u.is_root = id.value == 0;
  u.has_group = !planned.params.empty();
  u.module_count = static_cast<std::int32_t>(planned.modules.size());
  const MixedPrecision& precision = request_.table.precision[id.index()];
  u.orig_dtype = planned.orig_dtype;
  // F2-27: a reduce dtype equal to the parameters' asked one is none.
  if (precision.reduce && precision.reduce != precision.param) u.reduce_dtype = precision.reduce;
  for (std::size_t i = 0; i < planned.params.size(); ++i) {
    const ParamInfo& info = model_.params[planned.params[i].index()];
    const ShardedParam& sharded = planned.sharded[i];
    ParamSizes p;
    p.param = planned.params[i];
    p.trainable = request_.table.trainable[p.param.index()];
    p.other_dim = sharded.shard_dim != 0;
    p.orig_dtype = info.dtype;
    p.dtype = precision.param.value_or(info.dtype);
    p.cast = p.dtype != p.orig_dtype;
    p.numel = numel_of(info.shape);
    p.local_numel = numel_of(sharded.local_shape);
    p.padded_numel = numel_of(sharded.padded_local_shape);
    p.storage_bytes = p.padded_numel * shard_size_ * itemsize(p.dtype);
    p.grad_bytes = p.numel * itemsize(p.dtype);
    u.mixed = u.mixed || (!u.params.empty() && u.params.front().dtype != p.dtype);
    u.params.push_back(p);
  }
  u.offload_events.resize(u.params.size());
  const ReshardAfterForward& reshard = planned.reshard_after_forward;
  u.reshard_size = reshard.kind == ReshardAfterForward::Kind::True ? shard_size_
                   : reshard.kind == ReshardAfterForward::Kind::GroupSize
                       ? static_cast<std::int32_t>(reshard.group_size)
                       : 0;
  const bool partial = u.reshard_size > 0 && u.reshard_size < shard_size_;
  if (partial && std::any_of(u.params.begin(), u.params.end(), [](const ParamSizes& p) { return p.other_dim; })) {
    return fail({ErrorCode::Unsupported,
                 "a partial reshard keeps rows, so it needs shards of the first dimension",
                 {},
                 "unit \"" + planned.name + "\"",
                 "shard_dim 0, or reshard_after_forward true or false",
                 "reshard_after_forward " + std::to_string(u.reshard_size),
                 "see F2-13"});
  }
  return {};
}

void Fsdp2Runtime::prepare_slots() {
  const std::vector<UnitId>& unit_of = request_.table.unit_of_param;
  slot_of_param_.assign(model_.params.size(), -1);
  std::vector<std::int32_t> first_slot(units_.size());
  for (const UnitState& u : units_) {
    first_slot[u.id.index()] = static_cast<std::int32_t>(slots_.size());
    for (std::size_t i = 0; i < u.params.size(); ++i) {
      slots_.push_back({u.id, static_cast<std::int32_t>(i), u.params[i].param, u.params[i].trainable, false});
      slot_of_param_[u.params[i].param.index()] = first_slot[u.id.index()] + static_cast<std::int32_t>(i);
    }
  }
  for (std::size_t p = 0; p < model_.params.size(); ++p) {
    if (slot_of_param_[p] >= 0) continue;
    if (unit_of[p].valid()) {  // a later name of a parameter that its unit stores once (F2-3)
      for (const SharedName& shared : plan_.units[unit_of[p].index()].shared) {
        if (shared.name.index() == p) slot_of_param_[p] = slot_of_param_[shared.of.index()];
      }
    }
    const ParamId storage = model_.storage_of(ParamId(p));
    if (slot_of_param_[p] < 0 && storage.index() != p) slot_of_param_[p] = slot_of_param_[storage.index()];
    if (slot_of_param_[p] >= 0) continue;
    slot_of_param_[p] = static_cast<std::int32_t>(slots_.size());
    slots_.push_back({{}, -1, ParamId(p), static_cast<bool>(request_.table.trainable[p]), false});
  }
  std::vector<bool> listed(slots_.size(), false);
  for (std::size_t p = 0; p < model_.params.size(); ++p) {
    const auto slot = static_cast<std::size_t>(slot_of_param_[p]);
    if (!listed[slot]) zero_order_.push_back(static_cast<std::int32_t>(slot));
    listed[slot] = true;
  }
  accumulations_.assign(slots_.size(), autograd::kNoNode);
  pieces_.assign(slots_.size(), ParamId());
  unit_of_node_.assign(graph_.nodes.size(), UnitId(0));
  for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
    for (ModuleId m = graph_.nodes[n].module; m.valid(); m = model_.modules[m.index()].parent) {
      const UnitId id = request_.table.unit_of_module[m.index()];
      if (!id.valid()) continue;
      unit_of_node_[n] = id;
      break;
    }
  }
}

// F2-16: lists by name, or a depth along the order of execution of all units but the root.
Result<void> Fsdp2Runtime::prepare_prefetch() {
  const PrefetchOptions& options = request_.job.fsdp.prefetch;
  const auto fill = [&](std::int64_t depth, const std::vector<UnitId>& order, std::vector<UnitId> UnitState::*list) {
    for (std::size_t i = 0; depth > 0 && i < order.size(); ++i) {
      const std::size_t last = std::min<std::size_t>(order.size(), i + 1 + static_cast<std::size_t>(depth));
      for (std::size_t k = i + 1; k < last; ++k) (unit(order[i]).*list).push_back(order[k]);
    }
  };
  std::vector<UnitId> forward_order, backward_order;
  first_calls(request_, 0, true, forward_order);
  first_calls(request_, 0, false, backward_order);
  std::reverse(backward_order.begin(), backward_order.end());
  // As users write it, over the list of blocks: the root keeps its default.
  std::erase(forward_order, UnitId(0));
  std::erase(backward_order, UnitId(0));
  fill(options.forward_depth, forward_order, &UnitState::forward_prefetch);
  fill(options.backward_depth, backward_order, &UnitState::backward_prefetch);
  const auto named = [&](const std::map<std::string, std::vector<std::string>>& lists, const char* place,
                         std::vector<UnitId> UnitState::*list) -> Result<void> {
    for (const auto& [name, targets] : lists) {
      Result<UnitId> source = find_unit(name, place);
      if (!source) return tl::unexpected(source.error());
      std::vector<UnitId>& into = unit(*source).*list;
      into.clear();
      for (const std::string& target : targets) {
        Result<UnitId> id = find_unit(target, place);
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

// F2-5: made by the first root forward, the all-reduce stream also without replicas.
void Fsdp2Runtime::lazy_init() {
  if (initialised_) return;
  initialised_ = true;
  plan_.streams = {{Stream::C, -1}, {Stream::A, -1}, {Stream::S, -1}, {Stream::H, 0}};
}

}  // namespace foreshard::fsdp2
