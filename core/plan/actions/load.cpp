// Loading as a plan (K3): the state dict is on the host. FULL copies into the gathered parameters and writes back,
// SHARDED gathers padded chunks first, LOCAL and fsdp2's DTensors copy shards.
#include "core/model/mesh_dimension.h"
#include "core/plan/actions/chunk_gather.h"
#include "core/plan/actions/hooked_walk.h"
#include "core/plan/actions/mesh_state.h"

namespace foreshard::actions {
namespace {

class Load {
 public:
  Load(ActionWriter& out, const ActionRequest& request) : out_(out), request_(request), source_(out.source()) {}

  Result<void> fsdp1() {
    HookedWalk walk;
    walk.writeback = true;
    walk.all_at_once = request_.all_at_once && request_.kind != StateKind::Local;
    for (const PlanUnit& unit : source_.table.units) {
      const bool sharded = unit.strategy != Strategy::NoShard;
      const bool local = request_.kind == StateKind::Local && sharded;
      walk.unsharded.push_back(!unit.params.empty() && !local && (sharded || !source_.job.fsdp.use_orig_params));
    }
    walk.before = [this](UnitId unit) { gather_unit(unit); };
    walk.while_open = [this](UnitId unit) { fill_unit(unit); };
    const Result<void> walked = walk_units(out_, walk);
    if (!walked) return walked;
    for (const BufferName& copy : gathered_) out_.free(Stream::D, copy);  // the rebuilt dict goes
    return {};
  }

  void fsdp2() {
    out_.host_wait();
    const Stream home = source_.job.fsdp.cpu_offload ? Stream::Host : Stream::D;
    for (std::size_t u = 0; u < source_.table.units.size(); ++u) {
      const PlanUnit& unit = source_.table.units[u];
      for (const ShardedParam& param : unit.sharded) {
        const BufferName shard{BufferWhat::Shard, UnitId(u), param.param};
        const Numel numel = numel_of(param.local_shape);
        const DType dtype = source_.model.params[param.param.index()].dtype;
        if (request_.rank0_only) {
          const Numel whole = numel_of(whole_shape(source_.model.params[param.param.index()]));
          broadcast_state(out_, UnitId(u), param.param, whole, dtype, 0);
          out_.work(home == Stream::D ? InstructionKind::CopyOut : InstructionKind::D2h, Stream::D, shard, numel, dtype,
                    "aten.copy_");
          out_.free(Stream::D, {BufferWhat::StateCopy, UnitId(u), param.param});
        } else if (home == Stream::D) {
          out_.transfer(InstructionKind::H2d, shard, numel, dtype);
        } else {
          out_.work(InstructionKind::CopyIn, Stream::Host, shard, numel, dtype, "aten.copy_");
        }
      }
    }
  }

  void whole() {
    out_.host_wait();
    for (std::size_t p = 0; p < source_.model.params.size(); ++p) {
      if (source_.model.params[p].shares.valid()) continue;
      const ParamInfo& param = source_.model.params[p];
      out_.transfer(InstructionKind::H2d, {BufferWhat::Param, source_.table.unit_of_param[p], ParamId(p)},
                    numel_of(param.shape), param.dtype);
    }
  }

 private:
  void gather_unit(UnitId id) {
    const PlanUnit& unit = source_.table.units[id.index()];
    if (request_.kind != StateKind::Sharded || unit.strategy == Strategy::NoShard) return;
    for (const ParamId param : unit.params) {
      if (is_on_mesh(source_.model.params[param.index()]))
        part_over_mesh(out_, id, param);
      else
        gather_chunks(out_, id, param, 0);
      gathered_.push_back({BufferWhat::StateCopy, id, param});
    }
  }

  void fill_unit(UnitId id) {
    const PlanUnit& unit = source_.table.units[id.index()];
    if (unit.params.empty()) return;
    const bool sharded = unit.strategy != Strategy::NoShard;
    const BufferName shard{BufferWhat::Shard, id, {}};
    if (!sharded || request_.kind == StateKind::Local) {
      fill(shard, sharded ? unit.shard_numel : unit.numel, unit.orig_dtype);
      return;
    }
    // M7: full precision where a compute dtype would lose some.
    const bool precise = unit.param_dtype != unit.orig_dtype;
    const BufferName full{precise ? BufferWhat::FullPrecision : BufferWhat::Full, id, {}};
    for (const ParamId param : unit.params) {
      const Numel numel = numel_of_param(source_, param);
      if (request_.kind == StateKind::Full) {
        out_.transfer(InstructionKind::H2d, full, numel, unit.orig_dtype);
      } else {
        out_.work(InstructionKind::CopyIn, Stream::D, full, numel, unit.orig_dtype, "aten.copy_");
      }
    }
  }

  void fill(BufferName shard, Numel numel, DType dtype) {
    if (source_.job.fsdp.cpu_offload) {
      out_.work(InstructionKind::CopyIn, Stream::Host, shard, numel, dtype, "aten.copy_");
    } else {
      out_.transfer(InstructionKind::H2d, shard, numel, dtype);
    }
  }

  ActionWriter& out_;
  const ActionRequest& request_;
  const StateSource& source_;
  std::vector<BufferName> gathered_;
};

}  // namespace

Result<void> write_load(ActionWriter& out, const ActionRequest& request) {
  if (request.rank0_only && out.source().job.fsdp.runtime == Runtime::Fsdp1 && !request.optimizer) {
    return fail(refused(request, "fsdp1 loads the model's full state on every rank", "rank0_only with optimizer (K6)",
                        "load on rank 0 before wrapping and use init:sync"));
  }
  Load load(out, request);
  switch (out.source().job.fsdp.runtime) {
    case Runtime::Fsdp1: {
      const Result<void> loaded = load.fsdp1();
      if (!loaded) return loaded;
      break;
    }
    case Runtime::Planned:
    case Runtime::Fsdp2: load.fsdp2(); break;
    case Runtime::None: load.whole(); break;
  }
  if (request.optimizer) write_optimizer_load(out, request);
  return {};
}

}  // namespace foreshard::actions
