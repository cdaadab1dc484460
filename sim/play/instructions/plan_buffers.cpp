#include "sim/play/instructions/plan_buffers.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include "core/instruction_spans.h"

namespace foreshard {

PlanBuffers::PlanBuffers(PlayContext& context)
    : context_(context), blocks_(context.prepared.numbers.count(), kNoBlock) {}

/// A buffer of the arena has its place there: the allocator has nothing to do with it.
bool PlanBuffers::allocate(const Instruction& i) {
  const auto iteration = static_cast<std::size_t>(context_.iteration - context_.plan.iterations.data());
  const bool placed =
      arena_ != nullptr && arena_->offset(iteration, static_cast<std::size_t>(context_.position)) != Arena::kElsewhere;
  if (!placed) return allocate(i.buffer, i.arg, i.stream, instruction_bytes(i));
  own(i.buffer, i.arg, kEmptyBlock);
  return true;
}

bool PlanBuffers::allocate(const BufferName& buffer, std::int32_t instance, Stream pool, Bytes bytes) {
  const BlockHandle block = context_.device.book.allocate(bytes, index_of(pool), category_of(buffer.what));
  if (block == kNoBlock) return context_.out_of_memory(bytes);
  own(buffer, instance, block);
  return true;
}

void PlanBuffers::own(const BufferName& buffer, std::int32_t instance, BlockHandle block) {
  const std::size_t at = index(buffer);
  if (instance == 0 && blocks_[at] == kNoBlock)
    blocks_[at] = block;
  else
    more_.push_back({block, instance, at});
}

BlockHandle PlanBuffers::find(const BufferName& buffer, std::int32_t instance) const {
  const std::size_t at = index(buffer);
  if (instance == 0 && blocks_[at] != kNoBlock) return blocks_[at];
  for (const NamedBlock& more : more_) {
    if (more.index == at && more.instance == instance) return more.block;
  }
  return kNoBlock;
}

BlockHandle PlanBuffers::take(const BufferName& buffer, std::int32_t instance) {
  const std::size_t at = index(buffer);
  if (instance == 0 && blocks_[at] != kNoBlock) return std::exchange(blocks_[at], kNoBlock);
  for (auto it = more_.begin(); it != more_.end(); ++it) {
    if (it->index != at || it->instance != instance) continue;
    const BlockHandle block = it->block;
    more_.erase(it);
    return block;
  }
  return kNoBlock;
}

BlockHandle PlanBuffers::newest(const BufferName& buffer) const {
  const std::size_t at = index(buffer);
  for (auto it = more_.rbegin(); it != more_.rend(); ++it)
    if (it->index == at && it->instance == 0) return it->block;
  return blocks_[at];
}

BlockHandle PlanBuffers::take_newest(const BufferName& buffer) {
  const std::size_t at = index(buffer);
  for (auto it = more_.end(); it != more_.begin();) {
    --it;
    if (it->index != at || it->instance != 0) continue;
    const BlockHandle block = it->block;
    more_.erase(it);
    return block;
  }
  return std::exchange(blocks_[at], kNoBlock);
}

bool PlanBuffers::play(const Instruction& i) {
  Device& device = context_.device;
  if (i.stream == Stream::Host) {
    if (i.kind == InstructionKind::Alloc && i.pinned) pin(i);
    return true;
  }
  ++device.activity.events;
  switch (i.kind) {
    case InstructionKind::Alloc:
      if (!allocate(i)) return false;
      break;
    case InstructionKind::Resize:
      if (instruction_bytes(i) > 0) {
        if (!allocate(i)) return false;
        break;
      }
      device.book.free(take(i.buffer, i.arg));
      break;
    case InstructionKind::Free: {
      BlockHandle block = take(i.buffer, i.arg);
      // Of two clones in turn a repeated iteration may have the other one alive.
      if (block == kNoBlock && i.buffer.what == BufferWhat::PostForwardShard) block = take(i.buffer, 1 - i.arg);
      device.book.free(block);
      break;
    }
    default: device.allocator.record_stream(find(i.buffer, i.arg), index_of(i.other)); return true;
  }
  if (device.activity.keep_spans) context_.samples.push_back(context_.ledger_now());
  return true;
}

/// C1: what is pinned is made pageable first: pin_memory() copies.
void PlanBuffers::pin(const Instruction& i) {
  constexpr int kCopy = 2, kZeros = 1;  // passes over the memory
  Device& device = context_.device;
  const int passes = i.buffer.what == BufferWhat::HostGrad ? kZeros + kCopy : kCopy;
  device.pin_host_memory(instruction_bytes(i));
  device.clock.host_cost(device.cost.host_pass(passes * instruction_bytes(i)));
}

void PlanBuffers::zero_gradients() {
  MemoryBook& book = context_.device.book;
  const std::size_t width = context_.prepared.numbers.width();
  for (const BufferWhat what :
       {BufferWhat::ShardGrad, BufferWhat::ReduceOut, BufferWhat::RsOutput, BufferWhat::GradCast,
        BufferWhat::ShardDimGrad, BufferWhat::SavedGrad, BufferWhat::Grad, BufferWhat::GradPiece}) {
    const std::size_t begin = static_cast<std::size_t>(what) * width;
    const std::span<BlockHandle> blocks(blocks_.data() + begin, width);
    const bool none = std::reduce(blocks.begin(), blocks.end(), kNoBlock, std::bit_and<>()) == kNoBlock;  // all bits
    for (std::size_t at = 0; !none && at < width; ++at) book.free(std::exchange(blocks[at], kNoBlock));
    for (auto it = more_.begin(); it != more_.end();) {
      const bool inside = it->index >= begin && it->index < begin + width;
      if (inside) book.free(it->block);
      it = inside ? more_.erase(it) : it + 1;
    }
  }
}

void PlanBuffers::forget_state_copies() {
  const std::size_t width = context_.prepared.numbers.width();
  const std::size_t begin = static_cast<std::size_t>(BufferWhat::StateCopy) * width;
  std::fill_n(blocks_.begin() + static_cast<std::ptrdiff_t>(begin), width, kNoBlock);
  std::erase_if(more_, [&](const NamedBlock& more) { return more.index >= begin && more.index < begin + width; });
}

}  // namespace foreshard
