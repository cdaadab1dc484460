#include "core/plan/units/units.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/model/mesh_dimension.h"
#include "core/plan/units/flat_layout.h"
#include "core/plan/units/groups.h"
#include "core/plan/units/module_tree.h"
#include "core/plan/units/name_patterns.h"
#include "core/plan/units/shard_layout.h"
#include "core/plan/units/unit_options.h"
#include "core/plan/units/unit_params.h"
#include "core/plan/units/unit_selection.h"
#include "core/plan/units/unit_traps.h"
#include "core/runtime_layouts.h"

namespace foreshard {
namespace {

/// Ranks over which FSDP shards and replicates.
std::int32_t data_ranks(const Job& job) { return static_cast<std::int32_t>(job.cluster.world_size / job.mesh.tensor); }

/// The steps of build_units share these; units are in build order with the root last until order_units.
struct Draft {
  const Model& model;
  const Job& job;
  ModuleTree tree;
  Participation part;
  UnitSelection selection;
  std::vector<UnitParams> params;
  std::vector<UnitOptions> options;
  std::vector<std::string> warnings;

  /// Ranks of the group with this parameter's experts; 0: it is no expert's.
  std::int64_t expert_ranks(ParamId param) const {
    const MeshDimension* dimension = experts_of(model, param);
    return dimension == nullptr ? 0 : static_cast<std::int64_t>(dimension->ranks.size());
  }
  /// Ranks side by side that hold all experts; 0: it is no expert's.
  std::int64_t ranks_of_experts(ParamId param) const {
    const MeshDimension* dimension = experts_of(model, param);
    return dimension == nullptr ? 0 : ranks_of_all_experts(*dimension);
  }
  bool fsdp1() const { return job.fsdp.runtime == Runtime::Fsdp1; }
  bool fsdp2() const { return has_fsdp2_layouts(job.fsdp.runtime); }
  const std::string& name(std::size_t unit) const {
    return model.modules[selection.units[unit].modules[0].index()].fqn;
  }
  Ownership ownership() const {
    if (fsdp2()) return Ownership::PerParameter;
    return fsdp1() && !job.fsdp.use_orig_params ? Ownership::FlatNames : Ownership::FlatTensors;
  }
};

Error unit_error(ErrorCode code, const std::string& unit, std::string message, std::string expected, std::string got,
                 std::string hint) {
  return {code,           std::move(message), {}, fmt::format("unit {}", shown_name(unit)), std::move(expected),
          std::move(got), std::move(hint)};
}

// ---------------------------------------------------------------- one unit

/// F2-13: a group size of 1 keeps everything, of the whole shard group nothing.
Result<ReshardAfterForward> resolve_reshard(Draft& d, std::size_t unit, std::int32_t shard_size) {
  ReshardAfterForward reshard = d.options[unit].reshard;
  if (reshard.kind != ReshardAfterForward::Kind::GroupSize) return ReshardAfterForward{reshard.kind, 0};
  const std::int64_t k = reshard.group_size;
  if (k < 1 || k > shard_size || shard_size % k != 0) {
    return fail(unit_error(ErrorCode::OutOfRange, d.name(unit),
                           "reshard_after_forward must divide the shard group (F2-13; PyTorch: ValueError)",
                           fmt::format("a factor of {}", shard_size), std::to_string(k), {}));
  }
  if (k == 1) {
    d.warnings.push_back(fmt::format("unit {}: reshard_after_forward = 1 keeps the parameters as false does (F2-13)",
                                     shown_name(d.name(unit))));
    return ReshardAfterForward{ReshardAfterForward::Kind::False, 0};
  }
  if (k == shard_size) return ReshardAfterForward{ReshardAfterForward::Kind::True, 0};
  return reshard;
}

Result<void> check_flat_params(const Draft& d, const std::string& unit, const std::vector<ParamId>& params) {
  std::vector<FlatCandidate> candidates;
  candidates.reserve(params.size());
  for (const ParamId param : params) {
    const ParamInfo& one = d.model.params[d.model.storage_of(param).index()];
    candidates.push_back({one.fqn, one.dtype, d.part.trainable[param.index()], one.shape.empty()});
  }
  return check_flat_parameter(unit, candidates, d.job.fsdp.use_orig_params);
}

/// F2-27: one original dtype over the trainable parameters.
Result<DType> per_parameter_dtype(const Draft& d, const std::string& unit, const std::vector<ParamId>& params) {
  std::optional<DType> dtype;
  for (ParamId param : params) {
    const ParamInfo& one = d.model.params[d.model.storage_of(param).index()];
    if (!d.part.trainable[param.index()]) continue;
    if (dtype && *dtype != one.dtype) {
      return fail(
          unit_error(ErrorCode::Inconsistent, unit,
                     fmt::format("trainable parameters of one unit need one dtype (F2-27), {} differs", one.fqn),
                     std::string(dtype_name(*dtype)), std::string(dtype_name(one.dtype)),
                     "freeze it or give it a unit of its own"));
    }
    dtype = one.dtype;
  }
  if (!dtype) dtype = d.model.params[d.model.storage_of(params[0]).index()].dtype;
  return *dtype;
}

void lay_out_flat(const Draft& d, PlanUnit& unit) {
  std::vector<FlatParam> params;
  for (ParamId param : unit.params) params.push_back({param, numel_of(d.model.params[param.index()].shape)});
  const FlatLayout layout = flat_layout(params, flat_alignment(unit.param_dtype, d.job.fsdp.use_orig_params),
                                        unit.shard_size, unit.strategy != Strategy::NoShard);
  unit.flat = layout.entries;
  unit.flat_numel = layout.numel;
  unit.shard_numel = layout.shard_numel;
  unit.padded_numel = layout.padded_numel;
  unit.align_padding = layout.align_padding;
  unit.world_padding = layout.world_padding;
}

/// The dimension a unit's parameter is sharded on; `used` collects the patterns that matched.
std::int32_t shard_dim_of(const Draft& d, std::size_t unit, ParamId param, std::int64_t ranks,
                          std::vector<std::string>& used) {
  // torchtitan: along the next dimension where a shard group has more ranks than there are experts.
  const MeshPart& part = d.model.params[param.index()].part;
  const bool padded = d.expert_ranks(param) > 0 && part.dim >= 0 && d.model.params[param.index()].shape.size() > 1 &&
                      ranks > part.whole;
  std::int32_t dim = padded ? 1 : 0;
  const std::string& fqn = d.model.params[param.index()].fqn;
  const std::string prefix = d.name(unit).empty() ? std::string() : d.name(unit) + ".";
  const std::string_view relative =
      fqn.starts_with(prefix) ? std::string_view(fqn).substr(prefix.size()) : std::string_view(fqn);
  for (const auto& [pattern, value] : d.options[unit].shard_dim) {
    if (!matches_pattern(pattern, fqn) && !matches_pattern(pattern, relative)) continue;
    // Beyond any tensor's rank the exact number does not matter: shard_param refuses it.
    dim = static_cast<std::int32_t>(std::clamp<std::int64_t>(value, -64, 64));
    used.push_back(pattern);
  }
  return dim;
}

Result<void> lay_out_sharded(const Draft& d, std::size_t index, const RankGroups& groups, PlanUnit& unit) {
  std::vector<std::int32_t> ranks = groups.groups.shard;
  if (const std::int64_t experts = d.ranks_of_experts(unit.params.front()); experts > 0) {
    auto same = expert_groups(d.job.cluster, is_hybrid(unit.strategy), experts, d.job.mesh.tensor);
    if (!same) return tl::unexpected(same.error());
    ranks = std::move(same->groups.shard);
  }
  const auto position =
      std::find(ranks.begin(), ranks.end(), static_cast<std::int32_t>(d.job.cluster.rank)) - ranks.begin();
  const std::int64_t shard_ranks = unit.shard_size * std::max<std::int64_t>(d.expert_ranks(unit.params.front()), 1);
  std::vector<std::string> used;
  for (ParamId param : unit.params) {
    auto sharded =
        shard_param(d.model, param, shard_dim_of(d, index, param, shard_ranks, used), unit.shard_size, position);
    if (!sharded) return tl::unexpected(sharded.error());
    unit.shard_numel += numel_of(sharded->padded_local_shape);
    unit.sharded.push_back(std::move(*sharded));
  }
  for (const auto& [pattern, dim] : d.options[index].shard_dim) {
    if (std::find(used.begin(), used.end(), pattern) != used.end()) continue;
    std::vector<std::string_view> names;
    for (ParamId param : unit.params) names.push_back(d.model.params[param.index()].fqn);
    auto none = match_names(pattern, names, fmt::format("fsdp.overrides, shard_dim of unit {}", shown_name(unit.name)),
                            "parameter of the unit");
    return tl::unexpected(none.error());
  }
  unit.flat_numel = unit.numel;
  unit.padded_numel = unit.shard_numel * unit.shard_size;
  return {};
}

Result<void> resolve_dtypes(const Draft& d, std::size_t index, PlanUnit& unit) {
  if (d.fsdp1()) {
    if (auto ok = check_flat_params(d, unit.name, unit.params); !ok) return ok;
    unit.orig_dtype = d.model.params[unit.params[0].index()].dtype;
  } else {
    auto dtype = per_parameter_dtype(d, unit.name, unit.params);
    if (!dtype) return tl::unexpected(dtype.error());
    unit.orig_dtype = *dtype;
  }
  const MixedPrecision& precision = d.options[index].precision;  // M1, F2-27
  unit.param_dtype = precision.param.value_or(unit.orig_dtype);
  unit.reduce_dtype = precision.reduce.value_or(unit.param_dtype);
  unit.keep_low_precision_grads = d.fsdp1() && precision.keep_low_precision_grads;
  return {};
}

Result<PlanUnit> make_unit(Draft& d, std::size_t index, const RankGroups& groups) {
  PlanUnit unit;
  unit.name = d.name(index);
  unit.modules = d.selection.units[index].modules;
  unit.strategy = d.options[index].strategy;
  unit.params = d.params[index].params;
  unit.shared = d.params[index].shared;
  unit.shard_size = is_hybrid(unit.strategy) ? groups.shard_size : data_ranks(d.job);
  if (!unit.params.empty()) {
    const std::int64_t ranks = d.expert_ranks(unit.params.front());
    for (const ParamId param : unit.params) {
      if (d.expert_ranks(param) == ranks) continue;
      return fail(
          unit_error(ErrorCode::Inconsistent, unit.name,
                     "experts and parameters that all ranks hold cannot be one unit: they are sharded over other "
                     "ranks",
                     "units of experts alone", d.model.params[param.index()].fqn,
                     "change fsdp.wrap.units, or set mesh.expert = 1"));
    }
    if (ranks > 0) {  // over the tensor dimension's ranks too
      const std::int64_t all = unit.shard_size * d.job.mesh.tensor;
      unit.shard_size = static_cast<std::int32_t>(all / d.ranks_of_experts(unit.params.front()));
    }
  }
  if (d.job.fsdp.runtime == Runtime::None) unit.shard_size = 1;
  if (d.fsdp1()) unit.strategy = clamp_strategy(unit.strategy, unit.shard_size);
  if (d.fsdp2()) {
    auto reshard = resolve_reshard(d, index, unit.shard_size);
    if (!reshard) return tl::unexpected(reshard.error());
    unit.reshard_after_forward = *reshard;
  }
  unit.wrapped_twice = d.fsdp1() && d.options[index].reshard.kind == ReshardAfterForward::Kind::True;
  for (ParamId param : unit.params) unit.numel += numel_of(d.model.params[param.index()].shape);
  unit.requires_grad =
      std::any_of(unit.params.begin(), unit.params.end(), [&](ParamId p) { return d.part.trainable[p.index()]; });
  if (unit.params.empty()) return unit;
  if (auto ok = resolve_dtypes(d, index, unit); !ok) return tl::unexpected(ok.error());
  if (d.fsdp1()) {
    lay_out_flat(d, unit);
  } else if (d.fsdp2()) {
    if (auto ok = lay_out_sharded(d, index, groups, unit); !ok) return tl::unexpected(ok.error());
  } else {
    unit.flat_numel = unit.padded_numel = unit.shard_numel = unit.numel;
  }
  return unit;
}

// ---------------------------------------------------------------- the table

/// W9: registration DFS over module objects, a list of modules where the first of them is met. Returns for each build
/// index its place in handle order.
std::vector<std::size_t> handle_order(const Draft& d) {
  std::vector<std::size_t> unit_of(d.model.modules.size(), d.selection.units.size());
  for (std::size_t u = 0; u < d.selection.units.size(); ++u) {
    for (ModuleId module : d.selection.units[u].modules) unit_of[module.index()] = u;
  }
  constexpr std::size_t kUnplaced = static_cast<std::size_t>(-1);
  std::vector<std::size_t> place(d.selection.units.size(), kUnplaced);
  std::size_t next = 0;
  for (ModuleId module : objects_below(d.tree, kRoot)) {
    const std::size_t unit = unit_of[module.index()];
    if (unit < place.size() && place[unit] == kUnplaced) place[unit] = next++;
  }
  return place;
}

void fill_indices(const Draft& d, UnitTable& table) {
  table.unit_of_param.resize(d.model.params.size());
  table.unit_of_module.resize(d.model.modules.size());
  std::vector<UnitId> of_storage(d.model.params.size()), of_object(d.model.modules.size());
  for (UnitId unit : table.build_order) {
    const PlanUnit& one = table.units[unit.index()];
    for (ModuleId module : one.modules) of_object[module.index()] = unit;
    for (ParamId param : one.params) {
      table.unit_of_param[param.index()] = unit;
      UnitId& first = of_storage[d.model.storage_of(param).index()];
      if (!first.valid()) first = unit;
    }
    for (const SharedName& shared : one.shared) table.unit_of_param[shared.name.index()] = unit;
  }
  for (std::size_t p = 0; p < table.unit_of_param.size(); ++p) {  // stale names (trap 3): whoever holds the tensor
    if (!table.unit_of_param[p].valid()) table.unit_of_param[p] = of_storage[d.model.storage_of(ParamId(p)).index()];
  }
  for (std::size_t m = 0; m < table.unit_of_module.size(); ++m) {  // fsdp2 hooks the object, fsdp1 wraps a registration
    const ModuleId object = d.tree.object_of[m];
    if (d.fsdp2() || object == ModuleId(m)) table.unit_of_module[m] = of_object[object.index()];
  }
}

std::vector<std::string> joined_units(const Draft& d, const std::function<bool(std::size_t)>& which) {
  std::vector<std::string> names;
  for (std::size_t u = 0; u < d.selection.units.size(); ++u) {
    if (which(u)) names.push_back(shown_name(d.name(u)));
  }
  return names;
}

/// S3, S4, W5, W7: what PyTorch warns of while it builds fsdp1 units.
void warn_fsdp1(const Draft& d, UnitTable& table, const RankGroups& groups) {
  const auto warn = [&](const char* text, const std::vector<std::string>& units) {
    if (!units.empty()) table.warnings.push_back(fmt::format("{}: units {}", text, fmt::join(units, ", ")));
  };
  const auto ranks_of = [&](std::size_t u) {
    return is_hybrid(d.options[u].strategy) ? groups.shard_size : data_ranks(d.job);
  };
  warn("a shard group of one turns sharding into NO_SHARD (S3)",
       joined_units(d, [&](std::size_t u) { return ranks_of(u) == 1 && d.options[u].strategy != Strategy::NoShard; }));
  warn("NO_SHARD is deprecated, plain data parallel is recommended (S4)",
       joined_units(d, [&](std::size_t u) { return d.options[u].strategy == Strategy::NoShard; }));
  warn("a bare ModuleList or ModuleDict has no forward: its hooks never fire and it is never gathered (W5)",
       joined_units(d, [&](std::size_t u) {
         return is_bare_container(d.model.modules[d.selection.units[u].modules[0].index()]);
       }));
  if (!d.selection.by_policy_object || !d.job.fsdp.use_orig_params) return;
  warn("frozen and trainable parameters share a unit: its gradient covers all of its elements (W7)",
       joined_units(d, [&](std::size_t u) {
         const auto& params = d.params[u].params;
         const auto trains = [&](ParamId p) { return d.part.trainable[p.index()]; };
         return d.selection.units[u].modules[0] != kRoot && std::any_of(params.begin(), params.end(), trains) &&
                !std::all_of(params.begin(), params.end(), trains);
       }));
}

Result<Draft> make_draft(const Model& model, const Job& job) {
  auto tree = build_module_tree(model);
  if (!tree) return tl::unexpected(tree.error());
  auto part = read_participation(model, *tree, job);
  if (!part) return tl::unexpected(part.error());
  if (auto parts = parts_of_params(model, *tree, job); !parts) return tl::unexpected(parts.error());
  auto selection = select_units(model, *tree, job, *part);
  if (!selection) return tl::unexpected(selection.error());
  Draft d{model, job, std::move(*tree), std::move(*part), std::move(*selection), {}, {}, {}};
  d.selection.units.push_back({{kRoot}, false});
  d.params = assign_params(model, d.tree, d.selection.units, d.part.ignored_params, d.ownership());
  std::vector<std::string_view> names;
  for (std::size_t u = 0; u < d.selection.units.size(); ++u) names.push_back(d.name(u));
  auto options = read_unit_options(job, names);
  if (!options) return tl::unexpected(options.error());
  d.options = std::move(*options);
  for (std::size_t u = 0; u < d.options.size(); ++u) {
    if (d.selection.units[u].full_precision) d.options[u].precision = MixedPrecision::none();  // W6
  }
  return d;
}

Result<RankGroups> groups_of(const Draft& d) {
  const bool hybrid =
      std::any_of(d.options.begin(), d.options.end(), [](const UnitOptions& o) { return is_hybrid(o.strategy); });
  auto groups = rank_groups(d.job.cluster, hybrid, d.job.mesh.tensor);
  if (!groups || d.job.fsdp.runtime != Runtime::None) return groups;
  // Plain data parallel: nothing is sharded, every rank is a replica.
  std::swap(groups->groups.shard, groups->groups.replicate);
  std::swap(groups->shard_size, groups->replicate_size);
  return groups;
}

}  // namespace

Result<void> check_flat_parameter(const std::string& unit, std::span<const FlatCandidate> params,
                                  bool use_orig_params) {
  const auto refuse = [&](ErrorCode code, std::string text, std::string expected, std::string got, std::string hint) {
    return fail(
        unit_error(code, unit, std::move(text) + " (H2)", std::move(expected), std::move(got), std::move(hint)));
  };
  if (params.empty())
    return refuse(ErrorCode::Inconsistent, "a flat parameter holds a tensor", "at least one", "none", {});
  const FlatCandidate& first = params.front();
  for (const FlatCandidate& one : params) {
    if (one.is_flat) {
      return refuse(ErrorCode::Inconsistent, one.name + " is a flat parameter already", "a parameter of a module",
                    "a flat parameter", "wrap every module once");
    }
    if (!is_floating(first.dtype)) {
      return refuse(ErrorCode::WrongType, "integer parameter " + first.name + " cannot be flattened",
                    "a floating-point dtype", std::string(dtype_name(first.dtype)), "list it in fsdp.ignored");
    }
    if (one.dtype != first.dtype) {
      return refuse(ErrorCode::Inconsistent,
                    fmt::format("parameters of one unit need one dtype, {} differs (ValueError: Must flatten tensors "
                                "with uniform dtype but got torch.{} and torch.{})",
                                one.name, dtype_name(first.dtype), dtype_name(one.dtype)),
                    std::string(dtype_name(first.dtype)), std::string(dtype_name(one.dtype)),
                    "give it a unit of its own, or list it in fsdp.ignored");
    }
    if (!use_orig_params && one.trainable != first.trainable) {
      return refuse(ErrorCode::Inconsistent,
                    "frozen and trainable parameters in one unit need use_orig_params, W7 (ValueError: FSDP does not "
                    "support wrapping such modules when use_orig_params=False)",
                    "one requires_grad", one.name + " differs",
                    "set fsdp.use_orig_params = true, or wrap the frozen modules apart");
    }
    if (one.device != first.device) {
      return refuse(ErrorCode::Inconsistent, "parameters of one unit lie on one device, " + one.name + " differs",
                    first.device, one.device, "move the module to one device first");
    }
    if (one.scalar) {
      return refuse(ErrorCode::Inconsistent, "scalar parameter " + one.name + " cannot be flattened", "one dimension",
                    "none", "give it shape [1], or list it in fsdp.ignored");
    }
  }
  return {};
}

Result<UnitTable> build_units(const Model& model, const Job& job) {
  auto draft = make_draft(model, job);
  if (!draft) return tl::unexpected(draft.error());
  Draft& d = *draft;
  auto groups = groups_of(d);
  if (!groups) return tl::unexpected(groups.error());

  UnitTable table;
  const std::vector<std::size_t> place = handle_order(d);
  table.units.resize(place.size());
  table.precision.resize(place.size());
  for (std::size_t u = 0; u < place.size(); ++u) {
    auto unit = make_unit(d, u, *groups);
    if (!unit) return tl::unexpected(unit.error());
    table.units[place[u]] = std::move(*unit);
    table.precision[place[u]] = d.options[u].precision;
    table.build_order.push_back(UnitId(place[u]));
  }
  table.groups = groups->groups;
  const DivideFactors divide = divide_factors(std::int64_t{groups->shard_size} * groups->replicate_size);
  table.pre_divide = divide.pre;
  table.post_divide = divide.post;
  table.trainable = d.part.trainable;
  fill_indices(d, table);

  for (auto* from : {&d.part.warnings, &d.selection.warnings, &d.warnings})
    table.warnings.insert(table.warnings.end(), from->begin(), from->end());
  if (d.fsdp1()) warn_fsdp1(d, table, *groups);
  std::vector<TiedAcrossUnits> tied;
  for (const TiedParam& one :
       tied_across_units(model, d.tree, d.selection.units, d.part.ignored_params, d.ownership())) {
    TiedAcrossUnits by_id{one.storage, {}};
    for (std::size_t unit : one.units) by_id.units.push_back(UnitId(place[unit]));
    tied.push_back(std::move(by_id));
  }
  table.traps = unit_traps(model, job, table, *groups, tied);
  return table;
}

}  // namespace foreshard
