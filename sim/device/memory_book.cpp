#include "sim/device/memory_book.h"

#include <string>

#include "core/buffer_use.h"

namespace foreshard {

std::string_view memory_category_name(MemoryCategory category) {
  constexpr std::array<std::string_view, kMemoryCategories> kNames{
      "sharded_params",   "full_params", "param_grads", "sharded_grads",   "comm_buffers", "activations",
      "activation_grads", "temporaries", "outputs",     "optimizer_state", "inputs",       "workspace"};
  return kNames[static_cast<std::size_t>(category)];
}

MemoryCategory category_of(BufferWhat what) {
  switch (buffer_use(what)) {
    case BufferUse::Shard: return MemoryCategory::ShardedParams;
    case BufferUse::FullParameter: return MemoryCategory::FullParams;
    case BufferUse::Gradient: return MemoryCategory::ParamGrads;
    case BufferUse::ShardedGradient: return MemoryCategory::ShardedGrads;
    case BufferUse::Communication: return MemoryCategory::CommBuffers;
    case BufferUse::OptimizerState: return MemoryCategory::OptimizerState;
    case BufferUse::Input: return MemoryCategory::Inputs;
    default: return MemoryCategory::Temporaries;
  }
}

MemoryBook::Peak MemoryBook::part_peak() {
  const Peak before{peak_, at_peak_, peak_iteration_, peak_instruction_};
  note_peak();
  return before;
}

void MemoryBook::join_peak(const Peak& before) {
  if (peak_ > before.bytes) return;
  peak_ = before.bytes;
  at_peak_ = before.categories;
  peak_iteration_ = before.iteration;
  peak_instruction_ = before.instruction;
}

void MemoryBook::relabel(BlockHandle block, MemoryCategory category) {
  if (block < 0) return;
  MemoryCategory& held = category_[static_cast<std::size_t>(block)];
  const Bytes bytes = allocator_.block_bytes(block);
  by_category_[static_cast<std::size_t>(held)] -= bytes;
  by_category_[static_cast<std::size_t>(category)] += bytes;
  held = category;
  if (keeps_holders_) holder_[static_cast<std::size_t>(block)].category = category;
}

void MemoryBook::note_holder(BlockHandle block) {
  const auto at = static_cast<std::size_t>(block);
  if (at >= holder_.size()) holder_.resize(at + 64);
  holder_[at] = {allocator_.block_bytes(block), category_[at], iteration_, instruction_, unit_};
}

void MemoryBook::note_origin(MemoryCategory category) {
  std::vector<MemoryOrigin>& origins = log_->origins;
  const bool same = !origins.empty() && origins.back().iteration == iteration_ &&
                    origins.back().instruction == instruction_ && origin_category_ == category &&
                    origin_units_.back() == unit_;
  if (!same) {
    origins.push_back({std::string(memory_category_name(category)), "", "", iteration_, instruction_});
    origin_units_.push_back(unit_);
    origin_category_ = category;
  }
  allocator_.set_origin(static_cast<std::int32_t>(origins.size()) - 1);
}

void MemoryBook::note_free(BlockHandle block) {
  // The first free after a new highest point: until now nothing that was held there has gone.
  if (peak_is_now_) at_highest_ = holder_;
  peak_is_now_ = false;
  holder_[static_cast<std::size_t>(block)].bytes = 0;
}

std::vector<MemoryBook::Holder> MemoryBook::holders_at_peak() {
  std::vector<Holder> held = peak_is_now_ ? holder_ : at_highest_;
  std::erase_if(held, [](const Holder& holder) { return holder.bytes == 0; });
  return held;
}

}  // namespace foreshard
