// Saving as a plan (K1, K2, K5, K7): what a state dict gathers, copies and holds. Tensors of the dict stay allocated at
// the end of the iteration: the caller holds them.
#include "core/model/mesh_dimension.h"
#include "core/plan/actions/chunk_gather.h"
#include "core/plan/actions/hooked_walk.h"
#include "core/plan/actions/mesh_state.h"

namespace foreshard::actions {
namespace {

class Save {
 public:
  Save(ActionWriter& out, const ActionRequest& request)
      : out_(out), request_(request), source_(out.source()), entries_(model_state(source_, request)) {
    by_unit_.resize(source_.table.units.size());
    for (std::size_t e = 0; e < entries_.size(); ++e) {
      if (entries_[e].unit.valid()) by_unit_[entries_[e].unit.index()].push_back(e);
    }
  }

  Result<void> fsdp1() {
    HookedWalk walk;
    walk.rank0_only = request_.rank0_only;
    walk.offload_to_cpu = request_.offload_to_cpu && request_.kind == StateKind::Full;
    walk.all_at_once = request_.all_at_once && request_.kind != StateKind::Local;
    for (const PlanUnit& unit : source_.table.units) {
      const bool sharded = unit.strategy != Strategy::NoShard;
      // A whole parameter behind an original one needs no unsharding.
      const bool local = request_.kind == StateKind::Local && sharded;
      walk.unsharded.push_back(!unit.params.empty() && !local && (sharded || !source_.job.fsdp.use_orig_params));
    }
    walk.before = [](UnitId) {};
    walk.while_open = [this](UnitId unit) { copy_unit(unit); };
    const Result<void> walked = walk_units(out_, walk);
    if (!walked) return walked;
    copy_rest();
    return {};
  }

  void fsdp2() {
    out_.host_wait();
    for (std::size_t p = 0; p < source_.model.params.size(); ++p) {  // in the dict's order, which is the modules'
      const UnitId unit = source_.table.unit_of_param[p];
      if (!unit.valid()) continue;
      for (const ShardedParam& param : source_.table.units[unit.index()].sharded)
        if (param.param == ParamId(p)) dtensor(unit, param);
    }
    copy_rest();
  }

  void whole() {
    out_.host_wait();
    for (const StateEntry& entry : entries_) {
      if (request_.offload_to_cpu) copy_to_host({BufferWhat::Param, entry.unit, entry.param}, entry);
    }
  }

 private:
  bool lies_on_mesh(const StateEntry& entry) const {
    return entry.param.valid() && is_on_mesh(source_.model.params[entry.param.index()]);
  }

  BufferName copy_of(const StateEntry& entry) const { return {BufferWhat::StateCopy, entry.unit, entry.param}; }

  void copy_to_host(BufferName from, const StateEntry& entry) {
    offload(out_, from, copy_of(entry), entry.numel(), entry.dtype);
  }

  void clone(Stream pool, const StateEntry& entry) {
    if (entry.numel() == 0) return;
    out_.alloc(pool, copy_of(entry), entry.numel(), entry.dtype);
    out_.work(InstructionKind::CopyOut, pool, copy_of(entry), entry.numel(), entry.dtype, "aten.clone");
  }

  void copy_unit(UnitId id) {
    const PlanUnit& unit = source_.table.units[id.index()];
    const bool sharded = unit.strategy != Strategy::NoShard;
    for (const std::size_t e : by_unit_[id.index()]) {
      const StateEntry& entry = entries_[e];
      if (request_.kind == StateKind::Local && sharded) {  // no copy, no communication
        if (entry.param.valid() || !request_.offload_to_cpu) continue;
        offload(out_, {BufferWhat::Shard, id, {}}, copy_of(entry), entry.numel(), entry.dtype);
      } else if (request_.kind == StateKind::Sharded && sharded) {
        if (lies_on_mesh(entry))
          cut_over_mesh(out_, id, entry.param);
        else
          clone(Stream::D, entry);
        if (!request_.offload_to_cpu || entry.numel() == 0) continue;
        copy_to_host(copy_of(entry), entry);
        out_.free(Stream::D, copy_of(entry));
      } else {  // the offloaded full parameter is a host tensor already, a DTensor one of its mesh's device again
        const bool on_host = request_.offload_to_cpu && sharded && !lies_on_mesh(entry);
        clone(on_host ? Stream::Host : Stream::D, entry);
      }
    }
  }

  void dtensor(UnitId id, const ShardedParam& param) {
    const DType dtype = source_.model.params[param.param.index()].dtype;
    const BufferName copy{BufferWhat::StateCopy, id, param.param};
    if (request_.kind == StateKind::Sharded) {
      if (!request_.offload_to_cpu) return;
      offload(out_, {BufferWhat::Shard, id, param.param}, copy, numel_of(param.local_shape), dtype);
      return;
    }
    gather_dtensor(out_, id, param, 0);  // over every dimension that cuts it
    const bool kept = !returns_nothing(source_, request_);
    if (kept && request_.offload_to_cpu) {
      offload(out_, copy, copy, numel_of(whole_shape(source_.model.params[param.param.index()])), dtype);
    }
    if (!kept || request_.offload_to_cpu) out_.free(Stream::D, copy);
  }

  /// Ignored parameters and buffers: as they are, or on the host.
  void copy_rest() {
    if (!request_.offload_to_cpu) return;
    std::int32_t buffer = 0;
    for (const StateEntry& entry : entries_) {
      if (entry.unit.valid()) continue;
      if (entry.param.valid()) {
        copy_to_host({BufferWhat::Param, {}, entry.param}, entry);
        continue;
      }
      offload(out_, {BufferWhat::ModuleBuffer, {}, {}}, {BufferWhat::StateCopy, {}, {}}, entry.numel(), entry.dtype,
              buffer++);
    }
  }

  ActionWriter& out_;
  const ActionRequest& request_;
  const StateSource& source_;
  std::vector<StateEntry> entries_;
  std::vector<std::vector<std::size_t>> by_unit_;
};

}  // namespace

Result<void> write_save(ActionWriter& out, const ActionRequest& request) {
  Save save(out, request);
  switch (out.source().job.fsdp.runtime) {
    case Runtime::Fsdp1: {
      const Result<void> saved = save.fsdp1();
      if (!saved) return saved;
      break;
    }
    case Runtime::Planned:
    case Runtime::Fsdp2: save.fsdp2(); break;
    case Runtime::None: save.whole(); break;
  }
  if (request.optimizer) write_optimizer_save(out, request);
  return {};
}

}  // namespace foreshard::actions
