// Wrapping as a plan (I1..I7, H3, H4, F2-4): unit by unit in build order, parameters are made or moved, synchronised
// from rank 0, flattened and sharded, and given back.
#include <algorithm>

#include "core/plan/actions/action_writer.h"

namespace foreshard::actions {
namespace {

class Init {
 public:
  Init(ActionWriter& out, const ActionRequest& request)
      : out_(out),
        request_(request),
        model_(out.source().model),
        job_(out.source().job),
        table_(out.source().table),
        synced_(model_.buffers.size(), false),
        made_(model_.params.size(), false),
        buffer_made_(model_.buffers.size(), false),
        buffers_of_(model_.modules.size()) {
    for (std::size_t b = 0; b < model_.buffers.size(); ++b) {
      buffers_of_[model_.buffers[b].owner.valid() ? model_.buffers[b].owner.index() : 0].push_back(b);
    }
  }

  Result<void> write() {
    const bool on_host = job_.cluster.init == "host";
    if (on_host && !request_.device_id && request_.sync_module_states) {  // I5
      return fail(refused(request_, "parameters on the host cannot be broadcast from rank 0 (I5)",
                          "a device_id, so that they are moved first", "leave no_device_id away"));
    }
    stays_ = on_host && !request_.device_id;
    if (stays_)
      out_.plan().warnings.push_back("the module stays on the CPU: flattening and sharding there is slow (I2)");
    place_ = stays_ ? Stream::Host : Stream::D;
    out_.host_wait();
    if (job_.cluster.init != "meta") make_everything(on_host);
    switch (job_.fsdp.runtime) {
      case Runtime::Fsdp1:
        for (const UnitId id : table_.build_order) wrap(id);
        break;
      case Runtime::Planned:
      case Runtime::Fsdp2: wrap_fsdp2(); break;
      case Runtime::None: replicate(); break;
    }
    return {};
  }

 private:
  BufferName param_name(ParamId param) const { return {BufferWhat::Param, table_.unit_of_param[param.index()], param}; }
  Numel numel(ParamId param) const { return numel_of(model_.params[param.index()].shape); }
  DType dtype(ParamId param) const { return model_.params[param.index()].dtype; }

  void make_param(Stream pool, ParamId param) {
    const ParamId storage = model_.storage_of(param);
    if (made_[storage.index()]) return;
    made_[storage.index()] = true;
    out_.alloc(pool, param_name(storage), numel(storage), dtype(storage));
  }

  void make_buffer(Stream pool, std::size_t buffer) {
    if (buffer_made_[buffer]) return;
    buffer_made_[buffer] = true;
    out_.alloc(pool, {BufferWhat::ModuleBuffer, {}, {}}, numel_of(model_.buffers[buffer].shape),
               model_.buffers[buffer].dtype, static_cast<std::int32_t>(buffer));
  }

  /// The user's constructor ran before wrapping: the whole model is there.
  void make_everything(bool on_host) {
    const Stream pool = on_host ? Stream::Host : Stream::D;
    out_.mark("model_made");
    for (std::size_t p = 0; p < model_.params.size(); ++p) make_param(pool, ParamId(p));
    for (std::size_t b = 0; b < model_.buffers.size(); ++b) make_buffer(pool, b);
    if (on_host && !stays_) {  // not on the device yet
      moved_.assign(model_.params.size(), false);
      buffer_moved_.assign(model_.buffers.size(), false);
    }
  }

  /// I3, I4: modules of the unit in breadth-first order, nested units and ignored modules left out.
  std::vector<ModuleId> own_modules(UnitId id) const {
    std::vector<ModuleId> order = table_.units[id.index()].modules;
    for (std::size_t k = 0; k < order.size(); ++k) {
      for (const ModuleId child : model_.modules[order[k].index()].children) {
        const ModuleInfo& module = model_.modules[child.index()];
        const bool ignored = std::any_of(job_.fsdp.ignored.begin(), job_.fsdp.ignored.end(),
                                         [&](const std::string& p) { return matches_pattern(p, module.fqn); });
        if (!ignored && !module.alias_of.valid() && !table_.unit_of_module[child.index()].valid())
          order.push_back(child);
      }
    }
    return order;
  }

  /// I4: every module with own parameters or buffers is made empty on the device and reset once.
  void materialise(UnitId id, const std::vector<ModuleId>& modules) {
    for (const ModuleId module : modules) {
      const std::size_t before = out_.plan().iterations.back().instructions.size();
      Numel elements = 0;
      for (const ParamId param : model_.modules[module.index()].params) {
        if (!made_[model_.storage_of(param).index()]) elements += numel(param);
        make_param(Stream::D, param);
      }
      for (const std::size_t b : buffers_of_[module.index()]) make_buffer(Stream::D, b);
      if (out_.plan().iterations.back().instructions.size() == before) continue;
      const NameId reset = out_.intern("reset_parameters");
      Instruction& fill = out_.add(InstructionKind::Fill, Stream::D, id);
      fill.name = reset;
      fill.numel = elements;
      fill.arg = module.value;
    }
  }

  void move_tensor(BufferName buffer, Numel elements, DType type, std::int32_t instance) {
    out_.alloc(Stream::D, buffer, elements, type, instance);
    out_.transfer(InstructionKind::H2d, buffer, elements, type).arg = instance;
    out_.free(Stream::Host, buffer, instance);
  }

  /// I2, I3: what the unit manages, and its modules' buffers, go to the device; ignored parameters do not.
  void move(UnitId id, const std::vector<ModuleId>& modules) {
    if (moved_.empty() && buffer_moved_.empty()) return;
    for (const ParamId param : table_.units[id.index()].params) {
      if (moved_[param.index()]) continue;
      moved_[param.index()] = true;
      move_tensor(param_name(param), numel(param), dtype(param), 0);
    }
    for (const ModuleId module : modules) {
      for (const std::size_t b : buffers_of_[module.index()]) {
        if (buffer_moved_[b]) continue;
        buffer_moved_[b] = true;
        move_tensor({BufferWhat::ModuleBuffer, {}, {}}, numel_of(model_.buffers[b].shape), model_.buffers[b].dtype,
                    static_cast<std::int32_t>(b));
      }
    }
  }

  /// I5: buffers that no unit inside has sent, then the unit's parameters.
  std::vector<BroadcastTensor> unsynced(UnitId id) {
    std::vector<BroadcastTensor> tensors;
    for (std::size_t b = 0; b < model_.buffers.size(); ++b) {
      const BufferInfo& buffer = model_.buffers[b];
      if (synced_[b] || !inside(buffer.owner, id)) continue;
      synced_[b] = true;
      tensors.push_back(
          {{BufferWhat::ModuleBuffer, {}, {}}, static_cast<std::int32_t>(b), numel_of(buffer.shape), buffer.dtype});
    }
    for (const ParamId param : table_.units[id.index()].params) {
      tensors.push_back({param_name(param), 0, numel(param), dtype(param)});
    }
    return tensors;
  }

  bool inside(ModuleId module, UnitId id) const {
    const std::vector<ModuleId>& tops = table_.units[id.index()].modules;
    for (; module.valid(); module = model_.modules[module.index()].parent) {
      if (std::find(tops.begin(), tops.end(), module) != tops.end()) return true;
    }
    return false;
  }

  void synchronise(UnitId id) {
    const PlanUnit& unit = table_.units[id.index()];
    broadcast(out_, unsynced(id), id, out_.group_of(id));
    if (unit.strategy != Strategy::HybridShard && unit.strategy != Strategy::HybridShardZero2) return;
    std::vector<BroadcastTensor> params;
    for (const ParamId param : unit.params) params.push_back({param_name(param), 0, numel(param), dtype(param)});
    broadcast(out_, params, id, out_.replicas());
  }

  /// I1 for one fsdp1 unit; peak 2 n e_o + c e_o (I6).
  void wrap(UnitId id) {
    const PlanUnit& unit = table_.units[id.index()];
    out_.mark("wrap", id);
    const std::vector<ModuleId> modules = own_modules(id);
    if (job_.cluster.init == "meta") materialise(id, modules);
    move(id, modules);
    if (request_.sync_module_states) synchronise(id);
    if (unit.params.empty()) return;
    flatten(id, unit);
    // I6: the flat copy went first, now the originals, under both settings of use_orig_params.
    for (const ParamId param : unit.params) out_.free(place_, param_name(param));
    if (job_.fsdp.cpu_offload && !stays_) {  // I1: last, the shard goes to the host
      const BufferName shard{BufferWhat::Shard, id, {}};
      out_.alloc(Stream::Host, shard, unit.shard_numel, unit.orig_dtype);
      out_.transfer(InstructionKind::D2h, shard, unit.shard_numel, unit.orig_dtype);
      out_.free(Stream::D, shard);
    }
  }

  void flatten(UnitId id, const PlanUnit& unit) {
    const BufferName shard{BufferWhat::Shard, id, {}};
    const bool sharded = unit.strategy != Strategy::NoShard;
    const BufferName flat = sharded ? BufferName{BufferWhat::Flat, id, {}} : shard;
    out_.alloc(place_, flat, unit.flat_numel, unit.orig_dtype);
    out_.work(InstructionKind::Concat, place_, flat, unit.flat_numel, unit.orig_dtype, "aten.cat");
    if (!sharded) return;  // H4: the whole vector is kept
    const Numel real =
        std::clamp<Numel>(unit.flat_numel - unit.shard_numel * out_.source().rank_in_group(), 0, unit.shard_numel);
    out_.alloc(place_, shard, unit.shard_numel, unit.orig_dtype);
    out_.work(InstructionKind::CopyOut, place_, shard, real, unit.orig_dtype, "aten.clone");
    if (real < unit.shard_numel) {
      out_.work(InstructionKind::Pad, place_, shard, unit.shard_numel - real, unit.orig_dtype, "aten.constant_pad_nd");
    }
    out_.free(place_, flat);
  }

  /// F2-1, F2-4. From meta the units are made of meta shards, and the whole model is then made empty on its device.
  void wrap_fsdp2() {
    const bool meta = job_.cluster.init == "meta";
    std::vector<std::pair<const ShardedParam*, UnitId>> shards;
    for (const UnitId id : table_.build_order) {
      if (!meta) out_.mark("wrap", id);
      if (!meta) move(id, own_modules(id));
      for (const ShardedParam& param : table_.units[id.index()].sharded) {
        if (meta) {
          shards.emplace_back(&param, id);
        } else {
          shard(param, id);
        }
      }
    }
    if (!meta) return;
    std::stable_sort(shards.begin(), shards.end(),
                     [](const auto& a, const auto& b) { return a.first->param < b.first->param; });
    out_.mark("to_empty");
    const Stream pool = job_.fsdp.cpu_offload ? Stream::Host : Stream::D;
    for (const auto& [param, id] : shards) {
      made_[param->param.index()] = true;
      const BufferName name{BufferWhat::Shard, id, param->param};
      const Numel elements = numel_of(param->padded_local_shape);
      const DType type = model_.params[param->param.index()].dtype;
      out_.alloc(pool, name, elements, type);
      out_.work(InstructionKind::Fill, pool, name, elements, type, "reset_parameters");
    }
    for (std::size_t p = 0; p < model_.params.size(); ++p) make_param(pool, ParamId(p));  // managed by no unit
    for (std::size_t b = 0; b < model_.buffers.size(); ++b) make_buffer(pool, b);
  }

  void shard(const ShardedParam& param, UnitId id) {
    const BufferName name{BufferWhat::Shard, id, param.param};
    const Numel elements = numel_of(param.padded_local_shape);
    const DType type = model_.params[param.param.index()].dtype;
    out_.alloc(place_, name, elements, type);
    const Numel real = numel_of(param.local_shape);
    if (real < elements) out_.work(InstructionKind::Fill, place_, name, elements, type, "aten.new_zeros");
    out_.work(InstructionKind::CopyOut, place_, name, real, type, "aten.copy_");
    if (job_.fsdp.cpu_offload && !stays_) {
      out_.alloc(Stream::Host, name, elements, type).pinned = job_.fsdp.offload_pin_memory;
      out_.transfer(InstructionKind::D2h, name, elements, type);
      out_.free(place_, name);
    }
    out_.free(place_, param_name(param.param));  // F2-4: at once, parameter by parameter
  }

  /// Plain replicas: one tensor a parameter; DistributedDataParallel sends rank 0's in the buckets of I5.
  void replicate() {
    if (job_.cluster.init == "meta") {
      for (std::size_t p = 0; p < model_.params.size(); ++p) make_param(Stream::D, ParamId(p));
      for (std::size_t b = 0; b < model_.buffers.size(); ++b) make_buffer(Stream::D, b);
    }
    std::vector<BroadcastTensor> tensors;
    for (std::size_t p = 0; p < model_.params.size(); ++p) {
      if (model_.params[p].shares.valid()) continue;
      if (!moved_.empty()) move_tensor(param_name(ParamId(p)), numel(ParamId(p)), dtype(ParamId(p)), 0);
      tensors.push_back({param_name(ParamId(p)), 0, numel(ParamId(p)), dtype(ParamId(p))});
    }
    for (std::size_t b = 0; b < model_.buffers.size(); ++b) {
      const BufferName name{BufferWhat::ModuleBuffer, {}, {}};
      const auto instance = static_cast<std::int32_t>(b);
      const Numel elements = numel_of(model_.buffers[b].shape);
      if (!buffer_moved_.empty()) move_tensor(name, elements, model_.buffers[b].dtype, instance);
      tensors.push_back({name, instance, elements, model_.buffers[b].dtype});
    }
    if (out_.plan().world_size > 1 && !stays_) {
      broadcast(out_, tensors, {}, out_.world());
    }
  }

  ActionWriter& out_;
  const ActionRequest& request_;
  const Model& model_;
  const Job& job_;
  const UnitTable& table_;
  bool stays_ = false;        // on the host, and flattened there
  Stream place_ = Stream::D;  // where units are wrapped
  std::vector<bool> synced_;  // by buffer: sent once in the tree
  std::vector<bool> made_, buffer_made_;
  std::vector<std::vector<std::size_t>> buffers_of_;  // by module
  std::vector<bool> moved_, buffer_moved_;            // empty unless the model was made on the host
};

}  // namespace

Result<void> write_init(ActionWriter& out, const ActionRequest& request) { return Init(out, request).write(); }

}  // namespace foreshard::actions
