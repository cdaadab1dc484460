#include "sim/resident_state.h"

#include <algorithm>
#include <utility>

namespace foreshard {
namespace {

constexpr int kD = static_cast<int>(Stream::D);
constexpr Numel kChunk = 65536;           // elements of one block of a multi-tensor kernel
constexpr std::int64_t kMaxBlocks = 320;  // blocks of one launch

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

std::int64_t rank_in_group(const Plan& plan) {
  const auto& shard = plan.groups.shard;
  const auto it = std::find(shard.begin(), shard.end(), plan.rank);
  return it == shard.end() ? 0 : it - shard.begin();
}

bool resident(Device& device, Bytes bytes) {
  return device.book.allocate(bytes, kD, MemoryCategory::ShardedParams) != kNoBlock;
}

/// The program names a buffer by the type it computes in; FSDP1 makes it in float32 and casts it later (M5).
bool make_buffer(Device& device, const BufferInfo& buffer, const Job& job, std::vector<ResidentBuffer>& buffers) {
  const bool cast_later = job.fsdp.runtime == Runtime::Fsdp1 && is_floating(buffer.dtype) &&
                          job.fsdp.mixed_precision.buffer == buffer.dtype;
  const DType dtype = cast_later ? DType::Float32 : buffer.dtype;
  const Numel numel = numel_of(buffer.shape);
  const BlockHandle block = device.book.allocate(numel * itemsize(dtype), kD, MemoryCategory::ShardedParams);
  if (block == kNoBlock) return false;
  buffers.push_back({block, numel, dtype});
  return true;
}

bool make_buffers(Device& device, const Model& model, const Job& job, std::vector<ResidentBuffer>& buffers) {
  return std::all_of(model.buffers.begin(), model.buffers.end(),
                     [&](const BufferInfo& buffer) { return make_buffer(device, buffer, job, buffers); });
}

Bytes param_bytes(const Model& model, ParamId id) {
  const ParamInfo& param = model.params[id.index()];
  return numel_of(param.shape) * itemsize(param.dtype);
}

/// One tensor of the whole model: a parameter, or (invalid) a buffer.
struct Member {
  ParamId param;
  const BufferInfo* buffer = nullptr;
};

/// Parameters and buffers as modules are constructed: what a module holds itself, what is inside it, its buffers.
/// With `inside_first` as Module.to_empty visits them: what is inside, then parameters and buffers.
void add_members(const Model& model, ModuleId id, bool inside_first, std::vector<Member>& members) {
  const ModuleInfo& module = model.modules[id.index()];
  const auto own = [&] {
    for (const ParamId param : module.params) members.push_back({param, nullptr});
  };
  if (!inside_first) own();
  for (const ModuleId child : module.children) {
    if (!model.modules[child.index()].alias_of.valid()) add_members(model, child, inside_first, members);
  }
  if (inside_first) own();
  for (const BufferInfo& buffer : model.buffers) {
    if (buffer.owner == id) members.push_back({ParamId(), &buffer});
  }
}

std::vector<Member> members_of(const Model& model, bool inside_first) {
  std::vector<Member> members;
  if (!model.modules.empty()) add_members(model, ModuleId(std::size_t{0}), inside_first, members);
  return members;
}

/// The whole model on the device, by storage owner. A tied parameter is a tensor of its own until the model is built.
bool make_whole(Device& device, const Model& model, const Job& job, MemoryCategory category,
                std::vector<BlockHandle>& full, std::vector<ResidentBuffer>& buffers) {
  std::vector<BlockHandle> tied;
  for (const Member& member : members_of(model, false)) {
    if (member.buffer != nullptr) {
      if (!make_buffer(device, *member.buffer, job, buffers)) return false;
      continue;
    }
    const BlockHandle block = device.book.allocate(param_bytes(model, member.param), kD, category);
    if (block == kNoBlock) return false;
    BlockHandle& kept = full[model.storage_of(member.param).index()];
    if (kept == kNoBlock)
      kept = block;
    else
      tied.push_back(block);
  }
  for (const BlockHandle block : tied) device.book.free(block);
  return true;
}

/// I4: modules breadth first, nested units left out.
std::vector<ModuleId> materialised_modules(const Plan& plan, const Model& model, const PlanUnit& unit) {
  std::vector<bool> other(model.modules.size(), false);
  for (const PlanUnit& inner : plan.units) {
    if (&inner == &unit) continue;
    for (const ModuleId module : inner.modules) other[module.index()] = true;
  }
  std::vector<ModuleId> order(unit.modules);
  for (std::size_t k = 0; k < order.size(); ++k) {
    for (const ModuleId child : model.modules[order[k].index()].children) {
      if (!other[child.index()] && !model.modules[child.index()].alias_of.valid()) order.push_back(child);
    }
  }
  return order;
}

/// FSDP1 (I1, I4, I6): originals, flat copy, shard; the flat copy goes first. With original parameters the parameter
/// objects are pointed elsewhere and their storages go too; without, a materialising function that remembers tied
/// parameters keeps the originals of all units until wrapping is done.
class Fsdp1Wrapping {
 public:
  Fsdp1Wrapping(Device& device, const Plan& plan, const Model& model, const Job& job,
                std::vector<ResidentBuffer>& buffers)
      : device_(device),
        plan_(plan),
        model_(model),
        job_(job),
        buffers_(buffers),
        original_(model.params.size(), kNoBlock) {}

  bool wrap() {
    if (job_.cluster.init == "device" &&
        !make_whole(device_, model_, job_, MemoryCategory::Temporaries, original_, buffers_))
      return false;
    for (const std::size_t u : wrapping_order(plan_)) {
      device_.book.set_unit(static_cast<std::int32_t>(u));
      if (!wrap_unit(plan_.units[u])) return false;
    }
    device_.book.set_unit(-1);
    for (BlockHandle& block : original_) device_.book.free(std::exchange(block, kNoBlock));
    return true;
  }

 private:
  bool make_param(ParamId id) {
    BlockHandle& block = original_[model_.storage_of(id).index()];
    if (block != kNoBlock) return true;
    block = device_.book.allocate(param_bytes(model_, model_.storage_of(id)), kD, MemoryCategory::Temporaries);
    return block != kNoBlock;
  }

  bool materialise(const PlanUnit& unit) {
    for (const ModuleId module : materialised_modules(plan_, model_, unit)) {
      for (const ParamId param : model_.modules[module.index()].params) {
        if (!make_param(param)) return false;
      }
      for (const BufferInfo& buffer : model_.buffers) {
        if (buffer.owner == module && !make_buffer(device_, buffer, job_, buffers_)) return false;
      }
    }
    return true;
  }

  bool wrap_unit(const PlanUnit& unit) {
    const Bytes element = itemsize(unit.orig_dtype);
    if (job_.cluster.init != "device" && !materialise(unit)) return false;
    if (unit.params.empty()) return true;
    const bool sharded = unit.strategy != Strategy::NoShard && unit.shard_size > 1;
    const BlockHandle flat = device_.book.allocate(
        unit.flat_numel * element, kD, sharded ? MemoryCategory::FullParams : MemoryCategory::ShardedParams);
    if (flat == kNoBlock) return false;
    if (sharded) {
      const BlockHandle shard = device_.book.allocate(unit.shard_numel * element, kD, MemoryCategory::ShardedParams);
      if (shard == kNoBlock) return false;
      device_.book.free(flat);
      if (job_.fsdp.cpu_offload) device_.book.free(shard);  // C1: it moves to the host
    }
    if (!job_.fsdp.use_orig_params) return true;
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
  std::vector<BlockHandle> original_;  // by parameter
};

Bytes padded_bytes(const ShardedParam& param, DType dtype) {
  return numel_of(param.padded_local_shape) * itemsize(dtype);
}

/// FSDP2 (F2-1): from meta only shards are ever made, when the whole model moves; on the device the whole model exists
/// first, and a unit's parameters go when all of its shards are there.
class Fsdp2Wrapping {
 public:
  Fsdp2Wrapping(Device& device, const Plan& plan, const Model& model, const Job& job,
                std::vector<ResidentBuffer>& buffers)
      : device_(device), plan_(plan), model_(model), job_(job), buffers_(buffers), shard_(model.params.size()) {
    for (const std::size_t u : wrapping_order(plan)) {
      for (const ShardedParam& param : plan.units[u].sharded)
        shard_[model.storage_of(param.param).index()] = {padded_bytes(param, plan.units[u].orig_dtype), u};
    }
  }

  bool wrap() { return job_.cluster.init == "device" ? cut() : move(); }

 private:
  struct Shard {
    Bytes bytes = -1;  // of a parameter that no unit manages
    std::size_t unit = 0;
  };

  bool make_shard(ParamId storage) {
    const Shard& shard = shard_[storage.index()];
    device_.book.set_unit(static_cast<std::int32_t>(shard.unit));
    const bool made = shard.bytes < 0 || job_.fsdp.cpu_offload || resident(device_, shard.bytes);
    device_.book.set_unit(-1);
    return made;
  }

  bool cut() {
    std::vector<BlockHandle> full(model_.params.size(), kNoBlock);
    if (!make_whole(device_, model_, job_, MemoryCategory::FullParams, full, buffers_)) return false;
    for (const std::size_t u : wrapping_order(plan_)) {
      for (const ShardedParam& param : plan_.units[u].sharded) {
        if (!make_shard(model_.storage_of(param.param))) return false;
      }
      for (const ShardedParam& param : plan_.units[u].sharded)
        device_.book.free(std::exchange(full[model_.storage_of(param.param).index()], kNoBlock));
    }
    for (const BlockHandle block : full) {
      if (block >= 0) device_.book.relabel(block, MemoryCategory::ShardedParams);  // managed by no unit
    }
    return true;
  }

  bool move() {
    std::vector<bool> made(model_.params.size(), false);
    for (const Member& member : members_of(model_, true)) {
      if (member.buffer != nullptr) {
        if (!make_buffer(device_, *member.buffer, job_, buffers_)) return false;
        continue;
      }
      const ParamId storage = model_.storage_of(member.param);
      if (made[storage.index()]) continue;
      made[storage.index()] = true;
      if (!make_shard(storage)) return false;
    }
    return true;
  }

  Device& device_;
  const Plan& plan_;
  const Model& model_;
  const Job& job_;
  std::vector<ResidentBuffer>& buffers_;
  std::vector<Shard> shard_;  // by storage owner
};

}  // namespace

std::vector<LocalParam> local_params(const Plan& plan, const Model& model, const Job& job) {
  std::vector<std::pair<ParamId, LocalParam>> all;
  const std::int64_t rank = rank_in_group(plan);
  std::int32_t at = -1;
  const auto add = [&all, &at](ParamId id, Numel numel, DType dtype) {
    if (numel > 0) all.push_back({id, {numel, numel * itemsize(dtype), dtype, at}});
  };
  const auto trains = [&model](ParamId id) { return model.params[id.index()].requires_grad; };
  for (const PlanUnit& unit : plan.units) {
    ++at;
    if (!unit.requires_grad) continue;
    if (!unit.sharded.empty()) {  // F2-1
      for (const ShardedParam& param : unit.sharded) {
        if (trains(param.param)) add(param.param, numel_of(param.local_shape), unit.orig_dtype);
      }
    } else if (plan.runtime == Runtime::Fsdp1 && !job.fsdp.use_orig_params) {
      add(unit.params.empty() ? ParamId() : unit.params.front(), unit.shard_numel, unit.orig_dtype);
    } else if (plan.runtime == Runtime::Fsdp1) {  // H6: each parameter's part of this rank's range
      const bool cut = unit.strategy != Strategy::NoShard && unit.shard_size > 1;
      const Numel begin = cut ? rank * unit.shard_numel : 0;
      const Numel end = cut ? begin + unit.shard_numel : unit.flat_numel;
      for (const FlatEntry& entry : unit.flat) {
        if (!entry.param.valid()) continue;
        add(entry.param, std::min(end, entry.offset + entry.numel) - std::max(begin, entry.offset), unit.orig_dtype);
      }
    } else {
      for (const ParamId param : unit.params) {
        if (trains(param)) add(param, numel_of(model.params[param.index()].shape), unit.orig_dtype);
      }
    }
  }
  // model.parameters(): registration order; a flat parameter stands where its module does, before what is inside.
  const bool flat = plan.runtime == Runtime::Fsdp1 && !job.fsdp.use_orig_params;
  if (!flat) std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<LocalParam> params;
  for (auto& [id, param] : all) params.push_back(param);
  return params;
}

bool play_initialisation(Device& device, const Plan& plan, const Model& model, const Job& job,
                         std::vector<ResidentBuffer>& buffers) {
  switch (plan.runtime) {
    case Runtime::Fsdp1: return Fsdp1Wrapping(device, plan, model, job, buffers).wrap();
    case Runtime::Fsdp2: return Fsdp2Wrapping(device, plan, model, job, buffers).wrap();
    case Runtime::None: break;
  }
  for (std::size_t p = 0; p < model.params.size(); ++p) {
    if (!model.params[p].shares.valid() && !resident(device, param_bytes(model, ParamId(p)))) return false;
  }
  return make_buffers(device, model, job, buffers);
}

bool play_lazy_initialisation(Device& device, const Plan& plan) {
  const auto touch = [&device](Numel numel, DType dtype) {
    const BlockHandle block = device.book.allocate(numel * itemsize(dtype), kD, MemoryCategory::CommBuffers);
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

bool cast_buffers(Device& device, std::vector<ResidentBuffer>& buffers, DType dtype) {
  for (ResidentBuffer& buffer : buffers) {
    if (buffer.dtype == dtype || !is_floating(buffer.dtype)) continue;
    const BlockHandle cast = device.book.allocate(buffer.numel * itemsize(dtype), kD, MemoryCategory::ShardedParams);
    if (cast == kNoBlock) return false;
    device.book.free(buffer.block);
    buffer.block = cast;
    buffer.dtype = dtype;
  }
  buffers.clear();
  return true;
}

// ------------------------------------------------------------------------------------------------ clip and step

void OptimizerState::foreach_call(Device& device, const ActivitySpan& what, int passes) {
  std::int64_t blocks = 0;
  Bytes bytes = 0;
  for (const LocalParam& param : params_) {
    blocks += ceil_div(param.numel, kChunk);
    bytes += param.bytes;
  }
  const std::int64_t launches = std::max<std::int64_t>(1, ceil_div(blocks, kMaxBlocks));
  const SimDuration least = device.cost.copy(0, DType::Float32) * launches;
  const SimDuration time =
      device.cost.is_virtual() ? least : std::max(least, device.cost.copy(bytes * passes, DType::Float32));
  device.launch(Stream::D, device.cost.op_ns() + launches * device.cost.launch_ns(), time, what);
}

bool OptimizerState::temporaries(Device& device, std::vector<BlockHandle>& blocks) {
  for (const LocalParam& param : params_) {
    const BlockHandle block = device.book.allocate(param.bytes, kD, MemoryCategory::Temporaries);
    if (block == kNoBlock) return false;
    blocks.push_back(block);
  }
  return true;
}

void OptimizerState::scalar_calls(Device& device, const ActivitySpan& what, int count) {
  for (int call = 0; call < count; ++call) {
    device.launch(Stream::D, device.cost.op_ns() + device.cost.launch_ns(), device.cost.copy(0, DType::Float32), what);
  }
}

bool OptimizerState::scale_loss(Device& device, const ActivitySpan& what) {
  if (!has_scale_) {  // the scale, and how many good steps there were
    for (int i = 0; i < 2; ++i) {
      if (device.book.allocate(4, kD, MemoryCategory::OptimizerState) == kNoBlock) return false;
    }
    scalar_calls(device, what, 2);
    has_scale_ = true;
  }
  scalar_calls(device, what, 2);  // of the loss, and of its gradient
  return true;
}

bool OptimizerState::unscale(Device& device, const ActivitySpan& what) {
  found_inf_ = device.book.allocate(4, kD, MemoryCategory::Temporaries);
  if (found_inf_ == kNoBlock) return false;
  scalar_calls(device, what, 4);  // zero; the reciprocal, in double
  if (!params_.empty()) foreach_call(device, what, 2);
  return true;
}

void OptimizerState::update_scale(Device& device, const ActivitySpan& what) {
  scalar_calls(device, what, 1);
  if (found_inf_ != kNoBlock) device.book.free(std::exchange(found_inf_, kNoBlock));
}

bool OptimizerState::clip(Device& device, const Plan& plan, const ActivitySpan& what) {
  if (params_.empty()) return true;
  if (device.cost.work().measured()) return measured_clip(device, what);
  // The norm of what is not sharded starts as a zero made on the host: FSDP1 copies it over, which blocks.
  if (plan.runtime == Runtime::Fsdp1 && !job_.fsdp.cpu_offload) {
    device.launch(Stream::D, device.cost.launch_ns(), device.cost.transfer(4), what);
    device.clock.stream_synchronize(kD);
    device.clock.host_cost(device.cost.call_ns());
  }
  std::vector<BlockHandle> norms;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const BlockHandle block = device.book.allocate(4, kD, MemoryCategory::Temporaries);
    if (block == kNoBlock) return false;
    norms.push_back(block);
    if (plan.runtime == Runtime::Fsdp1) {  // one norm after the other, each with its cleared semaphore
      device.launch(Stream::D, device.cost.launch_ns(), device.cost.copy(0, DType::Float32), what);
      device.launch(Stream::D, device.cost.op_ns() + device.cost.launch_ns(),
                    device.cost.copy(params_[i].bytes / 8, params_[i].dtype), what);
    }
  }
  if (plan.runtime != Runtime::Fsdp1) foreach_call(device, what, 1);
  scalar_calls(device, what, 8);  // stack, norm, power, root, add, reciprocal, multiply, clamp
  if (plan.runtime == Runtime::Fsdp1) {
    for (const LocalParam& param : params_) {
      device.launch(Stream::D, device.cost.op_ns() + device.cost.launch_ns(),
                    device.cost.copy((device.cost.is_virtual() ? 8 : 2) * param.bytes, param.dtype), what);
    }
  } else {
    foreach_call(device, what, 2);
  }
  for (const BlockHandle block : norms) device.book.free(block);
  return true;
}

bool OptimizerState::make_state(Device& device, const ActivitySpan& what) {
  const OptimizerOptions& options = job_.train.optimizer;
  const bool adam = options.name == OptimizerKind::AdamW;
  const int moments = adam ? 2 : options.momentum != 0 ? 1 : 0;
  const bool step_on_device = adam && options.impl == OptimizerImpl::Fused;
  for (const LocalParam& param : params_) {
    device.book.set_unit(param.unit);
    if (step_on_device && device.book.allocate(4, kD, MemoryCategory::OptimizerState) == kNoBlock) return false;
    if (step_on_device) {
      device.launch(Stream::D, device.cost.op_ns() + device.cost.launch_ns(), device.cost.fill(4), what);
    }
    for (int i = 0; i < moments; ++i) {
      if (device.book.allocate(param.bytes, kD, MemoryCategory::OptimizerState) == kNoBlock) return false;
      device.launch(Stream::D, device.cost.op_ns() + device.cost.launch_ns(), device.cost.fill(param.bytes), what);
    }
  }
  device.book.set_unit(-1);
  has_state_ = true;
  return true;
}

bool OptimizerState::adamw(Device& device, const ActivitySpan& what) {
  const OptimizerImpl impl = job_.train.optimizer.impl;
  if (impl == OptimizerImpl::Fused) {
    foreach_call(device, what, 1);  // the steps
    foreach_call(device, what, 7);  // reads parameter, gradient, two moments; writes three of them
    return true;
  }
  std::vector<BlockHandle> roots;
  if (impl == OptimizerImpl::Foreach) {
    // decay, lerp, scale and add the squares; then the root of the second moment is a copy of every parameter.
    for (const int passes : {2, 3, 2, 3}) foreach_call(device, what, passes);
    if (!temporaries(device, roots)) return false;
    for (const int passes : {2, 2, 2, 4}) foreach_call(device, what, passes);
    for (const BlockHandle block : roots) device.book.free(block);
    return true;
  }
  BlockHandle last = kNoBlock;  // the loop's variable still names the parameter before
  for (const LocalParam& param : params_) {
    const BlockHandle root = device.book.allocate(param.bytes, kD, MemoryCategory::Temporaries);
    if (root == kNoBlock) return false;
    const BlockHandle scaled = device.book.allocate(param.bytes, kD, MemoryCategory::Temporaries);
    if (scaled == kNoBlock) return false;
    device.book.free(root);
    device.book.free(std::exchange(last, scaled));
    for (const int passes : {2, 3, 2, 3, 2, 2, 2, 4}) {
      device.launch(Stream::D, device.cost.op_ns() + device.cost.launch_ns(),
                    device.cost.copy(param.bytes * passes, param.dtype), what);
    }
  }
  device.book.free(last);
  return true;
}

bool OptimizerState::sgd(Device& device, const ActivitySpan& what) {
  const OptimizerOptions& options = job_.train.optimizer;
  const bool decays = options.weight_decay != 0;
  std::vector<BlockHandle> decayed;
  if (decays && options.impl != OptimizerImpl::Fused) {  // grad + decay * param is a new tensor
    if (!temporaries(device, decayed)) return false;
    foreach_call(device, what, 3);
  }
  if (options.momentum != 0) foreach_call(device, what, 3);
  foreach_call(device, what, 3);
  for (const BlockHandle block : decayed) device.book.free(block);
  return true;
}

/// FSDP1's parameters of a unit lie side by side in its shard.
std::vector<LocalParam> OptimizerState::taken_at_once() const {
  std::vector<LocalParam> blocks;
  for (const LocalParam& param : params_) {
    const bool joins = job_.fsdp.runtime == Runtime::Fsdp1 && !blocks.empty() && blocks.back().unit == param.unit;
    if (!joins) {
      blocks.push_back(param);
      continue;
    }
    blocks.back().numel += param.numel;
    blocks.back().bytes += param.bytes;
  }
  return blocks;
}

/// Our executor's loop on a host, whatever train.optimizer.impl says short of "fused": a block's temporary is gone
/// before the next one's comes.
bool OptimizerState::step_by_blocks(Device& device, const ActivitySpan& what) {
  const OptimizerOptions& options = job_.train.optimizer;
  const bool adam = options.name == OptimizerKind::AdamW;
  const int passes = adam ? 20 : options.momentum != 0 ? 6 : 3;
  for (const LocalParam& block : taken_at_once()) {
    BlockHandle temporary = kNoBlock;  // AdamW: the root of the second moment; SGD: grad + decay * param
    if (adam || options.weight_decay != 0) {
      temporary = device.book.allocate(block.bytes, kD, MemoryCategory::Temporaries);
      if (temporary == kNoBlock) return false;
    }
    device.launch(Stream::D, device.cost.op_ns() + device.cost.launch_ns(),
                  device.cost.copy(block.bytes * passes, block.dtype), what);
    if (temporary != kNoBlock) device.book.free(temporary);
  }
  return true;
}

bool OptimizerState::measured_step(Device& device, const ActivitySpan& what, bool on_host) {
  if (!on_host && !has_state_ && !make_state(device, what)) return false;
  const bool adam = job_.train.optimizer.name == OptimizerKind::AdamW;
  const bool roots = !on_host && adam && job_.train.optimizer.impl != OptimizerImpl::Fused;
  SimDuration time = 0;
  for (const LocalParam& block : taken_at_once()) {
    time += device.cost.work().of(adam ? TensorWork::AdamW : TensorWork::Sgd, block.bytes);
    if (!roots) continue;
    const BlockHandle root = device.book.allocate(block.bytes, kD, MemoryCategory::Temporaries);
    if (root == kNoBlock) return false;
    device.book.free(root);
  }
  if (on_host)
    device.clock.host_cost(device.cost.launch_ns() + time);
  else
    device.launch(Stream::D, device.cost.launch_ns(), time, what);
  return true;
}

bool OptimizerState::measured_clip(Device& device, const ActivitySpan& what) {
  constexpr int kScalarCalls = 5;  // sum, root, add, reciprocal, clamp
  const WorkTimes& work = device.cost.work();
  SimDuration norms = 0, scales = kScalarCalls * work.of(TensorWork::Scale, 4);
  for (const LocalParam& block : taken_at_once()) {
    norms += work.of(TensorWork::Norm, block.bytes);
    scales += work.of(TensorWork::Scale, block.bytes);
  }
  device.launch(Stream::D, device.cost.launch_ns(), norms, what);
  device.launch(Stream::D, device.cost.launch_ns(), scales, what);
  return true;
}

bool OptimizerState::step(Device& device, const ActivitySpan& what, bool on_host) {
  if (params_.empty()) return true;
  if (device.cost.work().measured()) return measured_step(device, what, on_host);
  if (on_host) {  // C6: the parameters live on the host, and so does the step
    if (device.cost.is_virtual()) return true;
    constexpr double kHostBytesPerNs = 20;  // a foreach step on a server CPU is bound by its memory
    Bytes bytes = 0;
    for (const LocalParam& param : params_) bytes += param.bytes;
    device.clock.host_cost(static_cast<SimDuration>(7.0 * static_cast<double>(bytes) / kHostBytesPerNs));
    return true;
  }
  if (!has_state_ && !make_state(device, what)) return false;
  if (device.profile.kind == "cpu" && job_.train.optimizer.impl != OptimizerImpl::Fused)
    return step_by_blocks(device, what);
  return job_.train.optimizer.name == OptimizerKind::AdamW ? adamw(device, what) : sgd(device, what);
}

}  // namespace foreshard
