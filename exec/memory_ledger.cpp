#include "exec/memory_ledger.h"

#include <algorithm>

namespace foreshard::exec {
namespace {

void add_allocated(MemoryCount& count, Bytes change) {
  count.allocated += change;
  count.peak_allocated = std::max(count.peak_allocated, count.allocated);
}

void add_resident(MemoryCount& count, Bytes change) {
  count.resident += change;
  count.peak_resident = std::max(count.peak_resident, count.resident);
}

}  // namespace

std::string_view memory_category_name(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::Parameters: return "parameters";
    case MemoryCategory::FullParameters: return "full_parameters";
    case MemoryCategory::Gradients: return "gradients";
    case MemoryCategory::ReduceBuffers: return "reduce_buffers";
    case MemoryCategory::Activations: return "activations";
    case MemoryCategory::Temporaries: return "temporaries";
    case MemoryCategory::OptimizerState: return "optimizer_state";
    case MemoryCategory::Buffers: return "buffers";
  }
  return "";
}

void MemoryLedger::add_stream() {
  std::lock_guard lock(mutex_);
  report_.by_stream.emplace_back();
}

void MemoryLedger::allocated(StreamIndex pool, MemoryCategory category, Bytes change) {
  std::lock_guard lock(mutex_);
  add_allocated(count(pool, category), change);
  add_allocated(report_.total, change);
}

void MemoryLedger::resident(StreamIndex pool, MemoryCategory category, Bytes change) {
  std::lock_guard lock(mutex_);
  add_resident(count(pool, category), change);
  add_resident(report_.total, change);
}

MemoryReport MemoryLedger::report() const {
  std::lock_guard lock(mutex_);
  return report_;
}

MemoryCount& MemoryLedger::count(StreamIndex pool, MemoryCategory category) {
  return report_.by_stream[pool.index()][static_cast<std::size_t>(category)];
}

}  // namespace foreshard::exec
