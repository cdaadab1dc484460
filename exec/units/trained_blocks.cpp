#include "exec/units/trained_blocks.h"

#include <ATen/ATen.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "exec/host/counting_allocator.h"

namespace foreshard::exec {

void TrainedBlocks::set_units(const std::vector<UnitTensors*>& units) {
  units_ = units;
  moments_.resize(units.size());
  for (std::size_t u = 0; u < units.size(); ++u) moments_[u].resize(units[u]->blocks().size());
}

void TrainedBlocks::set_steps(std::int64_t steps) {
  for (std::vector<OptimizerMoments>& unit : moments_) {
    for (OptimizerMoments& moments : unit) moments.steps = steps;
  }
}

at::Tensor TrainedBlocks::take_norm() { return std::exchange(norm_, at::Tensor()); }

TrainedBlocks::Targets TrainedBlocks::targets() {
  Targets targets;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    for (std::size_t b = 0; b < units_[u]->blocks().size(); ++b) {
      Target target{units_[u], units_[u]->blocks()[b].shard, units_[u]->gradient(b), &moments_[u][b],
                    units_[u]->blocks()[b].repeated};
      if (target.gradient.there()) targets.push_back(std::move(target));
    }
  }
  return targets;
}

std::vector<Buffer> TrainedBlocks::buffers_of(const Targets& targets) {
  std::vector<Buffer> buffers;
  for (const Target& target : targets) {
    if (target.gradient.buffer.valid()) buffers.push_back(target.gradient.buffer);
  }
  return buffers;
}

/// Inside work; undefined if autograd has made none.
at::Tensor TrainedBlocks::tensor_of(const Target& target) const {
  const BlockGradient& gradient = target.gradient;
  if (gradient.made != nullptr) return *gradient.made;
  return context_.tensor(gradient.buffer, gradient.pool, gradient.offset, target.shard.sizes(), gradient.dtype);
}

std::vector<NormedGradient> TrainedBlocks::normed(const Targets& targets) const {
  std::vector<NormedGradient> gradients;
  for (const Target& target : targets) {
    at::Tensor gradient = tensor_of(target);
    if (gradient.defined()) gradients.push_back({std::move(gradient), target.unit->replicated(), target.repeated});
  }
  return gradients;
}

void TrainedBlocks::launch(const Instruction& instruction, InstructionId id, const std::vector<Buffer>& uses,
                           Work work) {
  if (instruction.stream != Stream::Host) return context_.launch(instruction, id, uses, std::move(work));
  Backend& backend = context_.backend();
  backend.wait_event(context_.on(Stream::Host, id), backend.record_event(context_.on(Stream::D, id)));
  context_.launch(instruction, id, uses, std::move(work));
  static_cast<void>(context_.wait_for(Stream::Host, id));
}

// ---------------------------------------------------------------- clipping

namespace {

bool meets_over_norms(const Instruction* next) {
  return next != nullptr && next->kind == InstructionKind::AllReduce && next->buffer.what == BufferWhat::None;
}

}  // namespace

void TrainedBlocks::clip(const Instruction& instruction, const Instruction* next, InstructionId id) {
  meets_over_found_ = false;
  max_norm_ = instruction.factor;
  met_.clear();
  power_ = instruction.reduce_op == ReduceOp::Max ? std::numeric_limits<double>::infinity() : 2.0;
  const bool fsdp1 = plan_.runtime == Runtime::Fsdp1;
  if (fsdp1 && instruction.arg == 1) {
    complete_beside(instruction, id);
    return scale(instruction, id);
  }
  const bool meets = meets_over_norms(next);
  norms(instruction, id, meets && next->numel > 1);
  if (!fsdp1 && !meets) scale(instruction, id);
}

/// What every rank of a data group has whole is completed there already: both shares are met over.
void TrainedBlocks::complete_beside(const Instruction& instruction, InstructionId id) {
  for (const CommunicatorId group : beside_) {
    Instruction meeting = instruction;
    meeting.communicator = group;
    meeting.reduce_op = power_ == 2.0 ? ReduceOp::Sum : ReduceOp::Max;
    meet(meeting, id, [this] { return norms_.sharded; });
    meet(meeting, id, [this] { return norms_.replicated; });
  }
}

void TrainedBlocks::reduce(const Instruction& instruction, const Instruction* next, InstructionId id) {
  if (meets_over_found_) return meet(instruction, id, [this] { return scaler_.found_inf(); });
  // PyTorch completes the norms of each mesh for itself; here all gradients' are met over at once.
  if (std::find(met_.begin(), met_.end(), instruction.communicator) == met_.end()) {
    met_.push_back(instruction.communicator);
    meet(instruction, id, [this] { return norms_.sharded; });
  }
  if (plan_.runtime != Runtime::Fsdp1 && !meets_over_norms(next)) scale(instruction, id);
}

/// NCCL reads and writes memory of the device alone: what lies on the host goes there and back. Nothing here blocks but
/// waits that the backend knows of, since a peer may never come.
void TrainedBlocks::meet(const Instruction& instruction, InstructionId id, std::function<at::Tensor()> over) {
  const c10::Device device = context_.device(instruction.stream);
  const bool travels = context_.has_host_stream() && device.is_cuda();
  if (travels) static_cast<void>(context_.wait_for(instruction.stream, id));
  context_.collective(instruction, id, {}, [this, over, device, op = instruction.reduce_op](Communicator& group) {
    const at::Tensor held = over();
    if (held.device() != device) sent_ = held.to(device);
    const at::Tensor& reduced = sent_.defined() ? sent_ : held;
    group.all_reduce(reduced.data_ptr(), reduced.numel(), DType::Float32, op);
  });
  if (!travels) return;
  static_cast<void>(context_.wait_for(instruction.stream, id));
  context_.launch(instruction, id, {}, [this, over] {
    if (sent_.defined()) over().copy_(std::exchange(sent_, at::Tensor()));
  });
}

void TrainedBlocks::norms(const Instruction& instruction, InstructionId id, bool apart) {
  Targets targets = this->targets();
  const std::vector<Buffer> uses = buffers_of(targets);
  launch(instruction, id, uses,
         [this, targets = std::move(targets), p = power_, apart, device = place_of(instruction)] {
           norms_ = norm_share(normed(targets), {p, apart, clips_lists(), device});
         });
}

/// On the host, and by fsdp1's own method, one tensor comes after the other.
bool TrainedBlocks::clips_lists() const {
  return plan_.runtime != Runtime::Fsdp1 && !context_.has_host_stream() &&
         context_.backend().device() == DeviceKind::Cuda;
}

c10::Device TrainedBlocks::place_of(const Instruction& instruction) const {
  return context_.device(instruction.on_host ? Stream::Host : instruction.stream);
}

void TrainedBlocks::scale(const Instruction& instruction, InstructionId id) {
  Targets targets = this->targets();
  const std::vector<Buffer> uses = buffers_of(targets);
  launch(instruction, id, uses, [this, targets = std::move(targets), p = power_, max_norm = max_norm_] {
    const std::vector<NormedGradient> gradients = normed(targets);
    const at::Tensor total = total_norm(norms_, p);
    norm_ = returned_norm(gradients, total);
    clip_gradients(gradients, total, max_norm, clips_lists());
    norms_ = {};
  });
}

Outcome<at::Tensor> TrainedBlocks::clip_now(std::span<const Instruction> reductions, double max_norm, double p) {
  power_ = p;
  max_norm_ = max_norm;
  norms(reductions.front(), {}, false);
  for (const Instruction& reduce : reductions) meet(reduce, {}, [this] { return norms_.sharded; });
  scale(reductions.front(), {});
  if (auto done = context_.backend().synchronize(); !done) return tl::unexpected<Failure>(done.error());
  return take_norm();
}

// ---------------------------------------------------------------- a gradient scaler

void TrainedBlocks::unscale(const Instruction& instruction, InstructionId id) {
  meets_over_found_ = true;
  Targets targets = this->targets();
  const std::vector<Buffer> uses = buffers_of(targets);
  launch(instruction, id, uses, [this, targets = std::move(targets), device = place_of(instruction)] {
    std::vector<at::Tensor> gradients;
    for (const Target& target : targets) {
      if (at::Tensor gradient = tensor_of(target); gradient.defined()) gradients.push_back(std::move(gradient));
    }
    scaler_.unscale(gradients, device);
  });
}

Outcome<void> TrainedBlocks::read_found(const Instruction& instruction, InstructionId id) {
  launch(instruction, id, {}, [this] {
    const at::Tensor& found = scaler_.found_inf();
    if (!read_.defined()) read_ = at::zeros({1}, at::TensorOptions().dtype(at::kFloat).pinned_memory(found.is_cuda()));
    read_.copy_(found, /*non_blocking=*/true);
  });
  auto done = context_.wait_for(instruction.stream, id);
  skip_ = done && read_.item<float>() != 0;
  return done;
}

void TrainedBlocks::update_scale(const Instruction& instruction, InstructionId id) {
  skip_ = false;
  launch(instruction, id, {}, [this] {
    found_ = scaler_.found_inf();
    scaler_.update();
  });
}

std::optional<bool> TrainedBlocks::take_skipped() {
  if (!scaler_.enabled()) return std::nullopt;
  const std::vector<OptimizerMoments*> stepped = std::exchange(stepped_, {});
  const at::Tensor found = std::exchange(found_, at::Tensor());
  if (!found.defined()) return std::nullopt;  // the script has updated nothing
  const bool skipped = found.item<float>() != 0;
  if (skipped && fused_) Optimizer::untake(stepped);
  return skipped;
}

// ---------------------------------------------------------------- the optimizer

void TrainedBlocks::make_moments(const Target& target, Stream pool, InstructionId id) {
  OptimizerMoments& moments = *target.moments;
  const std::size_t count = optimizer_.slots().size();
  if (!moments.tensors.empty() || count == 0) return;
  moments.tensors.resize(count);
  const at::ScalarType type = target.shard.scalar_type();
  const Bytes bytes = target.shard.numel() * static_cast<Bytes>(c10::elementSize(type));
  for (std::size_t m = 0; m < count; ++m) {
    const Buffer memory = context_.allocate(pool, id, bytes, MemoryCategory::OptimizerState);
    moment_memory_.push_back(memory);
    context_.backend().launch(context_.on(pool, id, {&memory, 1}), [this, memory, pool, bytes, shard = target.shard,
                                                                    &to = moments.tensors[m]] {
      to = context_.tensor(memory, pool, 0, bytes, DType::Int8).view(shard.scalar_type()).view(shard.sizes()).zero_();
    });
  }
  if (pool == Stream::Host) static_cast<void>(context_.wait_for(pool, id));  // work of other streams uses them too
}

void TrainedBlocks::optimize(const Instruction& instruction, InstructionId id, double lr) {
  if (instruction.on_host && scaler_.enabled() && !fused_) {  // what was found lies here: the plan copies nothing
    static_cast<void>(context_.wait_for(instruction.stream, id));
    skip_ = scaler_.found_inf().defined() && scaler_.found_inf().item<float>() != 0;
  }
  if (skip_) return;
  Targets targets = this->targets();
  const Stream pool = instruction.on_host ? Stream::Host : instruction.stream;
  for (const Target& target : targets) {
    make_moments(target, pool, id);
    if (fused_ && scaler_.enabled() && target.shard.numel() > 0) stepped_.push_back(target.moments);
  }
  const std::vector<Buffer> uses = buffers_of(targets);
  launch(instruction, id, uses, [this, targets = std::move(targets), lr] {
    const MemoryScope memory(MemoryCategory::Temporaries, MemoryCategory::OptimizerState);
    std::vector<OptimizedShard> shards;
    for (const Target& target : targets) shards.push_back({target.shard, tensor_of(target), target.moments});
    StepWish how;
    how.lists = !shards.empty() && shards.front().shard.is_cuda();
    if (scaler_.enabled() && fused_) how.found_inf = scaler_.found_inf();
    if (context_.backend().repeats()) {
      how.repeat = [this](std::uint64_t key, const Work& kernels) { context_.backend().repeat(key, kernels); };
      how.rate = &rate_;
    }
    optimizer_.step(shards, lr, how);
  });
}

// ---------------------------------------------------------------- state

Outcome<TrainState> TrainedBlocks::state(const Model& model, std::span<const ParamPlace> places,
                                         const std::vector<bool>& trainable) {
  const Stream pool = context_.has_host_stream() ? Stream::Host : Stream::D;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    for (std::size_t b = 0; b < moments_[u].size(); ++b) {
      make_moments({units_[u], units_[u]->blocks()[b].shard, {}, &moments_[u][b]}, pool, {});
    }
  }
  if (auto done = context_.backend().synchronize(); !done) return tl::unexpected<Failure>(done.error());
  TrainState state;
  if (scaler_.enabled()) state.scaler = scaler_.state();
  const std::vector<std::string_view> slots = optimizer_.slots();
  for (std::size_t p = 0; p < places.size(); ++p) {
    const ParamInfo& info = model.params[p];
    if (info.shares.valid()) continue;
    const ParamPlace& place = places[p];
    const auto unit = static_cast<std::size_t>(std::find(units_.begin(), units_.end(), place.unit) - units_.begin());
    const ParamView& view = place.unit->views()[static_cast<std::size_t>(place.index)];
    const std::vector<StatePiece> pieces = pieces_of_whole(info, view.pieces);
    state.tensors.push_back({info.fqn, "param", whole_shape(info), view.local, pieces});
    for (std::size_t m = 0; m < slots.size() && trainable[p]; ++m) {
      StateTensor moment{info.fqn, std::string(slots[m]), whole_shape(info), view.local.new_empty({0}), {}};
      if (view.block >= 0) {
        const OptimizerMoments& moments = moments_[unit][static_cast<std::size_t>(view.block)];
        moment.local = moments.tensors[m].view({-1}).narrow(0, view.block_offset, view.local.numel());
        moment.local = moment.local.view(view.local.sizes());
        moment.pieces = pieces;
        state.optimizer_steps = std::max(state.optimizer_steps, moments.steps);
      }
      state.tensors.push_back(std::move(moment));
    }
  }
  return state;
}

TrainState TrainedBlocks::gradients(const Model& model, std::span<const ParamPlace> places) const {
  TrainState state;
  for (std::size_t p = 0; p < places.size(); ++p) {
    const ParamInfo& info = model.params[p];
    if (info.shares.valid()) continue;
    const UnitTensors& unit = *places[p].unit;
    const ParamView& view = unit.views()[static_cast<std::size_t>(places[p].index)];
    StateTensor gradient{info.fqn, "grad", whole_shape(info), view.local.new_empty({0}), {}};
    if (view.block >= 0) {
      const auto block = static_cast<std::size_t>(view.block);
      const Target target{&unit, unit.blocks()[block].shard, unit.gradient(block), nullptr};
      const at::Tensor whole = target.gradient.there() ? tensor_of(target) : at::Tensor();
      if (whole.defined()) {
        gradient.local = whole.reshape({-1}).narrow(0, view.block_offset, view.local.numel());
        gradient.local = gradient.local.view(view.local.sizes());
        gradient.pieces = pieces_of_whole(info, view.pieces);
      }
    }
    state.tensors.push_back(std::move(gradient));
  }
  return state;
}

}  // namespace foreshard::exec
