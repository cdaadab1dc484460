// The storages that segments make: which block lies in which slot of which instance, and gradients, which the plan owns
// from the moment they are made. Part of one PlanPlayer.
#pragma once

#include <utility>
#include <vector>

#include "sim/play/instructions/plan_buffers.h"
#include "sim/play/instructions/play_context.h"
#include "sim/play/segments/run_recorder.h"

namespace foreshard {

constexpr MemoryCategory category_of_slot(SlotCategory category) {
  switch (category) {
    case SlotCategory::Activation: return MemoryCategory::Activations;
    case SlotCategory::ActivationGrad: return MemoryCategory::ActivationGrads;
    case SlotCategory::ParamGrad: return MemoryCategory::ParamGrads;
    case SlotCategory::Output: return MemoryCategory::Outputs;
    case SlotCategory::Workspace: return MemoryCategory::Workspace;
    case SlotCategory::Temporary: break;
  }
  return MemoryCategory::Temporaries;
}

class SegmentStorages {
 public:
  SegmentStorages(PlayContext& context, PlanBuffers& buffers, RunRecorder& recorder);

  /// The place of an instance's slot among those of all.
  std::int32_t place(std::int32_t instance, std::int32_t slot) const {
    return base_[static_cast<std::size_t>(instance)] + slot;
  }
  /// Of a free: a slot of the instance itself, or one that it imports.
  std::int32_t place_of_freed(const MemoryEvent& event, std::int32_t instance) const {
    if (event.slot >= 0) return place(instance, event.slot);
    const SegmentInstance& lowered = context_.lowered.instances[static_cast<std::size_t>(instance)];
    const ImportBinding& import = lowered.imports[static_cast<std::size_t>(-event.slot - 1)];
    return place(import.instance, import.slot);
  }
  std::size_t count() const { return blocks_.size(); }
  /// Of one of the plan's, behind all slots.
  std::int32_t place_of_buffer(std::size_t index) const { return static_cast<std::int32_t>(count() + index); }
  BlockHandle& operator[](std::int32_t place) { return blocks_[static_cast<std::size_t>(place)]; }
  /// Whether others than segments look at it: the loss, outputs that the caller keeps, what hold() says.
  bool is_held(std::int32_t place) const;
  /// It is made outside of its segment's runs.
  void hold(std::int32_t place) { made_outside_ = place; }
  const SegmentTemplate& template_of(std::int32_t instance) const {
    const LoweredProgram& lowered = context_.lowered;
    return lowered.templates[static_cast<std::size_t>(lowered.instances[static_cast<std::size_t>(instance)].lowered)];
  }

  /// False: out of memory.
  bool allocate(const SegmentTemplate& segment, std::int32_t instance, std::int32_t slot, Stream pool = Stream::D) {
    const Slot& made = segment.slots[static_cast<std::size_t>(slot)];
    if (made.category == SlotCategory::ParamGrad) return allocate_gradient(made, instance, slot, pool);
    const std::int32_t at = place(instance, slot);
    BlockHandle& held = (*this)[at];
    const BlockHandle block = context_.device.book.allocate(made.bytes, index_of(made.aside ? Stream::O : Stream::D),
                                                            category_of_slot(made.category));
    if (block == kNoBlock) return context_.out_of_memory(made.bytes);
    if (recorder_.open()) recorder_.made(at, held >= 0, is_held(at), block, -1);
    if (held >= 0)
      context_.device.book.free(held);  // a second forward before the backward of the first: its storages are dropped
    held = block;
    return true;
  }
  /// record_stream: the compute stream uses a storage of another stream's pool.
  void note_use(std::int32_t at) {
    if ((*this)[at] >= 0) context_.device.allocator.record_stream((*this)[at], index_of(Stream::D));
  }
  void free(std::int32_t at) {
    BlockHandle& held = (*this)[at];
    if (recorder_.open() && held >= 0) recorder_.dropped(at, is_held(at));
    context_.device.book.free(std::exchange(held, kNoBlock));
  }

  /// The block, which is the caller's from now on; kNoBlock: there is none.
  BlockHandle take(std::int32_t at) {
    BlockHandle& held = (*this)[at];
    if (recorder_.open() && held >= 0) recorder_.dropped(at, is_held(at));
    return std::exchange(held, kNoBlock);
  }

  /// Lowering numbers the parameters that a segment takes, a tied one once (core/lowering/lowering.h); the plan lists
  /// every name. Invalid: none of the segment's.
  ParamId owner_of(std::int32_t instance, std::size_t number) const;
  /// The plan's name of the gradient that a slot makes.
  BufferName gradient_buffer(const Slot& made, std::int32_t instance) const;

 private:
  bool allocate_gradient(const Slot& made, std::int32_t instance, std::int32_t slot, Stream pool);
  /// Under FSDP1 the gradient of what no unit manages is no piece of a flat one.
  bool is_ignored(ParamId param) const {
    return param.valid() && param.index() < ignored_.size() && ignored_[context_.model.storage_of(param).index()];
  }

  PlayContext& context_;
  PlanBuffers& buffers_;
  RunRecorder& recorder_;
  std::vector<std::int32_t> base_;  // by instance
  std::vector<BlockHandle> blocks_;
  std::int32_t made_outside_ = -1;
  bool has_tied_ = false;      // parameters of the model that share a storage
  std::vector<bool> ignored_;  // by ParamId
};

}  // namespace foreshard
