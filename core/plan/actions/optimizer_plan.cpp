// The optimizer's part of saving and loading (K5, K6): tensors of positive dimension are gathered, split and cut again;
// scalars go as they are. An instance counts the state's tensors from 1 (Adam: 1 exp_avg, 2 exp_avg_sq).
#include "core/model/mesh_dimension.h"
#include "core/plan/actions/chunk_gather.h"

namespace foreshard::actions {
namespace {

class OptimizerPlan {
 public:
  OptimizerPlan(ActionWriter& out, const ActionRequest& request)
      : out_(out), request_(request), source_(out.source()), fsdp1_(source_.job.fsdp.runtime == Runtime::Fsdp1) {
    for (const OptimizerTensor& tensor : optimizer_tensors(source_.job.train.optimizer))
      tensors_ += tensor.scalar ? 0 : 1;
    keeps_ = !request_.rank0_only || source_.job.cluster.rank == 0;
  }

  void save() {
    out_.mark("optimizer_state");
    if (fsdp1_ && source_.job.fsdp.use_orig_params) out_.mark("all_gather_object");  // K5: key sets differ
    for_each_unit([this](UnitId id, const PlanUnit& unit, std::int32_t instance) {
      if (fsdp1_ && sharded(unit)) {
        save_flat(id, unit, instance);
      } else if (fsdp1_) {
        save_whole(id, unit, instance);
      } else {
        save_dtensors(id, unit, instance);
      }
    });
  }

  void load() {
    out_.mark("optimizer_state");
    if (request_.rank0_only) out_.mark("broadcast_object_list");  // K6: rank 0's keys
    for_each_unit([this](UnitId id, const PlanUnit& unit, std::int32_t instance) {
      if (fsdp1_) {
        load_flat(id, unit, instance);
      } else {
        load_params(id, unit, instance);
      }
    });
  }

 private:
  static bool sharded(const PlanUnit& unit) { return unit.strategy != Strategy::NoShard; }
  bool on_host() const { return source_.job.fsdp.cpu_offload; }

  template <class Visit>
  void for_each_unit(const Visit& visit) {
    for (std::size_t u = 0; u < source_.table.units.size(); ++u) {
      const PlanUnit& unit = source_.table.units[u];
      if (unit.params.empty() || !unit.requires_grad) continue;
      for (std::int32_t instance = 1; instance <= tensors_; ++instance) visit(UnitId(u), unit, instance);
    }
  }

  /// One all-gather a tensor and unit; what is gathered is the state dict's unless it goes to the host or is cut.
  void save_flat(UnitId id, const PlanUnit& unit, std::int32_t instance) {
    const BufferName local{BufferWhat::H2dCopy, id, {}};
    const BufferName pieces{BufferWhat::Flat, id, {}};
    const BufferName whole{BufferWhat::StateCopy, id, {}};
    if (on_host()) {
      out_.alloc(Stream::D, local, unit.shard_numel, unit.orig_dtype, instance);
      out_.transfer(InstructionKind::H2d, local, unit.shard_numel, unit.orig_dtype).arg = instance;
    } else if (source_.job.fsdp.use_orig_params) {  // the parameters' own states, put together to the flat shard
      out_.alloc(Stream::D, pieces, unit.shard_numel, unit.orig_dtype, instance);
      out_.work(InstructionKind::Concat, Stream::D, pieces, unit.shard_numel, unit.orig_dtype, "aten.cat").arg =
          instance;
    }
    out_.alloc(Stream::D, whole, unit.padded_numel, unit.orig_dtype, instance);
    out_.gather(id, whole, unit.padded_numel, unit.orig_dtype).arg = instance;
    if (on_host()) {
      out_.free(Stream::D, local, instance);
    } else if (source_.job.fsdp.use_orig_params) {
      out_.free(Stream::D, pieces, instance);
    }
    if (request_.kind == StateKind::Full && keeps_ && !request_.offload_to_cpu) return;
    if (keeps_) {
      for (const ParamId param : unit.params) split(id, unit, param, instance);
    }
    out_.free(Stream::D, whole, instance);
  }

  void split(UnitId id, const PlanUnit& unit, ParamId param, std::int32_t instance) {
    const BufferName copy{BufferWhat::StateCopy, id, param};
    StateEntry entry;
    entry.shape = source_.model.params[param.index()].shape;
    const ChunkGroup group = chunk_group(source_, unit);
    if (request_.kind == StateKind::Sharded) entry = chunked(entry, group.size, group.rank);
    if (entry.numel() == 0) return;
    if (request_.kind == StateKind::Full) {
      offload(out_, {BufferWhat::StateCopy, id, {}}, copy, entry.numel(), unit.orig_dtype, instance);
      return;
    }
    out_.alloc(Stream::D, copy, entry.numel(), unit.orig_dtype, instance);
    out_.work(InstructionKind::CopyOut, Stream::D, copy, entry.numel(), unit.orig_dtype, "aten.clone").arg = instance;
    if (!request_.offload_to_cpu) return;
    offload(out_, copy, copy, entry.numel(), unit.orig_dtype, instance);
    out_.free(Stream::D, copy, instance);
  }

  void save_whole(UnitId id, const PlanUnit& unit, std::int32_t instance) {
    if (request_.kind == StateKind::Sharded && optimizer_is_chunked(source_, unit)) {
      for (const ParamId param : unit.params) split(id, unit, param, instance);
      return;
    }
    if (!request_.offload_to_cpu || !keeps_ || on_host()) return;
    offload(out_, {BufferWhat::OptimizerState, id, {}}, {BufferWhat::StateCopy, id, {}}, unit.numel, unit.orig_dtype,
            instance);
  }

  void save_dtensors(UnitId id, const PlanUnit& unit, std::int32_t instance) {
    for (const ParamId param : unit.params) {
      if (!source_.table.trainable[param.index()]) continue;
      const BufferName copy{BufferWhat::StateCopy, id, param};
      const ShardedParam* shard = find(unit, param);
      const bool gathers = shard != nullptr && request_.kind == StateKind::Full;
      const Numel numel =
          gathers ? numel_of(whole_shape(source_.model.params[param.index()])) : numel_on_rank(source_, unit, param);
      if (gathers) gather_dtensor(out_, id, *shard, instance);
      const BufferName from = gathers ? copy : BufferName{BufferWhat::OptimizerState, id, param};
      if (keeps_ && request_.offload_to_cpu) offload(out_, from, copy, numel, unit.orig_dtype, instance);
      if (gathers && (!keeps_ || request_.offload_to_cpu)) out_.free(Stream::D, copy, instance);
    }
  }

  static const ShardedParam* find(const PlanUnit& unit, ParamId param) {
    for (const ShardedParam& shard : unit.sharded) {
      if (shard.param == param) return &shard;
    }
    return nullptr;
  }

  /// K6: concatenated in flat order, then the shard is taken; with original parameters each one's slice.
  void load_flat(UnitId id, const PlanUnit& unit, std::int32_t instance) {
    const bool gathers = request_.kind == StateKind::Sharded && optimizer_is_chunked(source_, unit);
    const bool device = gathers || request_.rank0_only;
    for (const ParamId param : unit.params) {
      if (gathers) {
        gather_chunks(out_, id, param, instance);
      } else if (request_.rank0_only) {
        broadcast_state(out_, id, param, numel_of_param(source_, param), unit.orig_dtype, instance);
      }
    }
    if (source_.job.fsdp.use_orig_params) {
      for (const ParamId param : unit.params) {
        take({BufferWhat::OptimizerState, id, param}, numel_on_rank(source_, unit, param), unit.orig_dtype, instance,
             device);
      }
    } else {
      const Stream place = device ? Stream::D : Stream::Host;
      const BufferName flat{BufferWhat::Flat, id, {}};
      out_.alloc(place, flat, unit.flat_numel, unit.orig_dtype, instance);
      out_.work(InstructionKind::Concat, place, flat, unit.flat_numel, unit.orig_dtype, "aten.cat").arg = instance;
      take({BufferWhat::OptimizerState, id, {}}, unit.shard_numel, unit.orig_dtype, instance, device);
      out_.free(place, flat, instance);
    }
    if (!device) return;
    for (const ParamId param : unit.params) out_.free(Stream::D, {BufferWhat::StateCopy, id, param}, instance);
  }

  void load_params(UnitId id, const PlanUnit& unit, std::int32_t instance) {
    for (const ParamId param : unit.params) {
      if (!source_.table.trainable[param.index()]) continue;
      if (request_.rank0_only) {
        const Numel whole = numel_of(whole_shape(source_.model.params[param.index()]));
        broadcast_state(out_, id, param, whole, unit.orig_dtype, instance);
      }
      take({BufferWhat::OptimizerState, id, param}, numel_on_rank(source_, unit, param), unit.orig_dtype, instance,
           request_.rank0_only);
      if (request_.rank0_only) out_.free(Stream::D, {BufferWhat::StateCopy, id, param}, instance);
    }
  }

  /// The rank's part becomes the optimizer's state, where the parameters live.
  void take(BufferName state, Numel numel, DType dtype, std::int32_t instance, bool from_device) {
    if (numel == 0) return;
    const Stream home = on_host() ? Stream::Host : Stream::D;
    out_.alloc(home, state, numel, dtype, instance);
    if (from_device && on_host()) {
      out_.transfer(InstructionKind::D2h, state, numel, dtype).arg = instance;
    } else if (!from_device && !on_host()) {
      out_.transfer(InstructionKind::H2d, state, numel, dtype).arg = instance;
    } else {
      out_.work(InstructionKind::CopyIn, home, state, numel, dtype, "aten.copy_").arg = instance;
    }
  }

  ActionWriter& out_;
  const ActionRequest& request_;
  const StateSource& source_;
  bool fsdp1_ = false;
  bool keeps_ = true;
  std::int32_t tensors_ = 0;  // of positive dimension
};

}  // namespace

void write_optimizer_save(ActionWriter& out, const ActionRequest& request) { OptimizerPlan(out, request).save(); }
void write_optimizer_load(ActionWriter& out, const ActionRequest& request) { OptimizerPlan(out, request).load(); }

}  // namespace foreshard::actions
