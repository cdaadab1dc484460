#include "exec/units/trained_blocks.h"

#include <ATen/ATen.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/job/optimizer_facts.h"
#include "core/model/mesh_dimension.h"
#include "core/plan/runtime/muon_params.h"
#include "core/result.h"
#include "exec/host/counting_allocator.h"
#include "exec/step/muon.h"

namespace foreshard::exec {

void TrainedBlocks::set_units(const std::vector<UnitTensors*>& units, const Model& model) {
  units_ = units;
  moments_.resize(units.size());
  matrix_rows_.resize(units.size());
  for (std::size_t u = 0; u < units.size(); ++u) {
    moments_[u].resize(units[u]->blocks().size());
    matrix_rows_[u].resize(units[u]->blocks().size());
    if (options_.name != OptimizerKind::Muon) continue;
    for (const ParamView& view : units[u]->views()) {
      if (view.block < 0 || !is_block_matrix(model, view.id)) continue;
      matrix_rows_[u][static_cast<std::size_t>(view.block)] = model.params[view.id.index()].shape.front();
    }
  }
  if (optimizer_facts(options_).made_by_constructor) make_all_moments();
}

void TrainedBlocks::make_all_moments() {
  const Stream pool = context_.has_host_stream() ? Stream::Host : Stream::D;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    for (std::size_t b = 0; b < moments_[u].size(); ++b) {
      make_moments({units_[u], units_[u]->blocks()[b].shard, {}, &moments_[u][b], {}, matrix_rows_[u][b]}, pool, {});
    }
  }
}

void TrainedBlocks::set_steps(std::int64_t steps) {
  steps_ = steps;
  for (std::vector<OptimizerMoments>& unit : moments_) {
    for (OptimizerMoments& moments : unit) moments.steps = steps;
  }
}

at::Tensor TrainedBlocks::take_norm() { return std::exchange(norm_, at::Tensor()); }

TrainedBlocks::Targets TrainedBlocks::targets() {
  Targets targets;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    for (std::size_t b = 0; b < units_[u]->blocks().size(); ++b) {
      Target target{units_[u],       units_[u]->blocks()[b].shard,    units_[u]->gradient(b),
                    &moments_[u][b], units_[u]->blocks()[b].repeated, matrix_rows_[u][b]};
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

/// Inside work. What clips or steps has had its sums made by the plan; without them it would pass gradients over.
void TrainedBlocks::check_summed(const Target& target) {
  const bool* const unsummed = target.gradient.unsummed;
  FORESHARD_CHECK(unsummed == nullptr || !*unsummed, "the ranks sum a term before it is clipped or stepped");
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
    check_summed(target);
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
  met_ = {plan_.rank};
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

/// Sums already hold what some ranks have: those met before, at every place along the dimensions met over since.
bool TrainedBlocks::meets_others(CommunicatorId group) {
  if (!group.valid()) return true;
  const std::vector<std::int32_t>& ranks = plan_.communicators[group.index()].ranks;
  const bool known = std::all_of(ranks.begin(), ranks.end(), [this](std::int32_t rank) { return met_.contains(rank); });
  if (known) return ranks.size() == 1;
  std::set<std::int32_t> all;
  for (const std::int32_t met : met_)
    for (const std::int32_t rank : ranks) all.insert(met + rank - plan_.rank);
  met_ = std::move(all);
  return true;
}

void TrainedBlocks::reduce(const Instruction& instruction, const Instruction* next, InstructionId id) {
  if (meets_over_found_) return meet(instruction, id, [this] { return scaler_.found_inf(); });
  // PyTorch completes the norms of each mesh for itself; here all gradients' are met over at once.
  if (meets_others(instruction.communicator)) meet(instruction, id, [this] { return norms_.sharded; });
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
  met_ = {plan_.rank};
  for (const Instruction& reduce : reductions)
    if (meets_others(reduce.communicator)) meet(reduce, {}, [this] { return norms_.sharded; });
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
  if (skipped && fused_) {
    Optimizer::untake(stepped);
    --steps_;
  }
  return skipped;
}

// ---------------------------------------------------------------- the optimizer

void TrainedBlocks::make_moments(const Target& target, Stream pool, InstructionId id) {
  OptimizerMoments& moments = *target.moments;
  const std::vector<Shape> shapes = optimizer_.moment_shapes(target.shard.sizes(), target.matrix_rows > 0);
  if (!moments.tensors.empty() || shapes.empty()) return;
  moments.tensors.resize(shapes.size());
  const at::ScalarType type = target.shard.scalar_type();
  for (std::size_t m = 0; m < shapes.size(); ++m) {
    const Bytes bytes = numel_of(shapes[m]) * static_cast<Bytes>(c10::elementSize(type));
    const Buffer memory = context_.allocate(pool, id, bytes, MemoryCategory::OptimizerState);
    moment_memory_.push_back(memory);
    context_.backend().launch(context_.on(pool, id, {&memory, 1}), [this, memory, pool, bytes, type, shape = shapes[m],
                                                                    &to = moments.tensors[m]] {
      to = context_.tensor(memory, pool, 0, bytes, DType::Int8).view(type).view(shape).zero_();
    });
  }
  if (pool == Stream::Host) static_cast<void>(context_.wait_for(pool, id));  // work of other streams uses them too
}

void TrainedBlocks::optimize(const Instruction& instruction, InstructionId id, double lr) {
  if (instruction.on_host && scaler_.enabled() && !fused_) {  // what was found lies here: the plan copies nothing
    static_cast<void>(context_.wait_for(instruction.stream, id));
    skip_ = scaler_.found_inf().defined() && scaler_.found_inf().item<float>() != 0;
  }
  const bool never = plan_.runtime == Runtime::Fsdp1 && steps_in_backward(options_.impl);  // trap 33
  if (skip_ || never) return;
  ++steps_;
  optimize_matrices(instruction, id, lr);  // of a plan that says nothing of them: whole ones
  Targets rest = targets();
  std::erase_if(rest, [](const Target& target) { return target.matrix_rows > 0; });
  step(instruction, id, std::move(rest), lr);
}

void TrainedBlocks::optimize_param(const Instruction& instruction, InstructionId id, double lr,
                                   const ParamPlace& place) {
  const auto unit = static_cast<std::size_t>(std::find(units_.begin(), units_.end(), place.unit) - units_.begin());
  const auto block = static_cast<std::size_t>(place.unit->views()[static_cast<std::size_t>(place.index)].block);
  Target target{place.unit, place.unit->blocks()[block].shard, place.unit->gradient(block), &moments_[unit][block]};
  if (target.gradient.there()) step(instruction, id, {std::move(target)}, lr);
  place.unit->gradient_taken(place.index);
}

void TrainedBlocks::step(const Instruction& instruction, InstructionId id, Targets targets, double lr) {
  const Stream pool = instruction.on_host ? Stream::Host : instruction.stream;
  for (const Target& target : targets) {
    make_moments(target, pool, id);
    if (fused_ && scaler_.enabled() && target.shard.numel() > 0) stepped_.push_back(target.moments);
  }
  const std::vector<Buffer> uses = buffers_of(targets);
  launch(instruction, id, uses, [this, targets = std::move(targets), lr] {
    const MemoryScope memory(MemoryCategory::Temporaries, MemoryCategory::OptimizerState);
    std::vector<OptimizedShard> shards;
    for (const Target& target : targets) {
      check_summed(target);
      shards.push_back({target.shard, tensor_of(target), target.moments});
    }
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

// ---------------------------------------------------------------- Muon

CommunicatorId TrainedBlocks::shard_group() const {
  const auto found = std::find_if(
      plan_.communicators.begin(), plan_.communicators.end(),
      [this](const PlanCommunicator& group) { return group.ranks == plan_.groups.shard && group.ranks.size() > 1; });
  return found == plan_.communicators.end()
             ? CommunicatorId()
             : CommunicatorId(static_cast<std::size_t>(found - plan_.communicators.begin()));
}

void TrainedBlocks::optimize_matrices(const Instruction& instruction, InstructionId id, double lr) {
  if (std::exchange(matrices_done_, true) || skip_) return;
  Targets matrices = targets();
  std::erase_if(matrices, [](const Target& target) { return target.matrix_rows == 0; });
  for (const Target& target : matrices) make_moments(target, Stream::D, id);
  for (const Target& target : matrices) step_matrix(instruction, id, target, lr);
}

void TrainedBlocks::step_matrix(const Instruction& instruction, InstructionId id, const Target& target, double lr) {
  Instruction meeting = instruction;
  meeting.stream = Stream::D;
  meeting.communicator = target.unit->replicated() ? CommunicatorId() : shard_group();
  const auto work = [this, target, lr](Communicator* group) {
    const MemoryScope memory(MemoryCategory::Temporaries, MemoryCategory::OptimizerState);
    const at::Tensor gradient = tensor_of(target);
    if (!gradient.defined()) return;
    fsdp2::RankMesh mesh{{{1, 0}}, std::max<std::int64_t>(ranks_per_node_, 1)};
    if (group != nullptr) mesh.dimensions = {{group->size(), group->rank()}};
    ++target.moments->steps;
    Muon(options_, mesh, group).step(target.shard, gradient, target.moments->tensors.front(), target.matrix_rows, lr);
  };
  const std::vector<Buffer> uses = buffers_of({target});
  context_.collective(
      meeting, id, uses, [work](Communicator& group) { work(&group); }, [work] { work(nullptr); });
}

// ---------------------------------------------------------------- state

Outcome<TrainState> TrainedBlocks::state(const Model& model, std::span<const ParamPlace> places,
                                         const std::vector<bool>& trainable) {
  make_all_moments();
  if (auto done = context_.backend().synchronize(); !done) return tl::unexpected<Failure>(done.error());
  TrainState state;
  if (scaler_.enabled()) state.scaler = scaler_.state();
  const bool trains =
      std::any_of(units_.begin(), units_.end(), [](const auto* unit) { return !unit->blocks().empty(); });
  if (!trains) state.optimizer_steps = steps_;  // its shards are frozen: the others' count
  for (std::size_t p = 0; p < places.size(); ++p) {
    const ParamInfo& info = model.params[p];
    if (info.shares.valid()) continue;
    const ParamPlace& place = places[p];
    const auto unit = static_cast<std::size_t>(std::find(units_.begin(), units_.end(), place.unit) - units_.begin());
    const ParamView& view = place.unit->views()[static_cast<std::size_t>(place.index)];
    const std::vector<StatePiece> pieces = pieces_of_whole(model, info, view.pieces);
    const bool matrix = options_.name == OptimizerKind::Muon && is_block_matrix(model, view.id);
    const std::vector<std::string_view> slots = optimizer_.slots(matrix);
    state.tensors.push_back({info.fqn, "param", whole_shape(info), view.local, pieces});
    for (std::size_t m = 0; m < slots.size() && trainable[p]; ++m) {
      StateTensor moment{info.fqn, std::string(slots[m]), whole_shape(info), view.local.new_empty({0}), {}};
      if (view.block >= 0) {
        const OptimizerMoments& moments = moments_[unit][static_cast<std::size_t>(view.block)];
        state.optimizer_steps = std::max(state.optimizer_steps, moments.steps);
        if (moments.tensors[m].numel() != units_[unit]->blocks()[static_cast<std::size_t>(view.block)].shard.numel())
          continue;  // factored
        moment.local = moments.tensors[m].view({-1}).narrow(0, view.block_offset, view.local.numel());
        moment.local = moment.local.view(view.local.sizes());
        moment.pieces = pieces;
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
        gradient.pieces = pieces_of_whole(model, info, view.pieces);
      }
    }
    state.tensors.push_back(std::move(gradient));
  }
  return state;
}

}  // namespace foreshard::exec
