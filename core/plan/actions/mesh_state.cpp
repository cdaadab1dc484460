#include "core/plan/actions/mesh_state.h"

#include <utility>

#include "core/model/mesh_dimension.h"
#include "core/plan/actions/mesh_way.h"
#include "core/plan/units/groups.h"

namespace foreshard::actions {
namespace {

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

  /// From where it starts to the last step's {StateCopy, unit, param}.
  void go(const std::vector<MeshStep>& steps) {
    for (const MeshStep& step : steps) {
      const bool last = &step == &steps.back();
      if (step.gathers)
        gather(step, last);
      else
        cut(step, last);
    }
  }

 private:
  /// Whom the step meets.
  CommunicatorId group_of(const MeshStep& step) const {
    const MeshDimension& own = own_dimension(out_.source().model, param_);
    return step.over_data ? out_.group_of(unit_) : enter_dimension(out_.plan(), own.name, own.ranks);
  }

  /// Shard::_to_replicate_tensor: this rank's rows are filled up, gathered below each other, and moved to where they
  /// belong.
  void gather(const MeshStep& step, bool last) {
    const CommunicatorId group = group_of(step);
    const std::size_t dim = step.dim;
    const std::int64_t rows = step.rows();
    const bool filled = shape_[dim] < rows;
    const BufferName pad{BufferWhat::GradPadded, unit_, param_};
    Shape padded = shape_;
    padded[dim] = rows;
    if (filled) {
      out_.alloc(Stream::D, pad, numel_of(padded), dtype_, instance_);
      out_.work(InstructionKind::Pad, Stream::D, pad, numel_of(padded), dtype_, "aten.constant_pad_nd").arg = instance_;
    }
    const Numel total = numel_of(padded) * step.ranks;
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
    shape_[dim] = step.whole;
  }

  /// Replicate to Shard(0): a copy of this rank's rows.
  void cut(const MeshStep& step, bool last) {
    shape_[0] = mesh_chunk_of(step.whole, step.ranks, step.rank).size;
    const BufferName part = next(last);
    if (numel_of(shape_) > 0) {
      out_.alloc(Stream::D, part, numel_of(shape_), dtype_, instance_);
      out_.work(InstructionKind::CopyOut, Stream::D, part, numel_of(shape_), dtype_, "aten.clone").arg = instance_;
    }
    take(part);
  }

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

std::vector<std::int32_t> ranks_of_experts(const StateSource& source) {
  for (const MeshDimension& dimension : source.model.mesh) {
    if (shares_samples(dimension)) continue;
    const bool hybrid = source.job.fsdp.strategy == Strategy::HybridShard;
    auto same = expert_groups(source.job.cluster, hybrid, ranks_of_all_experts(dimension), source.job.mesh.tensor);
    if (same) return std::move(same->groups.shard);
  }
  return {};
}

void gather_over_mesh(ActionWriter& out, UnitId id, const ShardedParam& param, std::int32_t instance) {
  const StateSource& source = out.source();
  const DType dtype = source.model.params[param.param.index()].dtype;
  const MeshWay way = way_to_whole(source, out.unit(id), param);
  Redistribution on(out, id, param.param, dtype, instance);
  const BufferName brought{BufferWhat::H2dCopy, id, param.param};
  const bool on_host = source.job.fsdp.cpu_offload;
  if (on_host) {
    out.alloc(Stream::D, brought, numel_of(way.from), dtype, instance);
    out.transfer(InstructionKind::H2d, brought, numel_of(way.from), dtype).arg = instance;
  }
  on.start(on_host ? brought : BufferName{BufferWhat::Shard, id, param.param}, way.from, on_host);
  on.go(way.steps);
}

// What is cloned stays until the chunk is there.
void cut_over_mesh(ActionWriter& out, UnitId id, ParamId param) {
  const DType dtype = out.unit(id).orig_dtype;
  const MeshWay way = way_to_chunk(out.source(), out.unit(id), param);
  const BufferName clone{BufferWhat::Full, id, param};
  out.alloc(Stream::D, clone, numel_of(way.from), dtype);
  out.work(InstructionKind::CopyOut, Stream::D, clone, numel_of(way.from), dtype, "aten.clone");
  Redistribution on(out, id, param, dtype, 0);
  on.start(clone, way.from, false);
  on.go(way.steps);
  out.free(Stream::D, clone);
}

void part_over_mesh(ActionWriter& out, UnitId id, ParamId param) {
  const DType dtype = out.unit(id).orig_dtype;
  const MeshWay way = way_to_part(out.source(), out.unit(id), param);
  const BufferName brought{BufferWhat::H2dCopy, id, param};
  out.alloc(Stream::D, brought, numel_of(way.from), dtype);
  out.transfer(InstructionKind::H2d, brought, numel_of(way.from), dtype);
  Redistribution on(out, id, param, dtype, 0);
  on.start(brought, way.from, true);
  on.go(way.steps);
}

}  // namespace foreshard::actions
