#include "core/plan/actions/chunk_gather.h"

#include <algorithm>

#include "core/model/mesh_dimension.h"
#include "core/plan/actions/mesh_state.h"

namespace foreshard::actions {

Numel gather_chunks(ActionWriter& out, UnitId id, ParamId param, std::int32_t instance) {
  const StateSource& source = out.source();
  const PlanUnit& unit = out.unit(id);
  const Shape& shape = source.model.params[param.index()].shape;
  const std::int64_t rows = shape.empty() || shape[0] == 0 ? 1 : shape[0];
  const ChunkGroup group = chunk_group(source, unit);
  const Numel chunk = (rows + group.size - 1) / group.size * (numel_of(shape) / rows);
  StateEntry whole;
  whole.shape = shape;
  const Numel real = chunked(whole, group.size, group.rank).numel();
  const BufferName local{BufferWhat::H2dCopy, id, param};
  const BufferName gathered{BufferWhat::StateCopy, id, param};
  out.alloc(Stream::D, local, chunk, unit.orig_dtype, instance);
  if (real > 0) out.transfer(InstructionKind::H2d, local, real, unit.orig_dtype).arg = instance;
  if (real < chunk) {
    out.work(InstructionKind::Pad, Stream::D, local, chunk - real, unit.orig_dtype, "aten.constant_pad_nd").arg =
        instance;
  }
  out.alloc(Stream::D, gathered, chunk * group.size, unit.orig_dtype, instance);
  out.gather(id, gathered, chunk * group.size, unit.orig_dtype).arg = instance;
  out.free(Stream::D, local, instance);
  return chunk * group.size;
}

Numel gather_dtensor(ActionWriter& out, UnitId id, const ShardedParam& param, std::int32_t instance) {
  if (out.source().model.params[param.param.index()].part.dim >= 0) {
    gather_over_mesh(out, id, param, instance);
    return numel_of(whole_shape(out.source().model.params[param.param.index()]));
  }
  const PlanUnit& unit = out.unit(id);
  const Numel local = numel_of(param.padded_local_shape);
  const Numel total = local * unit.shard_size;
  const DType dtype = out.source().model.params[param.param.index()].dtype;
  const BufferName copy{BufferWhat::H2dCopy, id, param.param};
  const BufferName gathered{BufferWhat::StateCopy, id, param.param};
  const bool on_host = out.source().job.fsdp.cpu_offload;
  if (on_host) {
    out.alloc(Stream::D, copy, local, dtype, instance);
    out.transfer(InstructionKind::H2d, copy, local, dtype).arg = instance;
  }
  if (param.shard_dim == 0 || unit.shard_size == 1) {
    out.alloc(Stream::D, gathered, total, dtype, instance);
    if (unit.shard_size > 1) {
      out.gather(id, gathered, total, dtype).arg = instance;
    } else {
      out.work(InstructionKind::CopyOut, Stream::D, gathered, total, dtype, "aten.clone").arg = instance;
    }
  } else {  // gathered rank after rank, then put side by side
    const BufferName ranks{BufferWhat::AgBuffer, id, param.param};
    out.alloc(Stream::D, ranks, total, dtype, instance);
    out.gather(id, ranks, total, dtype).arg = instance;
    out.alloc(Stream::D, gathered, total, dtype, instance);
    out.work(InstructionKind::Concat, Stream::D, gathered, total, dtype, "aten.cat").arg = instance;
    out.free(Stream::D, ranks, instance);
  }
  if (on_host) out.free(Stream::D, copy, instance);
  return total;
}

void offload(ActionWriter& out, BufferName from, BufferName to, Numel numel, DType dtype, std::int32_t instance) {
  out.alloc(Stream::Host, to, numel, dtype, instance);
  out.transfer(InstructionKind::D2h, from, numel, dtype).arg = instance;
}

void broadcast_state(ActionWriter& out, UnitId unit, ParamId param, Numel numel, DType dtype, std::int32_t instance) {
  const BufferName whole{BufferWhat::StateCopy, unit, param};
  out.alloc(Stream::D, whole, numel, dtype, instance);
  if (out.plan().rank == 0) {
    out.transfer(InstructionKind::H2d, whole, numel, dtype).arg = instance;
  } else {
    out.work(InstructionKind::Fill, Stream::D, whole, numel, dtype, "aten.zeros").arg = instance;
  }
  Instruction& send = out.work(InstructionKind::Broadcast, Stream::D, whole, numel, dtype);
  send.arg = instance;
  send.communicator = out.world();
}

Numel numel_on_rank(const StateSource& source, const PlanUnit& unit, ParamId param) {
  for (const ShardedParam& sharded : unit.sharded) {
    if (sharded.param == param) return numel_of(sharded.local_shape);
  }
  if (unit.strategy == Strategy::NoShard) return numel_of_param(source, param);
  const Numel begin = unit.shard_numel * source.rank_in_group();
  for (const FlatEntry& entry : unit.flat) {
    if (entry.param != param) continue;
    const Numel end = std::min(begin + unit.shard_numel, entry.offset + entry.numel);
    return std::max<Numel>(0, end - std::max(begin, entry.offset));
  }
  return 0;
}

}  // namespace foreshard::actions
