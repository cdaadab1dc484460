#include "core/plan/actions/state_dict.h"

#include <algorithm>

#include "core/job/optimizer_facts.h"
#include "core/model/mesh_dimension.h"
#include "core/plan/actions/mesh_state.h"
#include "core/plan/actions/mesh_way.h"
#include "core/runtime_layouts.h"

namespace foreshard {
namespace {

using actions::is_on_mesh;

const PlanUnit* unit_of(const StateSource& source, ParamId param, UnitId& id) {
  id = source.table.unit_of_param[source.model.storage_of(param).index()];
  return id.valid() ? &source.table.units[id.index()] : nullptr;
}

bool shards(const PlanUnit& unit) { return unit.strategy != Strategy::NoShard; }

std::string flat_key(const PlanUnit& unit) { return (unit.name.empty() ? "" : unit.name + ".") + "_flat_param"; }

/// K1, local: the flat shard without its padding; a rank that holds padding only lists that.
StateEntry flat_entry(const PlanUnit& unit, UnitId id, std::int64_t rank) {
  StateEntry entry;
  entry.key = flat_key(unit);
  entry.unit = id;
  entry.dtype = unit.orig_dtype;
  entry.shape = {unit.flat_numel};
  entry.sharded = true;
  const Numel begin = unit.shard_numel * rank;
  const Numel real = std::clamp<Numel>(unit.flat_numel - begin, 0, unit.shard_numel);
  entry.offset = {begin};
  entry.local = {real > 0 ? real : unit.shard_numel};
  return entry;
}

/// H6: elements of one parameter in the rank's range.
Numel numel_in_shard(const PlanUnit& unit, ParamId param, std::int64_t rank) {
  const Numel begin = unit.shard_numel * rank;
  for (const FlatEntry& entry : unit.flat) {
    if (entry.param != param) continue;
    const Numel end = std::min(begin + unit.shard_numel, entry.offset + entry.numel);
    return std::max<Numel>(0, end - std::max(begin, entry.offset));
  }
  return 0;
}

StateEntry whole_param(const StateSource& source, ParamId param, const PlanUnit* unit, UnitId id) {
  const ParamInfo& info = source.model.params[param.index()];
  StateEntry entry;
  entry.key = info.fqn;
  entry.unit = id;
  entry.param = param;
  entry.dtype = unit != nullptr ? unit->orig_dtype : info.dtype;
  entry.shape = whole_shape(info);
  return entry;
}

/// FSDP cuts what is there: of a parameter on a mesh this rank's part.
StateEntry dtensor(StateEntry entry, const PlanUnit& unit, const ParamInfo& stored, ParamId storage,
                   std::int64_t rank) {
  const std::int64_t world = unit.shard_size;
  for (const ShardedParam& sharded : unit.sharded) {
    if (sharded.param != storage) continue;
    entry.sharded = true;
    entry.local = sharded.local_shape;
    entry.offset.assign(entry.shape.size(), 0);
    if (stored.part.dim >= 0) entry.offset[static_cast<std::size_t>(stored.part.dim)] = stored.part.begin;
    const auto dim = static_cast<std::size_t>(sharded.shard_dim);
    if (dim < entry.shape.size()) {
      const std::int64_t rows = (stored.shape[dim] + world - 1) / world;
      entry.offset[dim] += std::min(rows * rank, stored.shape[dim]);
    }
  }
  return entry;
}

/// One parameter in the dict of `kind`; nothing where only the flat parameter is listed.
void add_param(const StateSource& source, StateKind kind, ParamId param, std::vector<StateEntry>& entries) {
  UnitId id;
  const PlanUnit* unit = unit_of(source, param, id);
  StateEntry entry = whole_param(source, param, unit, id);
  const std::int64_t rank = source.rank_in_group();
  const ParamId storage = source.model.storage_of(param);
  const ParamInfo& stored = source.model.params[storage.index()];
  const bool fsdp1 = source.job.fsdp.runtime == Runtime::Fsdp1;
  const bool as_full = kind == StateKind::Full || unit == nullptr || !shards(*unit);
  // full_tensor() of fsdp2's full kind; else a DTensor of the mesh's dimension alone.
  const bool part = as_full && is_on_mesh(stored) && (fsdp1 || kind == StateKind::Sharded);
  if (part) entry = mesh_entry(source, entry, storage);
  if (as_full || source.job.fsdp.runtime == Runtime::None) {
    entries.push_back(std::move(entry));
    return;
  }
  if (has_fsdp2_layouts(source.job.fsdp.runtime)) {
    entries.push_back(dtensor(std::move(entry), *unit, stored, storage, source.rank_in(*unit)));
    return;
  }
  if (kind == StateKind::Sharded && is_on_mesh(stored)) {
    entries.push_back(mesh_chunk(source, std::move(entry), storage, *unit));
    return;
  }
  if (kind == StateKind::Sharded) {
    entries.push_back(chunked(std::move(entry), unit->shard_size, rank));
    return;
  }
  const bool listed = std::any_of(entries.begin(), entries.end(),
                                  [&](const StateEntry& other) { return other.unit == id && !other.param.valid(); });
  if (!listed) entries.push_back(flat_entry(*unit, id, rank));
  if (!source.job.fsdp.use_orig_params) return;
  // With original parameters every name also has its one-dimensional view of the shard (K1).
  entry.shape = {numel_in_shard(*unit, source.model.storage_of(param), rank)};
  entries.push_back(std::move(entry));
}

}  // namespace

std::int64_t StateSource::rank_in_group() const {
  const std::vector<std::int32_t>& ranks = table.groups.shard;
  const auto it = std::find(ranks.begin(), ranks.end(), static_cast<std::int32_t>(job.cluster.rank));
  return it == ranks.end() ? 0 : it - ranks.begin();
}

StateEntry chunked(StateEntry whole, std::int64_t world_size, std::int64_t rank) {
  if (whole.shape.empty()) return whole;
  const std::int64_t rows = (whole.shape[0] + world_size - 1) / world_size;
  const std::int64_t begin = std::min(rows * rank, whole.shape[0]);
  whole.sharded = true;
  whole.local = whole.shape;
  whole.local[0] = std::min(rows, whole.shape[0] - begin);
  whole.offset.assign(whole.shape.size(), 0);
  whole.offset[0] = begin;
  whole.held = whole.local[0] > 0;
  return whole;
}

bool returns_nothing(const StateSource& source, const ActionRequest& request) {
  if (!request.rank0_only || source.job.cluster.rank == 0) return false;
  if (source.job.fsdp.runtime != Runtime::Fsdp1) return true;
  return std::any_of(source.table.units.begin(), source.table.units.end(),
                     [](const PlanUnit& unit) { return !unit.params.empty() && shards(unit); });
}

std::int64_t StateSource::rank_in(const PlanUnit& unit) const {
  const bool experts = !unit.params.empty() && experts_of(model, unit.params.front()) != nullptr;
  if (!experts) return rank_in_group();
  const std::vector<std::int32_t> same = actions::ranks_of_experts(*this);
  const auto at = std::find(same.begin(), same.end(), static_cast<std::int32_t>(job.cluster.rank));
  return at == same.end() ? 0 : at - same.begin();
}

std::vector<StateEntry> model_state(const StateSource& source, const ActionRequest& request) {
  std::vector<StateEntry> entries;
  if (returns_nothing(source, request)) return entries;
  for (std::size_t p = 0; p < source.model.params.size(); ++p) add_param(source, request.kind, ParamId(p), entries);
  for (const BufferInfo& buffer : source.model.buffers) {
    if (!buffer.persistent) continue;
    StateEntry& entry = entries.emplace_back();
    entry.key = buffer.fqn;
    entry.dtype = buffer.dtype;
    entry.shape = buffer.shape;
  }
  return entries;
}

std::vector<OptimizerTensor> optimizer_tensors(const OptimizerOptions& options) {
  const OptimizerFacts facts = optimizer_facts(options);
  std::vector<OptimizerTensor> tensors;
  for (const std::string_view state : facts.states) tensors.push_back({std::string(state), false});
  for (const std::string_view scalar : facts.scalars) tensors.push_back({std::string(scalar), true});
  return tensors;
}

ChunkGroup chunk_group(const StateSource& source, const PlanUnit& unit) {
  if (!shards(unit)) return {source.job.cluster.world_size, source.job.cluster.rank};
  return {unit.shard_size, source.rank_in_group()};
}

bool optimizer_is_chunked(const StateSource& source, const PlanUnit& unit) {
  return shards(unit) || !source.job.fsdp.use_orig_params;
}

std::vector<StateEntry> optimizer_state(const StateSource& source, const ActionRequest& request) {
  std::vector<StateEntry> entries;
  if (request.rank0_only && source.job.cluster.rank != 0) return entries;
  for (std::size_t p = 0; p < source.model.params.size(); ++p) {
    if (source.model.params[p].shares.valid() || !source.table.trainable[p]) continue;
    add_param(source, request.kind, ParamId(p), entries);
    StateEntry& entry = entries.back();
    if (source.job.fsdp.runtime != Runtime::Fsdp1 || request.kind != StateKind::Sharded || !entry.unit.valid())
      continue;
    const PlanUnit& unit = source.table.units[entry.unit.index()];
    if (!optimizer_is_chunked(source, unit)) continue;
    const ChunkGroup group = chunk_group(source, unit);
    entry = chunked(entry, group.size, group.rank);
  }
  return entries;
}

}  // namespace foreshard
