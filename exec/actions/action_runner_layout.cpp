#include "exec/actions/action_runner_layout.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/model/mesh_dimension.h"
#include "core/plan/units/shard_layout.h"
#include "exec/units/unit_tensors.h"

namespace foreshard::exec {

ParamHome ActionLayout::place(ParamId param) const {
  const UnitId unit = source_.table.unit_of_param[source_.model.storage_of(param).index()];
  return {unit, unit.valid() && !source_.table.units[unit.index()].sharded.empty()};
}

const FlatEntry& ActionLayout::entry(const PlanUnit& unit, ParamId param) const {
  const auto found = std::ranges::find(unit.flat, param, &FlatEntry::param);
  FORESHARD_CHECK(found != unit.flat.end(), "a parameter that its unit does not have");
  return *found;
}

const ShardedParam& ActionLayout::sharded(ParamId param) const {
  const PlanUnit& unit = source_.table.units[place(param).unit.index()];
  const auto found = std::ranges::find(unit.sharded, param, &ShardedParam::param);
  FORESHARD_CHECK(found != unit.sharded.end(), "a parameter that its unit does not shard");
  return *found;
}

std::string ActionLayout::flat_key(const PlanUnit& unit) const {
  return (unit.name.empty() ? "" : unit.name + ".") + "_flat_param";
}

std::vector<StatePiece> ActionLayout::pieces_of_part(ParamId param) const {
  const ParamHome home = place(param);
  if (!home.unit.valid() || source_.job.fsdp.runtime == Runtime::None) return {{0, 0, numel_of(shape(param))}};
  const PlanUnit& unit = source_.table.units[home.unit.index()];
  std::vector<StatePiece> pieces;
  if (!home.own) {
    const FlatEntry& flat = entry(unit, param);
    const Numel begin = is_sharded(unit) ? rank(unit) * unit.shard_numel : 0;
    const Numel end = is_sharded(unit) ? begin + unit.shard_numel : unit.flat_numel;
    const Numel from = std::max(begin, flat.offset), to = std::min(end, flat.offset + flat.numel);
    if (from < to) pieces.push_back({from - flat.offset, from - begin, to - from});
    return pieces;
  }
  const ShardedParam& own = sharded(param);
  const auto dim = static_cast<std::size_t>(own.shard_dim);
  const ShardExtent rows = shard_extent(shape(param)[dim], unit.shard_size, rank(unit));
  Numel outer = 1, inner = 1;
  for (std::size_t d = 0; d < shape(param).size(); ++d) (d < dim ? outer : inner) *= d == dim ? 1 : shape(param)[d];
  if (rows.length == 0) return pieces;
  for (Numel o = 0; o < outer; ++o) {
    pieces.push_back(
        {(o * shape(param)[dim] + rows.start) * inner, o * rows.padded_length * inner, rows.length * inner});
  }
  return pieces;
}

std::vector<StatePiece> ActionLayout::pieces_in_home(ParamId param) const {
  return pieces_of_whole(source_.model, source_.model.params[param.index()], pieces_of_part(param));
}

Shape ActionLayout::whole_shape(ParamId param) const {
  return foreshard::whole_shape(source_.model.params[param.index()]);
}

at::Tensor ActionLayout::own_part(ParamId param, const at::Tensor& whole) const {
  const at::Tensor shaped = whole.view(whole_shape(param));
  return own_part_of(source_.model, source_.model.params[param.index()], shaped);
}

std::vector<StatePiece> ActionLayout::pieces(ParamId param) const {
  std::vector<StatePiece> pieces = pieces_in_home(param);
  Numel at = 0;
  for (StatePiece& piece : pieces) {
    piece.local_offset = at;
    at += piece.numel;
  }
  return pieces;
}

void ActionLayout::copy_rows(ParamId param, const at::Tensor& whole, const at::Tensor& shard) const {
  const ShardedParam& own = sharded(param);
  const PlanUnit& unit = source_.table.units[place(param).unit.index()];
  const ShardExtent rows = shard_extent(whole.size(own.shard_dim), unit.shard_size, rank(unit));
  shard.view(own.padded_local_shape)
      .narrow(own.shard_dim, 0, rows.length)
      .copy_(whole.narrow(own.shard_dim, rows.start, rows.length));
}

at::Tensor ActionLayout::side_by_side(ParamId param, const at::Tensor& ranks) const {
  const ShardedParam& own = sharded(param);
  const PlanUnit& unit = source_.table.units[place(param).unit.index()];
  std::vector<at::Tensor> chunks;
  for (const at::Tensor& chunk : ranks.chunk(unit.shard_size)) chunks.push_back(chunk.view(own.padded_local_shape));
  return at::cat(chunks, own.shard_dim)
      .narrow(own.shard_dim, 0, shape(param)[static_cast<std::size_t>(own.shard_dim)])
      .contiguous();
}

at::Tensor ActionLayout::chunk(ParamId param, const at::Tensor& whole) const {
  const UnitId unit = place(param).unit;
  const ChunkGroup group = chunk_group(source_, source_.table.units[unit.index()]);
  StateEntry entry;
  entry.shape = shape(param);
  entry = chunked(entry, group.size, group.rank);
  return entry.sharded ? whole.narrow(0, entry.offset[0], entry.local[0]) : whole;
}

}  // namespace foreshard::exec
