#include "core/plan/actions/mesh_state.h"

#include <algorithm>
#include <utility>

#include "core/model/mesh_dimension.h"
#include "core/plan/units/groups.h"

namespace foreshard::actions {
namespace {

/// `rank` of `ranks` that cut `size` elements as torch.chunk does.
struct Chunk {
  std::int64_t begin = 0, size = 0, padded = 0;
};
Chunk chunk_of(std::int64_t size, std::int64_t ranks, std::int64_t rank) {
  const std::int64_t rows = (size + ranks - 1) / ranks;
  const std::int64_t begin = std::min(rows * rank, size);
  return {begin, std::min(rows, size - begin), rows};
}

const MeshDimension& dimension_of(const StateSource& source, ParamId param) {
  const std::int32_t at = source.model.params[param.index()].part.dimension;
  return source.model.mesh[static_cast<std::size_t>(at)];
}

std::int64_t ranks_of(const MeshDimension& dimension) { return static_cast<std::int64_t>(dimension.ranks.size()); }

/// One DTensor on its way from one placement to the next: every step has a result of its own, the one before goes.
class Redistribution {
 public:
  Redistribution(ActionWriter& out, UnitId unit, ParamId param, DType dtype, std::int32_t instance)
      : out_(out), unit_(unit), param_(param), dtype_(dtype), instance_(instance) {}

  /// What it starts from, and who holds that.
  void start(BufferName from, Shape shape, bool owned) {
    now_ = from;
    shape_ = std::move(shape);
    owned_ = owned;
  }

  /// Shard::_to_replicate_tensor: this rank's rows are filled up, gathered below each other, and moved to where they
  /// belong.
  void gather(CommunicatorId group, std::int64_t ranks, std::size_t dim, std::int64_t whole, bool last) {
    if (ranks == 1) return;
    const std::int64_t rows = (whole + ranks - 1) / ranks;
    const bool filled = shape_[dim] < rows;
    const BufferName pad{BufferWhat::GradPadded, unit_, param_};
    Shape padded = shape_;
    padded[dim] = rows;
    if (filled) {
      out_.alloc(Stream::D, pad, numel_of(padded), dtype_, instance_);
      out_.work(InstructionKind::Pad, Stream::D, pad, numel_of(padded), dtype_, "aten.constant_pad_nd").arg = instance_;
    }
    const Numel total = numel_of(padded) * ranks;
    const BufferName gathered = dim == 0 ? next(last) : BufferName{BufferWhat::AgBuffer, unit_, param_};
    out_.alloc(Stream::D, gathered, total, dtype_, instance_);
    Instruction& meet = out_.gather(unit_, gathered, total, dtype_);
    meet.communicator = group;
    meet.arg = instance_;
    if (filled) out_.free(Stream::D, pad, instance_);
    if (dim == 0) {
      take(gathered);
    } else {
      const BufferName moved = next(last);
      out_.alloc(Stream::D, moved, total, dtype_, instance_);
      out_.work(InstructionKind::Concat, Stream::D, moved, total, dtype_, "aten.cat").arg = instance_;
      out_.free(Stream::D, gathered, instance_);
      take(moved);
    }
    shape_[dim] = whole;
  }

  /// Replicate to Shard(0): a copy of this rank's rows.
  void cut(std::int64_t ranks, std::int64_t rank, bool last) {
    shape_[0] = chunk_of(shape_[0], ranks, rank).size;
    const BufferName part = next(last);
    if (numel_of(shape_) > 0) {
      out_.alloc(Stream::D, part, numel_of(shape_), dtype_, instance_);
      out_.work(InstructionKind::CopyOut, Stream::D, part, numel_of(shape_), dtype_, "aten.clone").arg = instance_;
    }
    take(part);
  }

  const BufferName& now() const { return now_; }

 private:
  BufferName next(bool last) {
    if (last) return {BufferWhat::StateCopy, unit_, param_};
    return {odd_ ? BufferWhat::ShardDimTemp : BufferWhat::CastBuffer, unit_, param_};
  }

  void take(BufferName made) {
    if (owned_) out_.free(Stream::D, now_, instance_);
    now_ = made;
    owned_ = true;
    odd_ = !odd_;
  }

  ActionWriter& out_;
  UnitId unit_;
  ParamId param_;
  DType dtype_;
  std::int32_t instance_;
  BufferName now_;
  Shape shape_;
  bool owned_ = false, odd_ = false;
};

}  // namespace

Shape whole_shape(const ParamInfo& param) {
  Shape whole = param.shape;
  if (param.part.dim >= 0) whole[static_cast<std::size_t>(param.part.dim)] = param.part.whole;
  return whole;
}

std::vector<std::int32_t> ranks_of_experts(const StateSource& source) {
  for (const MeshDimension& dimension : source.model.mesh) {
    if (shares_samples(dimension)) continue;
    const bool hybrid = source.job.fsdp.strategy == Strategy::HybridShard;
    auto same = expert_groups(source.job.cluster, hybrid, ranks_of(dimension), source.job.mesh.tensor);
    if (same) return std::move(same->groups.shard);
  }
  return {};
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
  const Chunk data = chunk_of(entry.shape[0], unit.shard_size, source.rank_in_group());
  entry.offset[0] = data.begin;
  entry.local[0] = data.size;
  if (info.part.dim != 0) return entry;
  const MeshDimension& dimension = dimension_of(source, param);
  const Chunk part = chunk_of(data.size, ranks_of(dimension), dimension.place);
  entry.offset[0] = data.begin + part.begin;
  entry.local[0] = part.size;
  return entry;
}

void gather_over_mesh(ActionWriter& out, UnitId id, const ShardedParam& param, std::int32_t instance) {
  const StateSource& source = out.source();
  const ParamInfo& info = source.model.params[param.param.index()];
  const PlanUnit& unit = out.unit(id);
  const MeshDimension& dimension = dimension_of(source, param.param);
  const auto shard_dim = static_cast<std::size_t>(param.shard_dim);
  const Shape whole = whole_shape(info);
  Redistribution on(out, id, param.param, info.dtype, instance);
  const BufferName brought{BufferWhat::H2dCopy, id, param.param};
  const bool on_host = source.job.fsdp.cpu_offload;
  if (on_host) {
    out.alloc(Stream::D, brought, numel_of(param.local_shape), info.dtype, instance);
    out.transfer(InstructionKind::H2d, brought, numel_of(param.local_shape), info.dtype).arg = instance;
  }
  on.start(on_host ? brought : BufferName{BufferWhat::Shard, id, param.param}, param.local_shape, on_host);
  const CommunicatorId data = out.group_of(id);
  const auto over_data = [&](bool last) { on.gather(data, unit.shard_size, shard_dim, info.shape[shard_dim], last); };
  const auto cut = static_cast<std::size_t>(info.part.dim);
  const CommunicatorId beside = enter_dimension(out.plan(), dimension.name, dimension.ranks);
  const auto over_mesh = [&](bool last) { on.gather(beside, ranks_of(dimension), cut, whole[cut], last); };
  const bool strided = cut == shard_dim;  // _StridedShard: data was cut last
  if (strided) {
    over_data(false);
    over_mesh(true);
  } else {
    over_mesh(unit.shard_size == 1);
    over_data(true);
  }
}

// _chunk_dtensor: what is cloned stays until the chunk is there.
void cut_over_mesh(ActionWriter& out, UnitId id, ParamId param) {
  const StateSource& source = out.source();
  const ParamInfo& info = source.model.params[param.index()];
  const PlanUnit& unit = out.unit(id);
  const MeshDimension& dimension = dimension_of(source, param);
  const BufferName clone{BufferWhat::Full, id, param};
  out.alloc(Stream::D, clone, numel_of(info.shape), unit.orig_dtype);
  out.work(InstructionKind::CopyOut, Stream::D, clone, numel_of(info.shape), unit.orig_dtype, "aten.clone");
  Redistribution on(out, id, param, unit.orig_dtype, 0);
  on.start(clone, info.shape, false);
  const bool rows = info.part.dim == 0;
  if (rows) {
    on.gather(enter_dimension(out.plan(), dimension.name, dimension.ranks), ranks_of(dimension), 0, info.part.whole,
              false);
  }
  on.cut(unit.shard_size, source.rank_in_group(), !rows);
  if (rows) on.cut(ranks_of(dimension), dimension.place, true);
  out.free(Stream::D, clone);
}

// _all_gather_dtensor
void part_over_mesh(ActionWriter& out, UnitId id, ParamId param) {
  const StateSource& source = out.source();
  const ParamInfo& info = source.model.params[param.index()];
  const PlanUnit& unit = out.unit(id);
  const MeshDimension& dimension = dimension_of(source, param);
  StateEntry whole;
  whole.shape = whole_shape(info);
  const StateEntry chunk = mesh_chunk(source, whole, param, unit);
  const BufferName brought{BufferWhat::H2dCopy, id, param};
  out.alloc(Stream::D, brought, chunk.numel(), unit.orig_dtype);
  out.transfer(InstructionKind::H2d, brought, chunk.numel(), unit.orig_dtype);
  Redistribution on(out, id, param, unit.orig_dtype, 0);
  on.start(brought, chunk.local, true);
  const bool rows = info.part.dim == 0;
  if (rows) {
    const Chunk data = chunk_of(info.part.whole, unit.shard_size, source.rank_in_group());
    on.gather(enter_dimension(out.plan(), dimension.name, dimension.ranks), ranks_of(dimension), 0, data.size, false);
  }
  on.gather(out.group_of(id), unit.shard_size, 0, whole.shape.empty() ? 1 : whole.shape[0], !rows);
  if (rows) on.cut(ranks_of(dimension), dimension.place, true);
}

}  // namespace foreshard::actions
