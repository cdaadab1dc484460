#include "exec/units/sharded_unit.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "core/plan/units/shard_layout.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

using Kind = InstructionKind;

/// A unit without a dtype of its own gathers parameters as they are: as bytes where they differ.
bool gathers_as_created(const Plan& plan, UnitId unit) {
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& i : iteration.instructions) {
      if (i.unit == unit && i.kind == Kind::AllGather && i.dtype == DType::UInt8) return true;
      const bool copies = i.unit == unit && i.kind == Kind::CopyOut && i.buffer.what == BufferWhat::Full;
      if (copies && i.dtype != plan.units[unit.index()].param_dtype) return true;  // one rank
    }
  }
  return false;
}

/// Own rows of a tensor sharded along one dimension: runs of neighbours in the flattened whole.
std::vector<StatePiece> pieces_of(const Shape& shape, std::int32_t dim, std::int64_t start, std::int64_t length) {
  if (length == 0) return {};
  Numel outer = 1, inner = 1;
  const auto at = static_cast<std::size_t>(dim);
  for (std::size_t d = 0; d < shape.size(); ++d) (d < at ? outer : inner) *= d == at ? 1 : shape[d];
  std::vector<StatePiece> pieces;
  for (Numel o = 0; o < outer; ++o) {
    pieces.push_back({(o * shape[at] + start) * inner, o * length * inner, length * inner});
    if (pieces.back().numel == 0) pieces.pop_back();
  }
  return pieces;
}

}  // namespace

ShardedUnit::ShardedUnit(const IssueContext& context, const Model& model, const Plan& plan, UnitId id,
                         const std::vector<bool>& trainable)
    : UnitTensors(context, model, id, plan.units[id.index()].sharded.size()),
      unit_(plan.units[id.index()]),
      offload_(context.has_host_stream()) {
  const std::vector<std::int32_t> ranks = ranks_of_unit(model, plan, unit_);
  ranks_ = static_cast<std::int32_t>(ranks.size());
  position_ = static_cast<std::int32_t>(std::find(ranks.begin(), ranks.end(), plan.rank) - ranks.begin());
  if (unit_.reshard_after_forward.kind == ReshardAfterForward::Kind::GroupSize) {
    kept_group_ = static_cast<std::int32_t>(unit_.reshard_after_forward.group_size);
  }
  mixed_ = gathers_as_created(plan, id);
  for (const ShardedParam& sharded : unit_.sharded) {
    Param made;
    made.id = sharded.param;
    made.dtype = model.params[sharded.param.index()].dtype;
    made.whole = mixed_ ? made.dtype : unit_.param_dtype;
    made.shard_dim = sharded.shard_dim;
    made.shape = model.params[sharded.param.index()].shape;
    made.padded_shape = sharded.padded_local_shape;
    made.padded_numel = numel_of(made.padded_shape);
    const ShardExtent rows = shard_extent(made.shape[static_cast<std::size_t>(sharded.shard_dim)], ranks_, position_);
    made.start = rows.start;
    made.length = rows.length;
    made.storage = empty_storage(context.device(Stream::D));
    made.full = leaf_on(made.storage, 0, made.shape, made.whole, trainable[sharded.param.index()]);
    if (trainable[sharded.param.index()]) {
      made.block = static_cast<std::int32_t>(blocks_.size());
      blocks_.push_back({});
    }
    params_.push_back(std::move(made));
  }
}

// ---------------------------------------------------------------- resident memory

void ShardedUnit::load(const OperatorInterpreter::ParamTensors& full_params) {
  const Stream pool = offload_ ? Stream::Host : Stream::D;
  views_.resize(params_.size());
  for (Param& p : params_) {
    p.resident = context_.allocate(pool, {}, p.padded_numel * itemsize(p.dtype), MemoryCategory::Parameters);
    context_.backend().launch(context_.on(pool, {}, {&p.resident, 1}),
                              [this, &p, full_params] { bind_resident(p, full_params(p.id)); });
  }
}

void ShardedUnit::bind_resident(Param& p, const at::Tensor& whole) {
  at::NoGradGuard no_grad;
  p.padded_shard = tensor(p.resident, 0, p.padded_shape, p.dtype, offload_ ? Stream::Host : Stream::D);
  p.padded_shard.zero_();
  p.shard = p.padded_shard.narrow(p.shard_dim, 0, p.length);
  p.shard.copy_(whole.narrow(p.shard_dim, p.start, p.length));
  ParamView& view = views_[static_cast<std::size_t>(&p - params_.data())];
  view.id = model_.storage_of(p.id);
  view.local = p.shard;
  view.pieces = pieces_of(p.shape, p.shard_dim, p.start, p.length);
  view.block = p.block;
  if (p.block < 0) return;
  OptimizerBlock& block = blocks_[static_cast<std::size_t>(p.block)];
  block.shard = p.shard;
  if (repeated_on_mesh(model_, model_.params[p.id.index()])) block.repeated = {{0, p.shard.numel()}};
}

void ShardedUnit::allocated(const Instruction& instruction, std::int32_t index) {
  switch (instruction.buffer.what) {
    case BufferWhat::AgBuffer: gather_ = instruction.arg; return;
    case BufferWhat::GradCast: cast_to_ = instruction.arg; return;
    case BufferWhat::RsOutput: output_ = instruction.arg; return;
    case BufferWhat::PostForwardShard:
      if (index >= 0) kept_ = instruction.arg;
      return;
    default: return;
  }
}

void ShardedUnit::freed(BufferWhat what, std::int32_t /*index*/, std::int32_t instance) {
  if (what != BufferWhat::RsOutput && what != BufferWhat::GradCast) return;
  for (Param& p : params_) {
    if (p.held.what == what && p.held.instance == instance) p.held = {};
  }
}

void ShardedUnit::freed_without_buffer(const Instruction& instruction, InstructionId id, std::int32_t index) {
  if (instruction.buffer.what != BufferWhat::Grad || index < 0) return;
  context_.launch(instruction, id, {}, [&p = param(index)] {  // made by autograd: goes where it was made
    if (!std::exchange(p.absorbed, false)) p.gradient = at::Tensor();
  });
}

void ShardedUnit::issue(const Instruction& instruction, InstructionId id, std::int32_t index) {
  const BufferWhat what = instruction.buffer.what;
  switch (instruction.kind) {
    case Kind::Resize: return resize(instruction, id, index);
    case Kind::Cast: return cast(instruction, id, index);
    case Kind::H2d: return to_device(instruction, id, index);
    case Kind::D2h: return to_host(instruction, id, index);
    case Kind::CopyIn:
      if (what == BufferWhat::MeshGrad) return place_on_mesh(instruction, id, index);
      return what == BufferWhat::RsInput ? copy_in_gradients(instruction, id) : copy_in(instruction, id);
    case Kind::AllGather: return all_gather(instruction, id);
    case Kind::CopyOut:
      if (what == BufferWhat::AgBuffer) return copy_out(instruction, id);
      if (what == BufferWhat::Full) return copy_whole(instruction, id, index);
      if (what == BufferWhat::PostForwardShard) return keep_shard(instruction, id, index);
      return reduce(instruction, id);  // one rank: its own sum
    case Kind::Add: return add(instruction, id, index);
    case Kind::Accumulate:  // the sum itself was made where backward returned the gradient
      return context_.launch(instruction, id, {}, [&p = param(index)] { p.absorbed = true; });
    case Kind::Divide: return divide(instruction, id);
    case Kind::ReduceScatter: return reduce(instruction, id);
    case Kind::AllReduce:
      return what == BufferWhat::MeshGrad ? sum_on_mesh(instruction, id, index) : all_reduce(instruction, id);
    case Kind::Concat:
      if (what == BufferWhat::ShardDimGrad) lay_out_by_ranks(instruction, id, index);
      return;
    default: return;
  }
}

// ---------------------------------------------------------------- full parameters

void ShardedUnit::resize(const Instruction& instruction, InstructionId id, std::int32_t index) {
  Buffer& full = slot(BufferWhat::Full, index);
  const c10::Storage& storage = param(index).storage;
  if (instruction.bytes > 0) {
    full = context_.allocate(instruction.stream, id, instruction.bytes, MemoryCategory::FullParameters);
    return context_.launch(instruction, id, {&full, 1},
                           [storage, full] { attach(storage, full.data(), full.bytes()); });
  }
  if (!full.valid()) return;  // already empty
  context_.launch(instruction, id, {}, [storage] { attach(storage, nullptr, 0); });
  context_.backend().free(full, id);
  full = {};
}

Buffer ShardedUnit::kept_shard(std::int32_t index) {
  const Buffer newest = slot(BufferWhat::PostForwardShard, index, kept_);
  return newest.valid() ? newest : slot(BufferWhat::PostForwardShard, index, 1 - kept_);
}

/// F2-13: clones may be left over from a forward that no backward followed; a gather takes the shards then, as its size
/// says. `numel`: what it takes of this rank.
bool ShardedUnit::takes_clones(Numel numel, DType dtype, bool cast_alone) {
  Numel shards = 0;
  for (const Param& p : params_) {
    if (cast_alone && p.dtype == p.whole) continue;
    shards += p.padded_numel * (dtype == DType::UInt8 ? itemsize(p.whole) : 1);
  }
  return numel != shards && !params_.empty() && kept_shard(0).valid();
}

/// What a gather takes of one parameter, and whether it is in the compute dtype already.
Buffer ShardedUnit::staged(std::int32_t index, bool* cast, bool clones) {
  *cast = true;
  if (const Buffer kept = kept_shard(index); clones && kept.valid()) return kept;
  if (const Buffer made = slot(BufferWhat::Cast, index); made.valid()) return made;
  *cast = false;
  if (const Buffer copied = slot(BufferWhat::H2dCopy, index); copied.valid()) return copied;
  return param(index).resident;
}

void ShardedUnit::to_device(const Instruction& instruction, InstructionId id, std::int32_t index) {
  const std::array<Buffer, 2> uses = {slot(BufferWhat::H2dCopy, index), param(index).resident};
  context_.launch(instruction, id, uses, [this, to = uses[0], &p = param(index)] {
    at::NoGradGuard no_grad;
    tensor(to, 0, p.padded_shape, p.dtype).copy_(p.padded_shard, /*non_blocking=*/true);
  });
}

void ShardedUnit::cast(const Instruction& instruction, InstructionId id, std::int32_t index) {
  switch (instruction.buffer.what) {
    case BufferWhat::CastBuffer: return cast_shards(instruction, id);
    case BufferWhat::GradCast: return cast_reduced(instruction, id);
    case BufferWhat::AccumulatedGrad: {
      const Buffer to = slot(BufferWhat::AccumulatedGrad, index);
      return context_.launch(instruction, id, {&to, 1}, [this, to, &p = param(index), dtype = instruction.dtype] {
        at::NoGradGuard no_grad;
        tensor(to, 0, p.shape, dtype).copy_(p.gradient);
      });
    }
    default: break;
  }
  const Buffer copied = slot(BufferWhat::H2dCopy, index);
  const std::array<Buffer, 2> uses = {slot(instruction.buffer.what, index),
                                      copied.valid() ? copied : param(index).resident};
  context_.launch(instruction, id, uses, [this, uses, &p = param(index)] {
    at::NoGradGuard no_grad;
    tensor(uses[0], 0, p.padded_numel, p.whole).copy_(tensor(uses[1], 0, p.padded_numel, p.dtype));
  });
}

/// What of this rank's chunk needs a cast, one after the other.
void ShardedUnit::cast_shards(const Instruction& instruction, InstructionId id) {
  const Buffer to = slot(BufferWhat::CastBuffer);
  const bool clones = takes_clones(instruction.numel, instruction.dtype, true);
  std::vector<std::pair<Buffer, DType>> from;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (params_[i].dtype == params_[i].whole) continue;
    bool cast = false;
    const Buffer source = staged(static_cast<std::int32_t>(i), &cast, clones);
    from.emplace_back(source, cast ? params_[i].whole : params_[i].dtype);
  }
  context_.launch(instruction, id, {&to, 1}, [this, to, from] {
    at::NoGradGuard no_grad;
    Numel offset = 0;
    for (const auto& [source, dtype] : from) {
      const Numel numel = source.bytes() / itemsize(dtype);
      tensor(to, offset, numel, unit_.param_dtype).copy_(tensor(source, 0, numel, dtype));
      offset += numel;
    }
  });
}

/// This rank's chunk as it lies in the gather's buffer; byte by byte, since dtypes may differ.
void ShardedUnit::copy_in(const Instruction& instruction, InstructionId id) {
  const Buffer to = slot(BufferWhat::AgBuffer, -1, gather_);
  const bool kept = takes_clones(instruction.numel, instruction.dtype, false);
  gather_group_ = kept ? kept_group_ : ranks_;
  const Bytes begin = (kept ? position_ % kept_group_ : position_) * instruction.numel * itemsize(instruction.dtype);
  const Buffer cast = slot(BufferWhat::CastBuffer);
  std::vector<Buffer> uses = {to};
  std::vector<Bytes> from;  // in their buffers; bytes up to the next one's are taken
  std::vector<Bytes> bytes;
  Bytes in_cast = 0;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const Param& p = params_[i];
    bool already = false;
    const Buffer source = staged(static_cast<std::int32_t>(i), &already, kept);
    const bool was_cast = cast.valid() && p.dtype != p.whole;
    const Numel numel = source.bytes() / itemsize(already ? p.whole : p.dtype);
    uses.push_back(was_cast ? cast : source);
    from.push_back(was_cast ? in_cast : 0);
    bytes.push_back(numel * itemsize(p.whole));
    if (was_cast) in_cast += bytes.back();
  }
  context_.launch(instruction, id, uses, [this, uses, from, bytes, begin] {
    at::NoGradGuard no_grad;
    Bytes offset = begin;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      tensor(uses[0], offset, bytes[i], DType::UInt8).copy_(tensor(uses[i + 1], from[i], bytes[i], DType::UInt8));
      offset += bytes[i];
    }
  });
}

void ShardedUnit::all_gather(const Instruction& instruction, InstructionId id) {
  const Buffer whole = slot(BufferWhat::AgBuffer, -1, instruction.arg);
  const Numel numel = instruction.numel / context_.group_size(instruction);
  context_.collective(instruction, id, {&whole, 1}, [whole, numel, dtype = instruction.dtype](Communicator& group) {
    auto* data = static_cast<std::byte*>(whole.data());
    group.all_gather(data, data + group.rank() * numel * itemsize(dtype), numel, dtype);
  });
}

// Along the first dimension the chunks of all ranks lie in the parameter's storage one after another, padding last.
void ShardedUnit::copy_out(const Instruction& instruction, InstructionId id) {
  std::vector<Buffer> uses = {slot(BufferWhat::AgBuffer, -1, gather_)};
  for (std::size_t i = 0; i < params_.size(); ++i) uses.push_back(slot(BufferWhat::Full, static_cast<std::int32_t>(i)));
  const Bytes whole = instruction.numel * itemsize(instruction.dtype);
  context_.launch(instruction, id, uses, [this, uses, ranks = gather_group_, whole] {
    at::NoGradGuard no_grad;
    const at::Tensor gathered = tensor(uses[0], 0, {ranks, whole / ranks}, DType::UInt8);
    Bytes offset = 0;
    for (std::size_t i = 0; i < params_.size(); ++i) {
      const Param& p = params_[i];
      const Bytes bytes = p.padded_numel * ranks_ / ranks * itemsize(p.whole);
      const at::Tensor chunks = gathered.narrow(1, offset, bytes);
      offset += bytes;
      if (p.shard_dim == 0) {
        tensor(uses[i + 1], 0, {ranks, bytes}, DType::UInt8).copy_(chunks);
        continue;
      }
      const at::Tensor full = tensor(uses[i + 1], 0, p.shape, p.whole);
      const std::int64_t rows = p.padded_shape[static_cast<std::size_t>(p.shard_dim)];
      for (std::int32_t r = 0; r < ranks; ++r) {
        const at::Tensor chunk = chunks.select(0, r).clone().view(scalar_type_of(p.whole));
        full.narrow(p.shard_dim, r * rows, rows).copy_(chunk.reshape(p.padded_shape));
      }
    }
  });
}

void ShardedUnit::copy_whole(const Instruction& instruction, InstructionId id, std::int32_t index) {
  bool cast = false;
  const Buffer from = staged(index, &cast, true);
  const std::array<Buffer, 2> uses = {slot(BufferWhat::Full, index), from};
  context_.launch(instruction, id, uses, [this, uses, cast, &p = param(index)] {
    at::NoGradGuard no_grad;
    const at::Tensor shard = tensor(uses[1], 0, p.padded_numel, cast ? p.whole : p.dtype);
    tensor(uses[0], 0, p.padded_numel, p.whole).copy_(shard);
  });
}

/// F2-13: of the gathered parameter this rank keeps its part in a smaller group.
void ShardedUnit::keep_shard(const Instruction& instruction, InstructionId id, std::int32_t index) {
  const std::array<Buffer, 2> uses = {slot(BufferWhat::PostForwardShard, index, kept_), slot(BufferWhat::Full, index)};
  const Numel begin = position_ % kept_group_ * instruction.numel;
  const DType dtype = param(index).whole;
  context_.launch(instruction, id, uses, [this, uses, begin, dtype, numel = instruction.numel] {
    tensor(uses[0], 0, numel, dtype).copy_(tensor(uses[1], begin, numel, dtype));
  });
}

// ---------------------------------------------------------------- gradients

void ShardedUnit::take_gradient(std::size_t index, at::Tensor gradient) {
  at::Tensor& sum = params_[index].gradient;
  sum = sum.defined() ? sum + gradient : std::move(gradient);
}

// Rank-major: rank r's part holds its rows of every gradient, padded with zeros.
void ShardedUnit::write_chunks(const Reduction& reduction, std::vector<Param>& params, const at::Tensor& to,
                               const ShardedUnit& unit) {
  std::vector<at::Tensor> gradients;
  bool rows_only = true;
  for (const Reduced& one : reduction) {
    Param& p = params[static_cast<std::size_t>(one.index)];
    if (one.laid_out.valid()) {
      rows_only = false;
      gradients.push_back(unit.tensor(one.laid_out, 0, {unit.ranks_, p.padded_numel}, one.dtype));
      continue;
    }
    gradients.push_back(one.made.valid() ? unit.tensor(one.made, 0, p.shape, one.dtype) : p.gradient);
    if (!gradients.back().defined()) {
      throw std::runtime_error(
          fmt::format("parameter {} has no gradient to reduce", unit.model_.params[p.id.index()].fqn));
    }
    rows_only = rows_only && p.shard_dim == 0;
  }
  const auto ranks = to.size(0);
  if (rows_only) {
    at::Tensor out = to;
    at::_chunk_cat_out(out, gradients, /*dim=*/0, ranks);
    return;
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Param& p = params[static_cast<std::size_t>(reduction[i].index)];
    if (reduction[i].laid_out.valid()) {
      to.narrow(1, reduction[i].offset, p.padded_numel).copy_(gradients[i]);
      continue;
    }
    const auto rows = p.padded_shape[static_cast<std::size_t>(p.shard_dim)];
    for (std::int64_t r = 0; r < ranks; ++r) {
      const auto have = std::clamp<std::int64_t>(gradients[i].size(p.shard_dim) - r * rows, 0, rows);
      const at::Tensor chunk = to[r].narrow(0, reduction[i].offset, p.padded_numel).view(p.padded_shape);
      chunk.narrow(p.shard_dim, 0, have).copy_(gradients[i].narrow(p.shard_dim, have > 0 ? r * rows : 0, have));
      chunk.narrow(p.shard_dim, have, rows - have).zero_();
    }
  }
}

/// Sharded along another dimension than the first: torch.cat of the ranks' chunks, after which the gradient may go.
void ShardedUnit::lay_out_by_ranks(const Instruction& instruction, InstructionId id, std::int32_t index) {
  const Buffer placed = slot(BufferWhat::MeshGrad, index);
  const std::array<Buffer, 2> uses = {slot(BufferWhat::ShardDimGrad, index),
                                      placed.valid() ? placed : slot(BufferWhat::AccumulatedGrad, index)};
  const std::size_t count = uses[1].valid() ? 2 : 1;
  param(index).placed_dtype = instruction.dtype;
  context_.launch(instruction, id, {uses.data(), count}, [this, uses, &p = param(index), dtype = instruction.dtype] {
    at::NoGradGuard no_grad;
    const at::Tensor whole = uses[1].valid() ? tensor(uses[1], 0, p.shape, dtype) : p.gradient;
    const auto rows = p.padded_shape[static_cast<std::size_t>(p.shard_dim)];
    const at::Tensor to = tensor(uses[0], 0, {ranks_, p.padded_numel}, dtype);
    for (std::int64_t r = 0; r < ranks_; ++r)
      to[r].view(p.padded_shape).copy_(whole.narrow(p.shard_dim, r * rows, rows));
  });
}

void ShardedUnit::copy_in_gradients(const Instruction& instruction, InstructionId id) {
  auto reduction = std::make_shared<Reduction>();
  Numel offset = 0;
  for (const std::int32_t index : std::exchange(joining_, {})) {
    const Buffer placed = slot(BufferWhat::MeshGrad, index), laid_out = slot(BufferWhat::ShardDimGrad, index);
    if (laid_out.valid())
      reduction->push_back({index, offset, {}, param(index).placed_dtype, laid_out});
    else if (placed.valid())
      reduction->push_back({index, offset, placed, param(index).placed_dtype});
    else
      reduction->push_back({index, offset, slot(BufferWhat::AccumulatedGrad, index), instruction.dtype});
    offset += param(index).padded_numel;
  }
  reduction_ = reduction;
  current_ = {BufferWhat::RsInput, 0, 0};
  const Buffer to = slot(BufferWhat::RsInput);
  context_.launch(instruction, id, {&to, 1}, [this, to, reduction, offset, dtype = instruction.dtype] {
    at::NoGradGuard no_grad;
    write_chunks(*reduction, params_, tensor(to, 0, {ranks_, offset}, dtype), *this);
  });
}

Numel ShardedUnit::offset_in_reduction(std::int32_t index) const {
  for (const Reduced& one : *reduction_) {
    if (one.index == index) return one.offset;
  }
  return 0;
}

/// The reduction goes on in another buffer, and what is held of it with it.
void ShardedUnit::reduced_into(BufferWhat what, std::int32_t instance) {
  for (const Reduced& one : *reduction_) {
    Place& held = param(one.index).held;
    const bool here = held.what == current_.what && held.instance == current_.instance;
    if (!offload_ && (here || held.what == BufferWhat::None)) held = {what, instance, one.offset};
  }
  current_ = {what, instance, 0};
}

void ShardedUnit::reduce(const Instruction& instruction, InstructionId id) {
  const std::int32_t instance = instruction.kind == Kind::ReduceScatter ? instruction.arg : output_;
  const std::array<Buffer, 2> uses = {slot(BufferWhat::RsInput), slot(BufferWhat::RsOutput, -1, instance)};
  reduced_into(BufferWhat::RsOutput, instance);
  if (instruction.kind == Kind::CopyOut) {
    return context_.launch(instruction, id, uses, [this, uses, numel = instruction.numel, dtype = instruction.dtype] {
      tensor(uses[1], 0, numel, dtype).copy_(tensor(uses[0], 0, numel, dtype));
    });
  }
  const Numel numel = instruction.numel / context_.group_size(instruction);
  context_.collective(instruction, id, uses,
                      [this, uses, numel, dtype = instruction.dtype, op = instruction.reduce_op,
                       factor = instruction.factor](Communicator& group) {
                        const bool scaled = op == ReduceOp::PremulSum;
                        group.reduce_scatter(uses[1].data(), uses[0].data(), numel, dtype, scaled ? ReduceOp::Sum : op);
                        if (scaled) tensor(uses[1], 0, numel, dtype).mul_(factor);
                      });
}

void ShardedUnit::all_reduce(const Instruction& instruction, InstructionId id) {
  const Buffer in = slot(BufferWhat::RsOutput, -1, instruction.arg);
  context_.collective(instruction, id, {&in, 1},
                      [in, numel = instruction.numel, dtype = instruction.dtype, op = instruction.reduce_op](
                          Communicator& group) { group.all_reduce(in.data(), numel, dtype, op); });
}

void ShardedUnit::divide(const Instruction& instruction, InstructionId id) {
  const Buffer in = slot(current_.what, -1, current_.instance);
  context_.launch(instruction, id, {&in, 1},
                  [this, in, numel = instruction.numel, dtype = instruction.dtype, factor = instruction.factor] {
                    tensor(in, 0, numel, dtype).div_(factor);
                  });
}

void ShardedUnit::cast_reduced(const Instruction& instruction, InstructionId id) {
  const std::array<Buffer, 2> uses = {slot(current_.what, -1, current_.instance),
                                      slot(BufferWhat::GradCast, -1, cast_to_)};
  reduced_into(BufferWhat::GradCast, cast_to_);
  context_.launch(instruction, id, uses, [this, uses, numel = instruction.numel, dtype = instruction.dtype] {
    tensor(uses[1], 0, numel, dtype).copy_(tensor(uses[0], 0, numel, unit_.reduce_dtype));
  });
}

/// As the parameter itself lies over the mesh. Of a table cut by rows autograd has made this rank's rows alone.
void ShardedUnit::place_on_mesh(const Instruction& instruction, InstructionId id, std::int32_t index) {
  Param& p = param(index);
  p.placed_dtype = instruction.dtype;
  const std::array<Buffer, 2> uses = {slot(BufferWhat::MeshGrad, index), slot(BufferWhat::AccumulatedGrad, index)};
  const std::size_t count = uses[1].valid() ? 2 : 1;
  context_.launch(instruction, id, {uses.data(), count}, [this, uses, &p, dtype = instruction.dtype] {
    at::NoGradGuard no_grad;
    tensor(uses[0], 0, p.shape, dtype).copy_(uses[1].valid() ? tensor(uses[1], 0, p.shape, dtype) : p.gradient);
  });
}

void ShardedUnit::sum_on_mesh(const Instruction& instruction, InstructionId id, std::int32_t index) {
  const Buffer sum = slot(BufferWhat::MeshGrad, index);
  context_.collective(instruction, id, {&sum, 1},
                      [sum, numel = instruction.numel, dtype = instruction.dtype, op = instruction.reduce_op](
                          Communicator& group) { group.all_reduce(sum.data(), numel, dtype, op); });
}

void ShardedUnit::add(const Instruction& instruction, InstructionId id, std::int32_t index) {
  const BufferWhat what = instruction.buffer.what;
  Param& p = param(index);
  if (what == BufferWhat::AccumulatedGrad) {
    const Buffer to = slot(BufferWhat::AccumulatedGrad, index);
    return context_.launch(instruction, id, {&to, 1}, [this, to, &p, dtype = instruction.dtype] {
      at::NoGradGuard no_grad;
      tensor(to, 0, p.shape, dtype).add_(p.gradient);
    });
  }
  if (what == BufferWhat::HostGrad) {
    const Buffer to = slot(BufferWhat::HostGrad, index);
    return context_.launch(instruction, id, {&to, 1}, [this, to, &p, dtype = instruction.dtype] {
      tensor(to, 0, p.shard.sizes(), dtype, Stream::Host).add_(std::exchange(p.staged, at::Tensor()));
    });
  }
  // The sharded gradient so far, and the newest reduction's.
  const Place from = {current_.what, current_.instance, offset_in_reduction(index)};
  const std::array<Buffer, 2> uses = {slot(p.held.what, -1, p.held.instance), slot(from.what, -1, from.instance)};
  context_.launch(
      instruction, id, uses,
      [this, uses, held = p.held.offset, from = from.offset, numel = instruction.numel, dtype = instruction.dtype] {
        tensor(uses[0], held, numel, dtype).add_(tensor(uses[1], from, numel, dtype));
      });
}

void ShardedUnit::to_host(const Instruction& instruction, InstructionId id, std::int32_t index) {
  Param& p = param(index);
  Buffer& host = slot(BufferWhat::HostGrad, index);
  const DType dtype = unit_.orig_dtype;
  if (!host.valid()) {
    host = context_.allocate(Stream::Host, id, p.shard.numel() * itemsize(dtype), MemoryCategory::ShardedGradients);
  }
  const bool adds = std::exchange(p.held_on_host, true);
  const std::array<Buffer, 2> uses = {host, slot(current_.what, -1, current_.instance)};
  context_.launch(instruction, id, uses,
                  [this, uses, adds, &p, dtype, offset = offset_in_reduction(index), pool = instruction.stream] {
                    const at::Tensor from = context_.tensor(uses[1], pool, offset, p.shard.sizes(), dtype);
                    if (adds) {
                      p.staged = at::empty_like(p.shard);
                      p.staged.copy_(from, /*non_blocking=*/true);
                    } else {
                      tensor(uses[0], 0, p.shard.sizes(), dtype, Stream::Host).copy_(from, /*non_blocking=*/true);
                    }
                  });
  if (instruction.blocking) static_cast<void>(context_.wait_for(instruction.stream, id));
}

void ShardedUnit::zero_gradients(const Instruction& instruction, InstructionId id, bool to_zero) {
  for (Param& p : params_) {
    if (!to_zero) {
      p.held_on_host = false;  // what lies on the device has frees of its own
      continue;
    }
    if (p.block < 0) continue;
    const BlockGradient held = gradient(static_cast<std::size_t>(p.block));
    if (!held.buffer.valid()) continue;
    context_.launch(instruction, id, {&held.buffer, 1}, [this, held, numel = p.shard.numel()] {
      tensor(held.buffer, held.offset, numel, held.dtype, held.pool).zero_();
    });
  }
}

BlockGradient ShardedUnit::gradient(std::size_t block) const {
  auto& self = const_cast<ShardedUnit&>(*this);
  const auto found = std::find_if(params_.begin(), params_.end(),
                                  [&](const Param& p) { return p.block == static_cast<std::int32_t>(block); });
  const auto index = static_cast<std::int32_t>(found - params_.begin());
  BlockGradient gradient;
  gradient.dtype = unit_.orig_dtype;
  if (offload_) {
    if (found->held_on_host) gradient.buffer = self.slot(BufferWhat::HostGrad, index);
    gradient.pool = Stream::Host;
  } else if (found->held.what != BufferWhat::None) {
    gradient.buffer = self.slot(found->held.what, -1, found->held.instance);
    gradient.offset = found->held.offset;
  }
  return gradient;
}

}  // namespace foreshard::exec
