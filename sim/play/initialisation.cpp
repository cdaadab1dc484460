#include "sim/play/initialisation.h"

#include <algorithm>
#include <utility>

#include "core/model/module_kind.h"
#include "core/plan/units/full_precision.h"
#include "core/plan/units/module_tree.h"
#include "core/plan/units/unit_params.h"
#include "sim/play/cut_on_device.h"
#include "sim/play/resident_state.h"

namespace foreshard {
namespace {

/// M5: mixed precision casts what torch.is_floating_point is true of, which complex numbers are not.
bool is_cast(DType dtype) { return is_floating(dtype) && !is_complex(dtype); }

constexpr int kCompute = static_cast<int>(Stream::D);

/// Post-order of the units: inner ones are wrapped before the unit around them (I1). Handle order is pre-order.
std::vector<std::size_t> wrapping_order(const Plan& plan) {
  std::vector<std::size_t> order, open;
  const auto inside = [&](std::size_t inner, std::size_t outer) {
    const std::string& name = plan.units[outer].name;
    return name.empty() || plan.units[inner].name.starts_with(name + ".");
  };
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    while (!open.empty() && !inside(u, open.back())) {
      order.push_back(open.back());
      open.pop_back();
    }
    open.push_back(u);
  }
  while (!open.empty()) {
    order.push_back(open.back());
    open.pop_back();
  }
  return order;
}

bool resident(Device& device, Bytes bytes) {
  return device.book.allocate(bytes, kCompute, MemoryCategory::ShardedParams) != kNoBlock;
}

/// W6: batch norms are units without mixed precision, whose buffers nobody casts.
bool is_of_full_precision_norm(const Model& model, const BufferInfo& buffer, const Job& job) {
  return buffer.owner.valid() && keeps_norms_in_full_precision(job) &&
         is_instance(model.modules[buffer.owner.index()], batch_norm_class_names());
}

/// The program names a buffer by the type it computes in; FSDP1 makes it in float32 and casts it later (M5).
bool make_buffer(Device& device, const Model& model, const BufferInfo& buffer, const Job& job,
                 std::vector<ResidentBuffer>& buffers) {
  const bool cast_later =
      job.fsdp.runtime == Runtime::Fsdp1 && is_cast(buffer.dtype) && job.fsdp.mixed_precision.buffer == buffer.dtype;
  const DType dtype = cast_later ? DType::Float32 : buffer.dtype;
  const Numel numel = numel_of(buffer.shape);
  const BlockHandle block = device.book.allocate(numel * itemsize(dtype), kCompute, MemoryCategory::ShardedParams);
  if (block == kNoBlock) return false;
  const auto number = static_cast<std::int32_t>(&buffer - model.buffers.data());
  if (!is_of_full_precision_norm(model, buffer, job)) buffers.push_back({block, numel, dtype, false, number});
  return true;
}

bool make_buffers(Device& device, const Model& model, const Job& job, std::vector<ResidentBuffer>& buffers) {
  return std::all_of(model.buffers.begin(), model.buffers.end(),
                     [&](const BufferInfo& buffer) { return make_buffer(device, model, buffer, job, buffers); });
}

/// One tensor of the whole model: a parameter, or (invalid) a buffer.
struct Member {
  ParamId param;
  const BufferInfo* buffer = nullptr;
};

/// Parameters and buffers as modules are constructed: what a module holds itself, what is inside it, its buffers.
void add_members(const Model& model, ModuleId id, std::vector<Member>& members) {
  const ModuleInfo& module = model.modules[id.index()];
  for (const ParamId param : module.params) members.push_back({param, nullptr});
  for (const ModuleId child : module.children) {
    if (!model.modules[child.index()].alias_of.valid()) add_members(model, child, members);
  }
  for (const BufferInfo& buffer : model.buffers) {
    if (buffer.owner == id) members.push_back({ParamId(), &buffer});
  }
}

std::vector<Member> members_of(const Model& model) {
  std::vector<Member> members;
  if (!model.modules.empty()) add_members(model, ModuleId(std::size_t{0}), members);
  return members;
}

/// The whole model on the device, by storage owner. A tied parameter is a tensor of its own until the model is built.
bool make_whole(Device& device, const Model& model, const Job& job, MemoryCategory category,
                std::vector<BlockHandle>& full, std::vector<ResidentBuffer>& buffers) {
  std::vector<BlockHandle> tied;
  const std::vector<ParamId> untied = untied_from(model);
  for (const Member& member : members_of(model)) {
    if (member.buffer != nullptr) {
      if (!make_buffer(device, model, *member.buffer, job, buffers)) return false;
      continue;
    }
    const BlockHandle block = device.book.allocate(made_bytes(model, member.param, job), kCompute, category);
    if (block == kNoBlock) return false;
    if (makes_whole(job) && untied[member.param.index()].valid()) {
      tied.push_back(block);
      continue;
    }
    const bool later = makes_whole(job) && is_tied_later(model, member.param, job);
    BlockHandle& kept = full[later ? member.param.index() : model.storage_of(member.param).index()];
    if (kept == kNoBlock)
      kept = block;
    else
      tied.push_back(block);
  }
  for (const BlockHandle block : tied) device.book.free(block);
  return !makes_whole(job) || cut_whole(device, model, job, untied, full);
}

/// I4: modules breadth first, nested units left out.
class MaterialisedModules {
 public:
  MaterialisedModules(const Plan& plan, const Model& model) : model_(model), units_(model.modules.size(), 0) {
    for (const PlanUnit& unit : plan.units)
      for (const ModuleId module : unit.modules) ++units_[module.index()];
  }

  std::vector<ModuleId> of(const PlanUnit& unit) const {
    std::vector<ModuleId> order(unit.modules);
    for (std::size_t k = 0; k < order.size(); ++k) {
      for (const ModuleId child : model_.modules[order[k].index()].children) {
        const auto own = std::count(unit.modules.begin(), unit.modules.end(), child);
        if (units_[child.index()] == own && !model_.modules[child.index()].alias_of.valid()) order.push_back(child);
      }
    }
    return order;
  }

 private:
  const Model& model_;
  std::vector<std::ptrdiff_t> units_;  // by module: how often one is of it
};

/// By ParamId: fsdp.ignored leaves them to the script, which has them whole on the device (N1, N2).
std::vector<bool> unmanaged_params(const Plan& plan, const Model& model) {
  std::vector<bool> unmanaged(model.params.size());
  for (std::size_t p = 0; p < unmanaged.size(); ++p) unmanaged[p] = !model.params[p].shares.valid();
  for (const PlanUnit& unit : plan.units)
    for (const ParamId param : unit.params) unmanaged[model.storage_of(param).index()] = false;
  return unmanaged;
}

/// FSDP1 (I1, I4, I6): originals, flat copy, shard; the flat copy goes first. With original parameters the parameter
/// objects are pointed elsewhere and their storages go too; without, they are deleted, but a materialising function
/// that remembers tied parameters keeps the originals of all units until wrapping is done.
class Fsdp1Wrapping {
 public:
  Fsdp1Wrapping(Device& device, const Plan& plan, const Model& model, const Job& job,
                std::vector<ResidentBuffer>& buffers)
      : device_(device),
        plan_(plan),
        model_(model),
        job_(job),
        buffers_(buffers),
        materialised_(plan, model),
        unmanaged_(unmanaged_params(plan, model)),
        original_(model.params.size(), kNoBlock) {}

  bool wrap() {
    const bool whole = is_made_before(job_);
    if (whole && !make_whole(device_, model_, job_, MemoryCategory::Temporaries, original_, buffers_)) return false;
    for (std::size_t p = 0; p < unmanaged_.size(); ++p) {  // the script makes them before it wraps
      if (!unmanaged_[p]) continue;
      if (!whole && !make_param(ParamId(p))) return false;
      device_.book.relabel(original_[p], MemoryCategory::ShardedParams);
    }
    for (const std::size_t u : wrapping_order(plan_)) {
      device_.book.set_unit(static_cast<std::int32_t>(u));
      if (!wrap_unit(plan_.units[u])) return false;
    }
    device_.book.set_unit(-1);
    for (std::size_t p = 0; p < original_.size(); ++p)
      if (!unmanaged_[p]) device_.book.free(std::exchange(original_[p], kNoBlock));
    return true;
  }

 private:
  bool make_param(ParamId id) {
    BlockHandle& block = original_[model_.storage_of(id).index()];
    if (block != kNoBlock) return true;
    block = device_.book.allocate(param_bytes(model_, model_.storage_of(id)), kCompute, MemoryCategory::Temporaries);
    return block != kNoBlock;
  }

  bool materialise(const PlanUnit& unit) {
    for (const ModuleId module : materialised_.of(unit)) {
      for (const ParamId param : model_.modules[module.index()].params) {
        if (!make_param(param)) return false;
      }
      for (const BufferInfo& buffer : model_.buffers) {
        if (buffer.owner == module && !make_buffer(device_, model_, buffer, job_, buffers_)) return false;
      }
    }
    return true;
  }

  bool wrap_unit(const PlanUnit& unit) {
    const Bytes element = itemsize(unit.orig_dtype);
    if (!is_made_before(job_) && !materialise(unit)) return false;
    if (unit.params.empty()) return true;
    const bool sharded = unit.strategy != Strategy::NoShard && unit.shard_size > 1;
    const BlockHandle flat = device_.book.allocate(
        unit.flat_numel * element, kCompute, sharded ? MemoryCategory::FullParams : MemoryCategory::ShardedParams);
    if (flat == kNoBlock) return false;
    if (sharded) {
      const BlockHandle shard =
          device_.book.allocate(unit.shard_numel * element, kCompute, MemoryCategory::ShardedParams);
      if (shard == kNoBlock) return false;
      device_.book.free(flat);
      if (job_.fsdp.cpu_offload) device_.book.free(shard);  // C1: it moves to the host
    } else if (job_.fsdp.cpu_offload && job_.fsdp.use_orig_params) {
      device_.book.free(flat);
    } else if (job_.fsdp.cpu_offload) {
      buffers_.push_back({flat, unit.flat_numel, unit.orig_dtype, true});
    }
    if (!job_.fsdp.use_orig_params && !is_made_before(job_)) return true;
    for (const ParamId param : unit.params) {
      device_.book.free(std::exchange(original_[model_.storage_of(param).index()], kNoBlock));
    }
    return true;
  }

  Device& device_;
  const Plan& plan_;
  const Model& model_;
  const Job& job_;
  std::vector<ResidentBuffer>& buffers_;
  const MaterialisedModules materialised_;
  const std::vector<bool> unmanaged_;  // by parameter
  std::vector<BlockHandle> original_;  // by parameter
};

/// FSDP2 (F2-1): from meta only shards are ever made, when the whole model moves; on the device the whole model exists
/// first, and a unit's parameters go when all of its shards are there; from the host each unit moves whole.
class Fsdp2Wrapping {
 public:
  Fsdp2Wrapping(Device& device, const Plan& plan, const Model& model, const Job& job,
                std::vector<ResidentBuffer>& buffers)
      : device_(device),
        plan_(plan),
        model_(model),
        job_(job),
        buffers_(buffers),
        shard_(model.params.size()),
        unit_of_(model.modules.size(), nullptr),
        owned_(model.modules.size()) {
    for (auto unit = plan.units.rbegin(); unit != plan.units.rend(); ++unit) {  // the first that wraps a module counts
      for (const ModuleId module : unit->modules) unit_of_[module.index()] = &*unit;
    }
    for (const BufferInfo& buffer : model.buffers) {
      if (buffer.owner.valid()) owned_[buffer.owner.index()].push_back(&buffer);
    }
    for (const std::size_t u : wrapping_order(plan)) {
      for (const ShardedParam& param : plan.units[u].sharded) {  // of several dtypes where some are frozen
        const Bytes element = itemsize(model.params[param.param.index()].dtype);
        shard_[model.storage_of(param.param).index()] = {numel_of(param.padded_local_shape) * element,
                                                         numel_of(param.local_shape) * element,
                                                         u,
                                                         kNoBlock,
                                                         false,
                                                         false};
      }
    }
  }

  bool wrap() {
    const bool made = job_.cluster.init == "host" ? cut_from_host()
                      : is_made_before(job_)      ? cut()
                                                  : model_.modules.empty() || move(ModuleId(std::size_t{0}));
    if (made) drop_tied();
    return made;
  }

 private:
  struct Shard {
    Bytes bytes = -1;  // padded; of a parameter that no unit manages -1
    Bytes own = 0;     // without padding
    std::size_t unit = 0;
    BlockHandle block = kNoBlock;
    bool pinned = false;    // F2-26: on the host
    bool is_short = false;  // not padded yet
  };

  /// fsdp.tied: a unit takes the other's shards for its own (FSDPParam.reset_sharded_param).
  void drop_tied() {
    const auto tied = tied_when_sharded(model_, job_);
    for (std::size_t p = 0; tied && p < tied->size(); ++p) {
      if ((*tied)[p].valid() && shard_[p].block != kNoBlock)
        device_.book.free(std::exchange(shard_[p].block, kNoBlock));
    }
  }

  /// Takes the place of what was there before: a module that moves makes a shard for every name of a tied parameter.
  bool make_shard(ParamId storage, bool padded) {
    Shard& shard = shard_[storage.index()];
    if (shard.bytes < 0) return shard.block != kNoBlock || keep_whole(shard, param_bytes(model_, storage));
    if (job_.fsdp.cpu_offload && job_.fsdp.offload_pin_memory && !std::exchange(shard.pinned, true))
      device_.pin_host_memory(shard.bytes);
    if (job_.fsdp.cpu_offload) return true;
    shard.is_short = !padded && shard.own < shard.bytes;
    return replace(shard, shard.is_short ? shard.own : shard.bytes);
  }

  /// fsdp.ignored: on the device, whatever is offloaded.
  bool keep_whole(Shard& shard, Bytes bytes) {
    shard.block = device_.book.allocate(bytes, kCompute, MemoryCategory::ShardedParams);
    return shard.block != kNoBlock;
  }

  bool replace(Shard& shard, Bytes bytes) {
    BlockHandle made = kNoBlock;
    if (bytes > 0) {
      device_.book.set_unit(static_cast<std::int32_t>(shard.unit));
      made = device_.book.allocate(bytes, kCompute, MemoryCategory::ShardedParams);
      device_.book.set_unit(-1);
      if (made == kNoBlock) return false;
    }
    if (shard.block != kNoBlock) device_.book.free(shard.block);
    shard.block = made;
    return true;
  }

  /// FSDPModule._apply, reset_sharded_param: shards that are shorter than others' are copied into padded ones. A unit
  /// of several modules does so after each, with what is there.
  bool pad(const PlanUnit& unit) {
    return std::ranges::all_of(unit.sharded, [this](const ShardedParam& param) {
      Shard& shard = shard_[model_.storage_of(param.param).index()];
      return !std::exchange(shard.is_short, false) || replace(shard, shard.bytes);
    });
  }

  bool cut() {
    std::vector<BlockHandle> full(model_.params.size(), kNoBlock);
    if (!make_whole(device_, model_, job_, MemoryCategory::FullParams, full, buffers_)) return false;
    for (const std::size_t u : wrapping_order(plan_)) {
      for (const ShardedParam& param : plan_.units[u].sharded) {
        if (!make_shard(model_.storage_of(param.param), true)) return false;
      }
      for (const ShardedParam& param : plan_.units[u].sharded)
        device_.book.free(std::exchange(full[model_.storage_of(param.param).index()], kNoBlock));
    }
    for (const BlockHandle block : full) {
      if (block >= 0) device_.book.relabel(block, MemoryCategory::ShardedParams);  // managed by no unit
    }
    return true;
  }

  /// Parameters, then buffers, of the modules that the unit manages; the parameters go when fully_shard returns.
  bool cut_from_host() {
    std::vector<BlockHandle> parts(model_.params.size(), kNoBlock);
    if (!cut_on_the_way(device_, model_, job_, parts)) return false;
    const MaterialisedModules materialised(plan_, model_);
    for (const std::size_t u : wrapping_order(plan_)) {
      std::vector<BlockHandle> full, on_the_way;
      for (const ShardedParam& param : plan_.units[u].sharded) {
        const BlockHandle part = parts[param.param.index()];
        full.push_back(part != kNoBlock ? part
                                        : device_.book.allocate(param_bytes(model_, param.param), kCompute,
                                                                MemoryCategory::FullParams));
        if (full.back() == kNoBlock) return false;
      }
      for (const ModuleId module : materialised.of(plan_.units[u])) {
        for (const BufferInfo& buffer : model_.buffers) {
          if (buffer.owner == module && !make_buffer(device_, model_, buffer, job_, buffers_)) return false;
        }
      }
      for (const ShardedParam& param : plan_.units[u].sharded) {
        const ParamId storage = model_.storage_of(param.param);
        if (job_.fsdp.cpu_offload)  // made on the device, and taken to the host from there
          on_the_way.push_back(
              device_.book.allocate(shard_[storage.index()].bytes, kCompute, MemoryCategory::Temporaries));
        if (!make_shard(storage, true) || (!on_the_way.empty() && on_the_way.back() == kNoBlock)) return false;
        for (const BlockHandle block : std::exchange(on_the_way, {})) device_.book.free(block);
      }
      for (const BlockHandle block : full) device_.book.free(block);
    }
    for (std::size_t p = 0; p < shard_.size(); ++p)
      if (shard_[p].bytes < 0 && !model_.params[p].shares.valid() && !make_shard(ParamId(p), true)) return false;
    return true;
  }

  /// As Module.to_empty visits it: what is inside, then parameters and buffers.
  bool move(ModuleId id) {
    const ModuleInfo& module = model_.modules[id.index()];
    for (const ModuleId child : module.children) {
      if (!model_.modules[child.index()].alias_of.valid() && !move(child)) return false;
    }
    for (const ParamId param : module.params) {
      if (!make_shard(model_.storage_of(param), false)) return false;
    }
    for (const BufferInfo* buffer : owned_[id.index()]) {
      if (!make_buffer(device_, model_, *buffer, job_, buffers_)) return false;
    }
    const PlanUnit* const unit = unit_of_[id.index()];
    return unit == nullptr || pad(*unit);
  }

  Device& device_;
  const Plan& plan_;
  const Model& model_;
  const Job& job_;
  std::vector<ResidentBuffer>& buffers_;
  std::vector<Shard> shard_;                           // by storage owner
  std::vector<const PlanUnit*> unit_of_;               // by module; nullptr: it is none
  std::vector<std::vector<const BufferInfo*>> owned_;  // by module
};

/// An average of the weights, or several: train.beside is as large as so many copies of what the optimizer steps,
/// tensor by tensor: a script has few of them. 0: it is something else.
Bytes copies_beside(const std::vector<LocalParam>& params, const Job& job) {
  constexpr Bytes kMostCopies = 4;  // two averages, a target, a reference
  Bytes one = 0;
  for (const LocalParam& param : params) one += ceil_div(param.bytes, kMinBlock) * kMinBlock;
  const Bytes copies = one > 0 && job.train.beside % one == 0 ? job.train.beside / one : 0;
  return copies <= kMostCopies ? copies : 0;
}

bool make_copies(Device& device, const std::vector<LocalParam>& params, Bytes copies) {
  for (Bytes copy = 0; copy < copies; ++copy) {
    for (const LocalParam& param : params)
      if (device.book.allocate(param.bytes, kCompute, MemoryCategory::Inputs) == kNoBlock) return false;
  }
  return true;
}

/// Shards and buffers, by the runtime's wrapping.
bool wrap_model(Device& device, const Plan& plan, const Model& model, const Job& job,
                std::vector<ResidentBuffer>& buffers) {
  switch (plan.runtime) {
    case Runtime::Fsdp1: return Fsdp1Wrapping(device, plan, model, job, buffers).wrap();
    case Runtime::Planned:
    case Runtime::Fsdp2: return Fsdp2Wrapping(device, plan, model, job, buffers).wrap();
    case Runtime::None: break;
  }
  const auto is_cut = [](const ParamInfo& param) { return param.part.dim >= 0; };
  if (makes_whole(job) && std::any_of(model.params.begin(), model.params.end(), is_cut)) {
    std::vector<BlockHandle> full(model.params.size(), kNoBlock);
    return make_whole(device, model, job, MemoryCategory::ShardedParams, full, buffers);
  }
  for (std::size_t p = 0; p < model.params.size(); ++p) {
    if (!model.params[p].shares.valid() && !resident(device, param_bytes(model, ParamId(p)))) return false;
  }
  return make_buffers(device, model, job, buffers);
}

}  // namespace

bool hold_beside(Device& device, Bytes bytes) {
  constexpr Bytes kSegment = 20 * kMiB;  // A3: a large one; what is up to 1 MiB shares segments of 2
  while (bytes > 0) {
    const Bytes block = bytes >= kSegment ? kSegment : std::min(bytes, kMiB);
    if (device.book.allocate(block, kCompute, MemoryCategory::Inputs) == kNoBlock) return false;
    bytes -= block;
  }
  return true;
}

bool play_initialisation(Device& device, const Plan& plan, const Model& model, const Job& job,
                         std::vector<ResidentBuffer>& buffers) {
  if (job.train.beside <= 0) return wrap_model(device, plan, model, job, buffers);
  const std::vector<LocalParam> params = local_params(plan, model, job);
  const Bytes copies = copies_beside(params, job);
  if (copies == 0 && !hold_beside(device, job.train.beside)) return false;
  return wrap_model(device, plan, model, job, buffers) && make_copies(device, params, copies);
}

bool play_lazy_initialisation(Device& device, const Plan& plan) {
  const auto touch = [&device](Numel numel, DType dtype) {
    const BlockHandle block = device.book.allocate(numel * itemsize(dtype), kCompute, MemoryCategory::CommBuffers);
    if (block == kNoBlock) return false;
    device.book.free(block);
    return true;
  };
  for (const PlanUnit& unit : plan.units) {
    if (unit.params.empty()) continue;
    const bool sharded = unit.strategy != Strategy::NoShard;
    const bool casts = unit.param_dtype != unit.orig_dtype;
    if (casts && !touch(sharded ? unit.shard_numel : unit.flat_numel, unit.param_dtype)) return false;
    if (sharded && !touch(unit.padded_numel, unit.param_dtype)) return false;
    if (sharded && casts && !touch(unit.padded_numel, unit.orig_dtype)) return false;
  }
  return true;
}

void drop_viewed(Device& device, std::vector<ResidentBuffer>& buffers) {
  for (const ResidentBuffer& buffer : buffers)
    if (buffer.viewed) device.book.free(buffer.block);
  std::erase_if(buffers, [](const ResidentBuffer& buffer) { return buffer.viewed; });
}

bool cast_buffers(Device& device, std::vector<ResidentBuffer>& buffers, DType dtype) {
  for (ResidentBuffer& buffer : buffers) {
    if (buffer.dtype == dtype || !is_cast(buffer.dtype)) continue;
    const BlockHandle cast =
        device.book.allocate(buffer.numel * itemsize(dtype), kCompute, MemoryCategory::ShardedParams);
    if (cast == kNoBlock) return false;
    device.book.free(buffer.block);
    buffer.block = cast;
    buffer.dtype = dtype;
  }
  return true;
}

}  // namespace foreshard
