// The buffers that a plan's instructions name (gathered parameters, gradients, copies): who holds which block, from its
// allocation to its free. Sizes in bytes. Part of one PlanPlayer.
#pragma once

#include <cstddef>
#include <vector>

#include "core/plan/planned/arena.h"
#include "sim/play/instructions/play_context.h"

namespace foreshard {

class PlanBuffers {
 public:
  explicit PlanBuffers(PlayContext& context);

  /// From now on those that the arena places lie there: its blocks have been allocated. nullptr: none does.
  void lie_in(const Arena* arena) { arena_ = arena; }

  /// Alloc, Resize, Free, NoteUse. False: out of memory.
  bool play(const Instruction& i);
  /// False: out of memory.
  bool allocate(const BufferName& buffer, std::int32_t instance, Stream pool, Bytes bytes);
  /// The block is the buffer's from here on.
  void own(const BufferName& buffer, std::int32_t instance, BlockHandle block);
  /// kNoBlock: it has none.
  BlockHandle find(const BufferName& buffer, std::int32_t instance) const;
  /// The buffer has no block any more; the block is the caller's.
  BlockHandle take(const BufferName& buffer, std::int32_t instance);
  /// Of instance 0, by index: the first of that name, if it has any.
  BlockHandle& block(std::size_t index) { return blocks_[index]; }
  BlockHandle block(std::size_t index) const { return blocks_[index]; }
  std::size_t count() const { return blocks_.size(); }
  /// Whether any name has several, or one of another instance.
  bool has_more() const { return !more_.empty(); }
  bool in_arena() const { return arena_ != nullptr; }
  /// Of several of one name and instance 0, the one that came last.
  BlockHandle newest(const BufferName& buffer) const;
  BlockHandle take_newest(const BufferName& buffer);
  /// One number for all names of a buffer.
  std::size_t index(const BufferName& buffer) const { return context_.prepared.numbers.of(buffer); }

  /// zero_grad(set_to_none): whatever holds a gradient between backward and here.
  void zero_gradients();
  /// What a save has returned belongs to its caller: a load that follows means its own copies by these names.
  void forget_state_copies();

 private:
  bool allocate(const Instruction& i);
  void pin(const Instruction& i);

  struct NamedBlock {
    BlockHandle block = kNoBlock;
    std::int32_t instance = 0;
    std::size_t index = 0;
  };

  PlayContext& context_;
  std::vector<BlockHandle> blocks_;  // by index, instance 0
  std::vector<NamedBlock> more_;     // further buffers of one name
  const Arena* arena_ = nullptr;
};

}  // namespace foreshard
