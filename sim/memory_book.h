// Who owns the bytes: the caching allocator's blocks by category, and what was alive at the highest point.
//
// Sizes are those of the allocator's blocks, so that the categories add up to its allocated bytes. Owned by one
// simulation.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/plan.h"
#include "core/units.h"
#include "sim/caching_allocator.h"

namespace foreshard {

enum class MemoryCategory : std::uint8_t {
  ShardedParams,
  FullParams,
  ParamGrads,
  ShardedGrads,
  CommBuffers,
  Activations,
  ActivationGrads,
  Temporaries,
  Outputs,
  OptimizerState,
  Inputs,
  Workspace,
  Count,
};
inline constexpr std::size_t kMemoryCategories = static_cast<std::size_t>(MemoryCategory::Count);
std::string_view memory_category_name(MemoryCategory category);  // "sharded_params", ...
MemoryCategory category_of(BufferWhat what);

class MemoryBook {
 public:
  explicit MemoryBook(CachingAllocator& allocator) : allocator_(allocator) {}

  BlockHandle allocate(Bytes bytes, int stream, MemoryCategory category) {
    const BlockHandle block = allocator_.allocate(bytes, stream);
    if (block < 0) return block;
    if (static_cast<std::size_t>(block) >= category_.size()) category_.resize(static_cast<std::size_t>(block) + 64);
    category_[static_cast<std::size_t>(block)] = category;
    by_category_[static_cast<std::size_t>(category)] += allocator_.block_bytes(block);
    if (allocator_.stats().allocated.current > peak_) note_peak();
    return block;
  }
  void free(BlockHandle block) {
    if (block < 0) return;
    by_category_[static_cast<std::size_t>(category_[static_cast<std::size_t>(block)])] -= allocator_.block_bytes(block);
    allocator_.free(block);
  }
  /// The same bytes under another name: a reduced gradient becomes .grad.
  void relabel(BlockHandle block, MemoryCategory category);

  /// What runs now; kept with the peak.
  void set_place(std::int32_t iteration, std::int32_t instruction) {
    iteration_ = iteration;
    instruction_ = instruction;
  }

  using Categories = std::array<Bytes, kMemoryCategories>;
  const Categories& now() const { return by_category_; }
  const Categories& at_peak() const { return at_peak_; }
  Bytes peak() const { return peak_; }
  std::int32_t peak_iteration() const { return peak_iteration_; }
  std::int32_t peak_instruction() const { return peak_instruction_; }

 private:
  void note_peak() {
    peak_ = allocator_.stats().allocated.current;
    at_peak_ = by_category_;
    peak_iteration_ = iteration_;
    peak_instruction_ = instruction_;
  }

  CachingAllocator& allocator_;
  std::vector<MemoryCategory> category_;  // by block
  Categories by_category_{}, at_peak_{};
  Bytes peak_ = 0;
  std::int32_t iteration_ = -1, instruction_ = -1, peak_iteration_ = -1, peak_instruction_ = -1;
};

}  // namespace foreshard
