#include "sim/play/instructions/data_movement.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "core/instruction_spans.h"
#include "core/runtime_layouts.h"
#include "sim/play/instructions/copy_arguments.h"

namespace foreshard {
namespace {

/// Threads of the launch behind one of FSDP's own copies, casts and sums: 8 elements each, 4 where the type widens.
double launch_threads(const Plan& plan, const Instruction& i, Bytes bytes, const HardwareProfile& profile) {
  constexpr std::int64_t kBlock = 128, kBlocksEach = 32;  // of a concatenation, by multiprocessor
  const Bytes item = itemsize(i.dtype);
  const auto elements = static_cast<double>(bytes / item);
  if (i.kind == InstructionKind::Cast) return elements / (item == 4 ? 4 : 8);
  if (i.kind != InstructionKind::Concat || i.arg < 2 || !i.unit.valid()) return elements / 8;
  Numel longest = 0;
  for (const FlatEntry& entry : plan.units[i.unit.index()].flat) longest = std::max(longest, entry.numel);
  const std::int64_t blocks =
      std::min<std::int64_t>(kBlocksEach * profile.sm_count, ceil_div(ceil_div(longest, 16 / item), kBlock));
  return static_cast<double>(blocks * kBlock * i.arg);
}

/// A parameter's type in the unit's compute.
DType computed_dtype(const PlanUnit& unit, const ParamInfo& info) {
  return unit.param_dtype != unit.orig_dtype ? unit.param_dtype : info.dtype;
}

DType gathered_dtype(const PlanUnit& unit, const ParamInfo& info) {
  return info.gathered.value_or(computed_dtype(unit, info));
}

}  // namespace

/// Of a copy out of a gather over so many ranks, which is the same whenever the unit is gathered over them.
Bytes DataMovement::split_arguments(const PlanUnit& unit, UnitId id, std::int64_t ranks) {
  if (splits_.empty()) splits_.resize(context_.plan.units.size());
  KnownSplit& known = splits_[id.index()];
  if (known.ranks == ranks) return known.bytes;
  std::vector<Bytes> chunks;
  chunks.reserve(unit.sharded.size());
  for (const ShardedParam& param : unit.sharded) {
    const DType gathered = gathered_dtype(unit, context_.model.params[param.param.index()]);
    chunks.push_back(numel_of(param.padded_local_shape) * itemsize(gathered) * unit.shard_size /
                     std::max<std::int64_t>(1, ranks));
  }
  known.ranks = ranks;
  known.bytes = chunks.empty() ? 0 : split_copy_arguments(chunks, ranks, context_.device.profile.sm_count);
  return known.bytes;
}

/// Of a copy of gradients into the input of a reduction. 0: it is none for all of them, they are cut, padded and cast
/// tensor by tensor.
Bytes DataMovement::cat_arguments(const Instruction& i, const PlanUnit& unit) {
  if (cats_.empty()) cats_.resize(context_.plan.units.size());
  KnownCat& known = cats_[i.unit.index()];
  if (known.dtype == i.dtype) return known.bytes;
  bool follows = true;  // from the types alone
  std::vector<Bytes> chunks;
  chunks.reserve(unit.sharded.size());
  for (const ShardedParam& param : unit.sharded) {
    const ParamInfo& info = context_.model.params[param.param.index()];
    if (!info.requires_grad) continue;
    const DType computed = computed_dtype(unit, info);
    if (computed != i.dtype && !(computed == DType::BFloat16 && i.dtype == DType::Float32)) {
      follows = false;
      if (buffers_.find({BufferWhat::AccumulatedGrad, i.unit, param.param}, 0) == kNoBlock) return 0;
    }
    const std::int64_t ranks = std::max<std::int64_t>(1, unit.shard_size);
    chunks.push_back(numel_of(param.padded_local_shape) * itemsize(i.dtype) * unit.shard_size / ranks);
  }
  const Bytes bytes = chunks.empty() ? 0 : chunk_cat_arguments(chunks);
  if (follows) known = {i.dtype, bytes};
  return bytes;
}

/// They are gone when the copy was issued.
bool DataMovement::take_copy_arguments(const Instruction& i) {
  const Plan& plan = context_.plan;
  const bool splits = i.kind == InstructionKind::CopyOut && i.buffer.what == BufferWhat::AgBuffer;
  const bool joins = i.kind == InstructionKind::CopyIn && i.buffer.what == BufferWhat::RsInput;
  if (!has_fsdp2_layouts(plan.runtime) || (!splits && !joins) || context_.device.profile.kind == "cpu") return true;
  const PlanUnit& unit = plan.units[i.unit.index()];
  const Bytes bytes =
      splits ? split_arguments(unit, i.unit, collectives_.gathered_from(i.unit)) : cat_arguments(i, unit);
  if (bytes == 0) return true;
  MemoryBook& book = context_.device.book;
  const BlockHandle block = book.allocate(bytes, index_of(i.stream), MemoryCategory::Temporaries);
  if (block == kNoBlock) return context_.out_of_memory(bytes);
  book.free(block);
  stage(bytes, index_of(i.stream));
  return true;
}

/// The arguments are written to pinned memory first (at::getPinnedMemoryAllocator): a block of a power of two that is
/// free, where copies that were issued before are seen done in their order; else the driver makes one. From the second
/// iteration on there are enough, but for a rare one that depends on the moment.
void DataMovement::stage(Bytes bytes, int stream) {
  if (context_.iteration->index > 0) return;
  Device& device = context_.device;
  const auto size = static_cast<Bytes>(std::bit_ceil(static_cast<std::uint64_t>(std::max<Bytes>(bytes, 1))));
  for (Staged& block : staged_) {
    if (block.free) continue;
    if (!device.clock.finished(block.last_use)) break;
    block.free = true;
  }
  const auto fits = [size](const Staged& block) { return block.free && block.bytes == size; };
  const auto known = std::find_if(staged_.begin(), staged_.end(), fits);
  if (known == staged_.end())
    device.clock.host_cost(device.profile.driver_alloc_ns);
  else
    staged_.erase(known);
  staged_.push_back({size, device.clock.record(stream), false});
}

SimDuration DataMovement::device_time(const Instruction& i) const {
  const KernelCost& cost = context_.device.cost;
  const Bytes bytes = instruction_bytes(i);
  const Bytes moved = i.kind == InstructionKind::Add || i.kind == InstructionKind::Accumulate ? 3 * bytes : 2 * bytes;
  const auto threads = [&] { return launch_threads(context_.plan, i, bytes, context_.device.profile); };
  if (cost.work().measured()) return instruction_work(context_.plan, context_.model, i, bytes, cost.work());
  return i.kind == InstructionKind::Fill ? cost.fill(bytes, threads) : cost.copy(moved, i.dtype, threads);
}

/// What comes before a gather, on its way there; what comes behind it, where gathers are for nothing.
bool DataMovement::is_waived(const Instruction& i) const {
  const bool behind = i.stream == Stream::D && i.kind == InstructionKind::CopyOut && i.phase != Phase::PostForward;
  if (behind) return context_.waived == Waived::Gathers;
  const bool source = i.stream == Stream::C && (i.kind == InstructionKind::CopyIn || i.kind == InstructionKind::Cast);
  if (source) return context_.waived != Waived::Nothing;
  return i.kind == InstructionKind::H2d && context_.waived == Waived::Sources;
}

bool DataMovement::move(const Instruction& i) {
  if (i.stream == Stream::Host) return true;
  Device& device = context_.device;
  if (i.kind == InstructionKind::H2d || i.kind == InstructionKind::D2h) {
    cross(i, instruction_bytes(i));
    return true;
  }
  const KernelCost& cost = device.cost;
  const SimDuration time = is_waived(i) ? 0 : device_time(i);
  device.launch(i.stream, cost.op_ns() + cost.launch_ns(), time, context_.span_of(i, work_span_kind(i.kind)));
  return true;
}

/// C1, C2, F2-26.
void DataMovement::cross(const Instruction& i, Bytes bytes) {
  Device& device = context_.device;
  const KernelCost& cost = device.cost;
  SimDuration host = cost.launch_ns();
  if (!i.pinned && i.kind == InstructionKind::H2d) host += cost.staging(bytes);
  // fsdp2's gradients come to the host into pinned memory that the first one makes; fsdp1's lies there from the
  // start.
  const bool pins =
      i.kind == InstructionKind::D2h && i.pinned && !i.blocking && context_.plan.runtime != Runtime::Fsdp1;
  if (pins && pinned_.insert(buffers_.index(i.buffer)).second) device.pin_host_memory(bytes);
  const SimDuration time = is_waived(i) ? 0 : cost.transfer(bytes);
  const WorkSpan run = device.launch(i.stream, host, time, context_.span_of(i, SpanKind::Copy));
  if (i.blocking || (i.kind == InstructionKind::D2h && !i.pinned)) {
    order_.add_host_wait(std::max<SimDuration>(0, run.end - device.clock.host()));
    device.clock.stream_synchronize(index_of(i.stream));
  }
}

}  // namespace foreshard
