#include "exec/record/memory_ledger.h"

#include <algorithm>
#include <utility>

namespace foreshard::exec {
namespace {

constexpr std::array<std::string_view, kMemoryCategoryCount> kNames{
    "sharded_params",   "full_params", "param_grads", "sharded_grads",   "comm_buffers", "activations",
    "activation_grads", "temporaries", "outputs",     "optimizer_state", "inputs",       "buffers"};

void add_resident(MemoryCount& count, Bytes change) {
  count.resident += change;
  count.peak_resident = std::max(count.peak_resident, count.resident);
}

std::size_t index_of(MemoryCategory category) { return static_cast<std::size_t>(category); }

}  // namespace

std::string_view memory_category_name(MemoryCategory category) { return kNames[index_of(category)]; }

MemoryLedger::MemoryLedger() : logs_(2) {}

void MemoryLedger::add_stream(bool host_memory) {
  std::lock_guard lock(mutex_);
  host_memory_.push_back(host_memory);
  report_.by_stream.emplace_back();
  settled_.emplace_back();
  logs_.insert(logs_.end() - 1, std::vector<MemoryChange>());
}

void MemoryLedger::allocated(StreamIndex pool, MemoryCategory category, Bytes change, PlanPlace place) {
  std::lock_guard lock(mutex_);
  count(pool, category).allocated += change;
  if (on_device(pool)) report_.total.allocated += change;
  logs_.front().push_back({place, category, pool, change});
}

void MemoryLedger::resident(StreamIndex pool, MemoryCategory category, Bytes change) {
  std::lock_guard lock(mutex_);
  add_resident(count(pool, category), change);
  if (on_device(pool)) add_resident(report_.total, change);
}

void MemoryLedger::operators(StreamIndex pool, MemoryCategory category, Bytes change, StreamIndex runs_on,
                             PlanPlace place) {
  std::lock_guard lock(mutex_);
  count(pool, category).allocated += change;
  add_resident(count(pool, category), change);
  if (on_device(pool)) {
    report_.total.allocated += change;
    add_resident(report_.total, change);
  }
  (runs_on.valid() ? logs_[1 + runs_on.index()] : logs_.back()).push_back({place, category, pool, change});
}

std::vector<MemoryChange> MemoryLedger::settle() {
  std::lock_guard lock(mutex_);
  std::vector<MemoryChange> ordered;
  std::size_t total = 0;
  for (const auto& log : logs_) total += log.size();
  ordered.reserve(total);
  // A merge of a handful of sorted lists; the last one is not sorted and comes behind.
  std::vector<std::size_t> at(logs_.size() - 1, 0);
  while (true) {
    std::size_t first = at.size();
    for (std::size_t l = 0; l < at.size(); ++l) {
      if (at[l] == logs_[l].size()) continue;
      if (first == at.size() || logs_[l][at[l]].place < logs_[first][at[first]].place) first = l;
    }
    if (first == at.size()) break;
    ordered.push_back(logs_[first][at[first]++]);
  }
  ordered.insert(ordered.end(), logs_.back().begin(), logs_.back().end());
  for (auto& log : logs_) log.clear();

  for (const MemoryChange& change : ordered) {
    const std::size_t category = index_of(change.category);
    Bytes& own = settled_[change.pool.index()][category];
    own += change.change;
    MemoryCount& counted = count(change.pool, change.category);
    counted.peak_allocated = std::max(counted.peak_allocated, own);
    if (!on_device(change.pool)) continue;
    settled_by_category_[category] += change.change;
    settled_total_ += change.change;
    if (settled_total_ > report_.total.peak_allocated) {
      report_.total.peak_allocated = settled_total_;
      report_.at_peak = settled_by_category_;
      report_.peak_instruction = InstructionId(change.place.instruction);
    }
  }
  std::erase_if(ordered, [this](const MemoryChange& change) { return !on_device(change.pool); });
  return ordered;
}

void MemoryLedger::reset_peaks() {
  settle();
  std::lock_guard lock(mutex_);
  const auto reset = [](MemoryCount& c) {
    c.peak_allocated = c.allocated;
    c.peak_resident = c.resident;
  };
  reset(report_.total);
  for (auto& stream : report_.by_stream) std::for_each(stream.begin(), stream.end(), reset);
  report_.at_peak = settled_by_category_;
  report_.peak_instruction = InstructionId();
}

MemoryReport MemoryLedger::report() const {
  std::lock_guard lock(mutex_);
  return report_;
}

MemoryCount& MemoryLedger::count(StreamIndex pool, MemoryCategory category) {
  return report_.by_stream[pool.index()][index_of(category)];
}

}  // namespace foreshard::exec
