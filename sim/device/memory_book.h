// Who owns the bytes: the caching allocator's blocks by category, and what was alive at the highest point.
//
// Sizes are those of the allocator's blocks, so that the categories add up to its allocated bytes. Owned by one
// simulation.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/memory_log.h"
#include "core/plan.h"
#include "core/units.h"
#include "sim/device/allocator/caching_allocator.h"

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
static_assert(kMemoryCategories == std::tuple_size_v<SegmentRun::Categories>);
std::string_view memory_category_name(MemoryCategory category);  // "sharded_params", ...
MemoryCategory category_of(BufferWhat what);

class MemoryBook {
 public:
  explicit MemoryBook(CachingAllocator& allocator) : allocator_(allocator) {}

  BlockHandle allocate(Bytes bytes, int stream, MemoryCategory category) {
    if (log_ != nullptr) note_origin(category);
    const BlockHandle block = allocator_.allocate(bytes, stream);
    if (block < 0) return block;
    if (static_cast<std::size_t>(block) >= category_.size()) category_.resize(static_cast<std::size_t>(block) + 64);
    category_[static_cast<std::size_t>(block)] = category;
    if (keeps_holders_) note_holder(block);
    by_category_[static_cast<std::size_t>(category)] += allocator_.block_bytes(block);
    if (allocator_.stats().allocated.current > peak_) note_peak();
    return block;
  }
  void free(BlockHandle block) {
    if (block < 0) return;
    if (log_ != nullptr) note_origin(category_[static_cast<std::size_t>(block)]);
    if (keeps_holders_) note_free(block);
    by_category_[static_cast<std::size_t>(category_[static_cast<std::size_t>(block)])] -= allocator_.block_bytes(block);
    allocator_.free(block);
  }
  /// All that a recorded run did (sim/device/allocator/pool_tape.h) from this many allocated bytes on. REQUIRES no
  /// holders and no log.
  void skip(const SegmentRun& run, Bytes allocated) {
    if (const Bytes highest = allocated + run.allocated.highest; highest > peak_) {
      note_peak();
      peak_ = highest;
      for (std::size_t c = 0; c < kMemoryCategories; ++c) at_peak_[c] += run.at_highest[c];
    }
    for (std::size_t c = 0; c < kMemoryCategories; ++c) by_category_[c] += run.categories[c];
  }
  /// A block of a skipped run that is looked at after all; its bytes are already counted.
  void adopt(BlockHandle block, MemoryCategory category) {
    if (static_cast<std::size_t>(block) >= category_.size()) category_.resize(static_cast<std::size_t>(block) + 64);
    category_[static_cast<std::size_t>(block)] = category;
  }
  MemoryCategory category(BlockHandle block) const { return category_[static_cast<std::size_t>(block)]; }
  /// The same bytes under another name: a reduced gradient becomes .grad.
  void relabel(BlockHandle block, MemoryCategory category);

  /// What runs now; kept with the peak.
  void set_place(std::int32_t iteration, std::int32_t instruction) {
    iteration_ = iteration;
    instruction_ = instruction;
  }

  void set_instruction(std::int32_t instruction) { instruction_ = instruction; }

  /// The unit that what follows belongs to where no instruction says it (wrapping, the optimizer); -1 = none.
  void set_unit(std::int32_t unit) { unit_ = unit; }

  /// Who held a block when the highest point was reached.
  struct Holder {
    Bytes bytes = 0;
    MemoryCategory category = MemoryCategory::Temporaries;
    std::int32_t iteration = -1, instruction = -1;  // that allocated it; -1 before the first iteration
    std::int32_t unit = -1;                         // as set_unit said
  };
  /// From now on blocks remember who made them. Costs a little at every allocation.
  void keep_holders() { keeps_holders_ = true; }
  /// All blocks that were allocated at the peak. Empty without keep_holders().
  std::vector<Holder> holders_at_peak();

  /// From now on the allocator writes down what happens, with whose it is. The log outlives this.
  void log_to(MemoryLog* log) {
    log_ = log;
    allocator_.log_to(log);
  }
  /// As set_unit said, by MemoryLog::origins.
  const std::vector<std::int32_t>& origin_units() const { return origin_units_; }

  using Categories = std::array<Bytes, kMemoryCategories>;
  const Categories& now() const { return by_category_; }
  const Categories& at_peak() const { return at_peak_; }
  Bytes peak() const { return peak_; }
  /// The highest point of what happens from here on alone, until join_peak() is given what this has returned.
  /// REQUIRES no holders.
  struct Peak {
    Bytes bytes = 0;
    Categories categories{};
    std::int32_t iteration = -1, instruction = -1;
  };
  Peak part_peak();
  void join_peak(const Peak& before);
  std::int32_t peak_iteration() const { return peak_iteration_; }
  std::int32_t peak_instruction() const { return peak_instruction_; }

 private:
  void note_peak() {
    peak_ = allocator_.stats().allocated.current;
    at_peak_ = by_category_;
    peak_iteration_ = iteration_;
    peak_instruction_ = instruction_;
    peak_is_now_ = true;
  }
  void note_holder(BlockHandle block);
  void note_free(BlockHandle block);
  void note_origin(MemoryCategory category);

  CachingAllocator& allocator_;
  std::vector<MemoryCategory> category_;  // by block
  Categories by_category_{}, at_peak_{};
  Bytes peak_ = 0;
  bool keeps_holders_ = false, peak_is_now_ = false;  // what is held now is what was held at the peak
  std::vector<Holder> holder_;                        // by block; bytes 0 = not allocated
  std::vector<Holder> at_highest_;
  MemoryLog* log_ = nullptr;
  MemoryCategory origin_category_ = MemoryCategory::Count;  // of the last origin
  std::vector<std::int32_t> origin_units_;
  std::int32_t unit_ = -1;
  std::int32_t iteration_ = -1, instruction_ = -1, peak_iteration_ = -1, peak_instruction_ = -1;
};

}  // namespace foreshard
