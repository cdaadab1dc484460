#include "core/plan/actions/mesh_way.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/model/mesh_dimension.h"

namespace foreshard {
namespace {

/// Steps over the two dimensions on which a parameter lies.
class Steps {
 public:
  Steps(const StateSource& source, const PlanUnit& unit, ParamId param, Shape from)
      : data_ranks_(unit.shard_size),
        data_rank_(source.rank_in(unit)),
        dimension_(own_dimension(source.model, param)),
        way_{std::move(from), {}} {}

  /// A group of one meets nobody.
  Steps& gather(bool over_data, std::size_t dim, std::int64_t whole) {
    const MeshStep step = step_of(true, over_data, dim, whole);
    if (step.ranks > 1) way_.steps.push_back(step);
    return *this;
  }

  Steps& cut(bool over_data, std::int64_t whole) {
    way_.steps.push_back(step_of(false, over_data, 0, whole));
    return *this;
  }

  MeshWay done() { return std::move(way_); }

 private:
  MeshStep step_of(bool gathers, bool over_data, std::size_t dim, std::int64_t whole) const {
    const auto ranks = static_cast<std::int64_t>(dimension_.ranks.size());
    if (over_data) return {gathers, true, dim, whole, data_ranks_, data_rank_};
    return {gathers, false, dim, whole, ranks, dimension_.place};
  }

  std::int64_t data_ranks_, data_rank_;
  const MeshDimension& dimension_;
  MeshWay way_;
};

}  // namespace

MeshChunk mesh_chunk_of(std::int64_t size, std::int64_t ranks, std::int64_t rank) {
  const std::int64_t rows = (size + ranks - 1) / ranks;
  const std::int64_t begin = std::min(rows * rank, size);
  return {begin, std::min(rows, size - begin), rows};
}

MeshWay way_to_whole(const StateSource& source, const PlanUnit& unit, const ShardedParam& param) {
  const ParamInfo& info = source.model.params[param.param.index()];
  const auto shard_dim = static_cast<std::size_t>(param.shard_dim), cut = static_cast<std::size_t>(info.part.dim);
  Steps steps(source, unit, param.param, param.local_shape);
  // _StridedShard: data was cut last.
  if (cut == shard_dim) {
    steps.gather(true, shard_dim, info.shape[shard_dim]).gather(false, cut, info.part.whole);
  } else {
    steps.gather(false, cut, info.part.whole).gather(true, shard_dim, info.shape[shard_dim]);
  }
  return steps.done();
}

// _chunk_dtensor
MeshWay way_to_chunk(const StateSource& source, const PlanUnit& unit, ParamId param) {
  const ParamInfo& info = source.model.params[param.index()];
  const bool rows = info.part.dim == 0;
  Steps steps(source, unit, param, info.shape);
  if (rows) steps.gather(false, 0, info.part.whole);
  const std::int64_t whole = rows ? info.part.whole : info.shape[0];
  steps.cut(true, whole);
  if (rows) steps.cut(false, mesh_chunk_of(whole, unit.shard_size, source.rank_in(unit)).size);
  return steps.done();
}

StateEntry mesh_entry(const StateSource& source, StateEntry entry, ParamId param) {
  const ParamInfo& info = source.model.params[param.index()];
  entry.sharded = true;
  entry.local = info.shape;
  entry.offset.assign(info.shape.size(), 0);
  if (info.part.dim >= 0) entry.offset[static_cast<std::size_t>(info.part.dim)] = info.part.begin;
  return entry;
}

StateEntry mesh_chunk(const StateSource& source, StateEntry entry, ParamId param, const PlanUnit& unit) {
  const ParamInfo& info = source.model.params[param.index()];
  entry = mesh_entry(source, std::move(entry), param);
  if (entry.shape.empty()) return entry;
  const MeshChunk data = mesh_chunk_of(entry.shape[0], unit.shard_size, source.rank_in(unit));
  entry.offset[0] = data.begin;
  entry.local[0] = data.size;
  if (info.part.dim != 0) return entry;
  const MeshDimension& dimension = own_dimension(source.model, param);
  const MeshChunk part = mesh_chunk_of(data.size, std::ssize(dimension.ranks), dimension.place);
  entry.offset[0] = data.begin + part.begin;
  entry.local[0] = part.size;
  return entry;
}

// _all_gather_dtensor
MeshWay way_to_part(const StateSource& source, const PlanUnit& unit, ParamId param) {
  const ParamInfo& info = source.model.params[param.index()];
  const bool rows = info.part.dim == 0;
  StateEntry whole;
  whole.shape = whole_shape(info);
  Steps steps(source, unit, param, mesh_chunk(source, whole, param, unit).local);
  const std::int64_t size = whole.shape.empty() ? 1 : whole.shape[0];
  if (rows) steps.gather(false, 0, mesh_chunk_of(size, unit.shard_size, source.rank_in(unit)).size);
  steps.gather(true, 0, size);
  if (rows) steps.cut(false, size);
  return steps.done();
}

}  // namespace foreshard
