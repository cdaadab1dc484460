#include "exec/units/flat_unit.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/plan/units/flat_layout.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

using Kind = InstructionKind;
constexpr double kAlignmentFill = 42;  // H3

Shape shape_of(const Model& model, ParamId param) { return model.params[param.index()].shape; }

/// Inside work: autograd hands a gradient over to the stream of the views (R26), and its memory stays for that long.
void used_here(const at::Tensor& gradient) {
  if (!gradient.is_cuda()) return;
  const c10::impl::VirtualGuardImpl device(c10::DeviceType::CUDA);
  gradient.record_stream(device.getStream(gradient.device()));
}

}  // namespace

FlatUnit::FlatUnit(const IssueContext& context, const Model& model, const Plan& plan, UnitId id,
                   const std::vector<bool>& trainable, const CommHook& hook)
    : UnitTensors(context, model, id, plan.units[id.index()].params.size()),
      unit_(plan.units[id.index()]),
      hook_(hook),
      sharded_(unit_.strategy != Strategy::NoShard),
      offload_(context.has_host_stream()),
      shard_numel_(sharded_ ? unit_.shard_numel : unit_.flat_numel),
      trainable_(trainable),
      in_slot_(static_cast<std::size_t>(BufferWhat::ViewedCopy) + 1),
      storage_(empty_storage(context.device(Stream::D))) {
  const auto own = std::find(plan.groups.shard.begin(), plan.groups.shard.end(), plan.rank);
  position_ = static_cast<std::int32_t>(own - plan.groups.shard.begin());
  std::size_t next = 0;
  const bool precise = unit_.param_dtype != unit_.orig_dtype;
  if (precise) precise_storage_ = empty_storage(context.device(Stream::D));
  for (const FlatEntry& entry : unit_.flat) {
    if (!entry.param.valid()) continue;
    FORESHARD_CHECK(entry.param == unit_.params[next], "flat entries follow the unit's parameters");
    ++next;
    const Shape shape = shape_of(model, entry.param);
    leaves_.push_back(leaf_on(storage_, entry.offset, shape, unit_.param_dtype, unit_.requires_grad));
    if (precise)
      precise_leaves_.push_back(leaf_on(precise_storage_, entry.offset, shape, unit_.orig_dtype, unit_.requires_grad));
  }
  active_ = &leaves_;
  next_pieces_ = pieces_ = new_pieces();
}

std::shared_ptr<FlatUnit::Pieces> FlatUnit::new_pieces() const {
  auto pieces = std::make_shared<Pieces>();
  pieces->of_param.resize(param_count_);
  return pieces;
}

// ---------------------------------------------------------------- resident memory

void FlatUnit::load(const OperatorInterpreter::ParamTensors& full_params) {
  if (param_count_ == 0) return;
  const Stream pool = offload_ ? Stream::Host : Stream::D;
  const Bytes bytes = shard_numel_ * itemsize(unit_.orig_dtype);
  resident_ = {context_.allocate(pool, {}, bytes, MemoryCategory::Parameters), pool, unit_.orig_dtype};
  context_.backend().launch(context_.on(pool, {}, {&resident_.buffer, 1}),
                            [this, full_params] { bind_resident(full_params); });
}

// H4, H6: this rank's chunk of the flat vector; its own padding is zero.
void FlatUnit::bind_resident(const OperatorInterpreter::ParamTensors& full_params) {
  at::NoGradGuard no_grad;
  const at::Tensor shard = flat(resident_, shard_numel_);
  shard.zero_();
  const Numel begin = sharded_ ? position_ * shard_numel_ : 0;
  for (const FlatEntry& entry : unit_.flat) {
    const Numel from = std::max(entry.offset, begin);
    const Numel to = std::min(entry.offset + entry.numel, begin + shard_numel_);
    if (from >= to) continue;
    const at::Tensor part = shard.narrow(0, from - begin, to - from);
    if (entry.param.valid()) {
      part.copy_(full_params(entry.param).reshape({-1}).narrow(0, from - entry.offset, to - from));
    } else {
      part.fill_(kAlignmentFill);
    }
  }
  const RankShard layout = rank_shard(unit_, position_);
  Numel block_end = -1;  // of the newest block, if a parameter may still join it
  for (std::size_t i = 0; i < param_count_; ++i) {
    const ParamShard& place = layout.params[i];
    const ParamId param = unit_.params[i];
    ParamView view;
    view.id = model_.storage_of(param);
    const Numel offset = place.in_shard ? place.offset_in_shard : 0;
    view.local = shard.narrow(0, offset, place.in_shard ? place.numel_in_shard : 0);
    if (place.in_shard) view.pieces = {{place.start, 0, place.numel_in_shard}};
    const bool trains = unit_.requires_grad && trainable_[param.index()];
    if (!trains || apart_) block_end = -1;
    if (trains && place.in_shard) {
      if (block_end < 0) blocks_.push_back({});
      view.block = static_cast<std::int32_t>(blocks_.size()) - 1;
      const Numel block_begin = block_end < 0 ? offset : blocks_.back().shard.storage_offset();
      block_end = offset + place.numel_in_shard;
      blocks_.back().shard = shard.narrow(0, block_begin, block_end - block_begin);
      view.block_offset = offset - block_begin;
      if (repeated_on_mesh(model_, model_.params[view.id.index()]))
        blocks_.back().repeated.push_back({view.block_offset, view.block_offset + place.numel_in_shard});
    }
    views_.push_back(std::move(view));
  }
}

// ---------------------------------------------------------------- memory

FlatUnit::Memory FlatUnit::memory(BufferWhat what) {
  const Memory& known = in_slot_[static_cast<std::size_t>(what)];
  return {slot(what), known.pool, known.dtype};
}

at::Tensor FlatUnit::flat(const Memory& memory, Numel numel) const {
  return context_.tensor(memory.buffer, memory.pool, 0, numel, memory.dtype);
}

FlatUnit::Memory FlatUnit::staged_shard() {
  if (slot(BufferWhat::CastShard).valid()) return memory(BufferWhat::CastShard);
  for (const BufferWhat copy : {BufferWhat::H2dCopy, BufferWhat::ViewedCopy})
    if (slot(copy).valid()) return memory(copy);
  return resident_;
}

void FlatUnit::allocated(const Instruction& instruction, std::int32_t index) {
  if (index >= 0) return;
  const BufferWhat what = instruction.buffer.what;
  in_slot_[static_cast<std::size_t>(what)] = {{}, instruction.stream, instruction.dtype};
  if (what != BufferWhat::HostGrad) return;
  const Memory host = memory(what);  // C1: zeros until a reduced gradient comes
  context_.backend().launch(context_.on(Stream::Host, {}, {&host.buffer, 1}),
                            [this, host, numel = instruction.numel] { flat(host, numel).zero_(); });
  static_cast<void>(context_.wait_for(Stream::Host, {}));
}

void FlatUnit::freed(BufferWhat what, std::int32_t index, std::int32_t /*instance*/) {
  if (index < 0 && what == gradient_in_) gradient_in_ = BufferWhat::None;
}

void FlatUnit::gathered_dropped() { source_ = {}; }

// ---------------------------------------------------------------- parameters

void FlatUnit::issue(const Instruction& instruction, InstructionId id, std::int32_t index) {
  switch (instruction.kind) {
    case Kind::UseFull: return use_full(instruction);
    case Kind::UseShard: source_ = {}; return;
    case Kind::Cast: return cast(instruction, id);
    case Kind::H2d: return to_device(instruction, id);
    case Kind::D2h: return to_host(instruction, id);
    case Kind::AllGather: return all_gather(instruction, id);
    case Kind::Concat: return concat(instruction, id);
    case Kind::Add: return index >= 0 ? add_pieces(instruction, id, index) : add(instruction, id);
    case Kind::Fill:  // pieces and pads without gradient: the concatenation writes their zeros
      if (instruction.buffer.what == BufferWhat::SavedGrad) {
        gradient_in_ = BufferWhat::ShardGrad;  // H13: written back into a tensor of its own
        copy_gradient(instruction, id, instruction.numel);
      }
      return;
    case Kind::Pad: return copy_gradient(instruction, id, unit_.flat_numel);
    case Kind::Divide: return divide(instruction, id);
    case Kind::Accumulate: return add(instruction, id);
    case Kind::ReduceScatter: return reduce_scatter(instruction, id);
    case Kind::AllReduce: return all_reduce(instruction, id);
    default: return;  // copy_out: NO_SHARD's parameters are written back onto themselves (H13)
  }
}

void FlatUnit::use_full(const Instruction& instruction) {
  if (instruction.buffer.what == BufferWhat::FullPrecision) {
    source_ = memory(BufferWhat::FullPrecision);
  } else {
    source_ = sharded_ ? memory(BufferWhat::Full) : staged_shard();
  }
  source_leaves_ = source_.dtype == unit_.param_dtype ? &leaves_ : &precise_leaves_;
}

// The storage follows the newest use_full when compute comes to it, not when the gather is issued.
void FlatUnit::before_segment(InstructionId id) {
  const bool move = source_.buffer.valid() && source_.buffer.record() != attached_.record();
  if (!move && !pieces_changed_) return;
  pieces_changed_ = false;
  if (move) attached_ = source_.buffer;
  const std::span<const Buffer> uses(&attached_, move ? 1 : 0);  // until its free, which may name no use (NO_SHARD)
  context_.backend().launch(context_.on(Stream::D, id, uses),
                            [this, move, buffer = attached_, leaves = source_leaves_, pieces = next_pieces_] {
                              pieces_ = pieces;
                              if (!move) return;
                              active_ = leaves;
                              attach(leaves == &leaves_ ? storage_ : precise_storage_, buffer.data(), buffer.bytes());
                            });
}

void FlatUnit::cast(const Instruction& instruction, InstructionId id) {
  if (instruction.buffer.what != BufferWhat::CastShard) return copy_gradient(instruction, id, instruction.numel);
  const Memory to = memory(BufferWhat::CastShard);
  const Memory from = slot(BufferWhat::H2dCopy).valid() ? memory(BufferWhat::H2dCopy) : resident_;
  const std::array<Buffer, 2> uses = {to.buffer, from.buffer};
  context_.launch(instruction, id, uses, [this, to, from, numel = instruction.numel] {
    at::NoGradGuard no_grad;
    flat(to, numel).copy_(flat(from, numel));
  });
}

void FlatUnit::to_device(const Instruction& instruction, InstructionId id) {
  const Memory to = memory(instruction.buffer.what);
  const std::array<Buffer, 2> uses = {to.buffer, resident_.buffer};
  context_.launch(instruction, id, uses, [this, to, from = resident_, numel = instruction.numel] {
    at::NoGradGuard no_grad;
    flat(to, numel).copy_(flat(from, numel), /*non_blocking=*/true);
  });
  if (instruction.blocking) static_cast<void>(context_.wait_for(instruction.stream, id));
}

void FlatUnit::all_gather(const Instruction& instruction, InstructionId id) {
  const Memory to = memory(instruction.buffer.what);
  const Memory from =
      instruction.dtype == unit_.param_dtype || !slot(BufferWhat::CastShard).valid() ? staged_shard() : resident_;
  const Numel numel = instruction.numel / context_.group_size(instruction);
  const std::array<Buffer, 2> uses = {to.buffer, from.buffer};
  context_.collective(instruction, id, uses, [to, from, numel, dtype = instruction.dtype](Communicator& group) {
    group.all_gather(to.buffer.data(), from.buffer.data(), numel, dtype);
  });
}

// ---------------------------------------------------------------- gradients

void FlatUnit::take_gradient(std::size_t index, at::Tensor gradient) {
  const std::lock_guard lock(pieces_->mutex);
  pieces_->of_param[index].push_back(std::move(gradient));
}

/// A parameter used twice: the second piece is added when it arrives (R26).
void FlatUnit::add_pieces(const Instruction& instruction, InstructionId id, std::int32_t index) {
  context_.launch(instruction, id, {}, [pieces = next_pieces_, at = static_cast<std::size_t>(index)] {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor>& held = pieces->of_param[at];
    at::Tensor first, second;
    {
      const std::lock_guard lock(pieces->mutex);
      if (held.size() < 2) return;
      first = held[0];
      second = held[1];
      held.erase(held.begin() + 1);
    }
    const at::Tensor sum = first + second;
    used_here(first);
    used_here(second);
    const std::lock_guard lock(pieces->mutex);
    held[0] = sum;
  });
}

void FlatUnit::concat(const Instruction& instruction, InstructionId id) {
  const Memory to = memory(instruction.buffer.what);
  if (instruction.buffer.what == BufferWhat::Grad) gradient_in_ = BufferWhat::Grad;
  const std::shared_ptr<Pieces> pieces = std::exchange(next_pieces_, new_pieces());
  pieces_changed_ = true;
  context_.launch(instruction, id, {&to.buffer, 1}, [this, to, pieces] {
    at::NoGradGuard no_grad;
    const at::Tensor whole = flat(to, unit_.flat_numel);
    std::size_t next = 0;
    for (const FlatEntry& entry : unit_.flat) {
      const at::Tensor part = whole.narrow(0, entry.offset, entry.numel);
      std::vector<at::Tensor> none;
      std::vector<at::Tensor>& held = entry.param.valid() ? pieces->of_param[next++] : none;
      if (held.empty()) {
        part.zero_();
        continue;
      }
      part.copy_(held[0].reshape({-1}));
      for (std::size_t i = 1; i < held.size(); ++i) part.add_(held[i].reshape({-1}));
      for (const at::Tensor& piece : held) used_here(piece);
      held.clear();
    }
  });
}

/// Into the named buffer: what lies in the newest temporary (autograd's sums), or the gradient itself (G7).
void FlatUnit::add(const Instruction& instruction, InstructionId id) {
  const Memory to = memory(instruction.buffer.what);
  const BufferWhat source = instruction.kind == Kind::Accumulate        ? gradient_in_
                            : slot(BufferWhat::AccumulatedGrad).valid() ? BufferWhat::AccumulatedGrad
                                                                        : BufferWhat::GradPiece;
  const Memory from = memory(source);
  if (instruction.kind == Kind::Accumulate) gradient_in_ = instruction.buffer.what;
  const std::array<Buffer, 2> uses = {to.buffer, from.buffer};
  context_.launch(instruction, id, uses, [this, to, from, numel = instruction.numel] {
    at::NoGradGuard no_grad;
    flat(to, numel).add_(flat(from, numel));
  });
}

/// The gradient goes on in another buffer: cast, or padded with zeros behind `numel` elements.
void FlatUnit::copy_gradient(const Instruction& instruction, InstructionId id, Numel numel) {
  const Memory to = memory(instruction.buffer.what);
  // A compressing hook casts the output of the reduction before anything is in it (G5).
  const bool output = instruction.buffer.what == BufferWhat::CompressedOut;
  const Memory from = memory(output ? BufferWhat::ReduceOut : gradient_in_);
  if (!output) gradient_in_ = instruction.buffer.what;
  const std::array<Buffer, 2> uses = {to.buffer, from.buffer};
  context_.launch(instruction, id, uses, [this, to, from, numel, whole = instruction.numel] {
    at::NoGradGuard no_grad;
    const at::Tensor target = flat(to, whole);
    target.narrow(0, 0, numel).copy_(flat(from, numel));
    if (whole > numel) target.narrow(0, numel, whole - numel).zero_();
  });
}

void FlatUnit::divide(const Instruction& instruction, InstructionId id) {
  const Memory in = memory(gradient_in_);
  context_.launch(instruction, id, {&in.buffer, 1}, [this, in, numel = instruction.numel, factor = instruction.factor] {
    at::NoGradGuard no_grad;
    flat(in, numel).div_(factor);
  });
}

/// A user's own reduction (G5): the plan names it on the collective that it stands for.
void FlatUnit::call_hook(const Instruction& instruction, InstructionId id) {
  const bool scatters = instruction.kind == Kind::ReduceScatter;
  const Memory from = memory(gradient_in_);
  const Memory to = memory(instruction.buffer.what);
  gradient_in_ = instruction.buffer.what;
  const std::array<Buffer, 2> uses = {to.buffer, from.buffer};
  const auto call = [this, scatters, from, to, numel = instruction.numel,
                     ranks = context_.group_size(instruction)](Communicator* group) {
    at::NoGradGuard no_grad;
    hook_({unit_.name, flat(from, numel), scatters ? flat(to, numel / ranks) : at::Tensor(), ranks, group});
  };
  context_.collective(
      instruction, id, uses, [call](Communicator& group) { call(&group); }, [call] { call(nullptr); });
}

void FlatUnit::reduce_scatter(const Instruction& instruction, InstructionId id) {
  if (instruction.name.valid()) return call_hook(instruction, id);
  const Memory from = memory(gradient_in_);
  const Memory to = memory(instruction.buffer.what);
  gradient_in_ = instruction.buffer.what;
  const Numel numel = instruction.numel / context_.group_size(instruction);
  const std::array<Buffer, 2> uses = {to.buffer, from.buffer};
  context_.collective(instruction, id, uses,
                      [to, from, numel, dtype = instruction.dtype, op = instruction.reduce_op](Communicator& group) {
                        group.reduce_scatter(to.buffer.data(), from.buffer.data(), numel, dtype, op);
                      });
}

void FlatUnit::all_reduce(const Instruction& instruction, InstructionId id) {
  if (instruction.name.valid()) return call_hook(instruction, id);
  const Memory in = memory(instruction.buffer.what);
  gradient_in_ = instruction.buffer.what;
  context_.collective(instruction, id, {&in.buffer, 1},
                      [in, numel = instruction.numel, dtype = instruction.dtype, op = instruction.reduce_op](
                          Communicator& group) { group.all_reduce(in.buffer.data(), numel, dtype, op); });
}

void FlatUnit::to_host(const Instruction& instruction, InstructionId id) {
  const Memory to = memory(BufferWhat::HostGrad);
  const Memory from = memory(gradient_in_);
  const std::array<Buffer, 2> uses = {to.buffer, from.buffer};
  context_.launch(instruction, id, uses, [this, to, from, numel = instruction.numel] {
    at::NoGradGuard no_grad;
    flat(to, numel).copy_(flat(from, numel), /*non_blocking=*/true);
  });
  if (instruction.blocking) static_cast<void>(context_.wait_for(instruction.stream, id));
}

void FlatUnit::zero_gradients(const Instruction& instruction, InstructionId id, bool to_zero) {
  if (!to_zero) return;  // what goes has frees of its own
  const BufferWhat what = offload_ ? BufferWhat::HostGrad : gradient_in_;
  if (what == BufferWhat::None || !slot(what).valid()) return;
  const Memory in = memory(what);
  const Numel numel = in.buffer.bytes() / itemsize(in.dtype);
  context_.launch(instruction, id, {&in.buffer, 1}, [this, in, numel] { flat(in, numel).zero_(); });
}

BlockGradient FlatUnit::gradient(std::size_t block) const {
  auto& self = const_cast<FlatUnit&>(*this);
  const BufferWhat what = offload_ ? BufferWhat::HostGrad : gradient_in_;
  const bool unsharded = sharded_ && what == BufferWhat::Grad;  // held by no_sync
  if (what == BufferWhat::None || unsharded || !self.slot(what).valid()) return {};
  const Memory in = self.memory(what);
  BlockGradient gradient;
  gradient.buffer = in.buffer;
  gradient.pool = in.pool;
  gradient.offset = blocks_[block].shard.storage_offset();
  gradient.dtype = in.dtype;
  return gradient;
}

}  // namespace foreshard::exec
