#include "exec/host/counting_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <mutex>
#include <new>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "exec/host/kept_memory.h"

namespace foreshard::exec {
namespace {

/// Stands before every piece of memory, so that an address alone leads to it: some kernels ask for bare pointers.
struct alignas(64) Counted {
  Bytes bytes = 0;
  std::shared_ptr<OperatorMemory> counter;      // empty: not counted
  std::shared_ptr<MemoryScope::Ledger> ledger;  // of the scope that it was taken under
  std::atomic<MemoryCategory> category{MemoryCategory::Temporaries};
};
static_assert(sizeof(Counted) == 64, "memory behind it keeps the allocator's alignment");

Counted* header_of(void* data) { return static_cast<Counted*>(data) - 1; }

/// LibTorch's own, and what is kept of it.
struct Inner {
  c10::Allocator* allocator = c10::GetCPUAllocator();
  KeptMemory kept{*allocator};
};

/// Made before the counting one is set, never destroyed. LibTorch hands the counting one to threads that run already
/// without a lock: what they find behind it is ordered by this static's own.
Inner& inner() {
  static auto* made = new Inner;
  return *made;
}

}  // namespace

/// What was taken under one scope and is held still, while the scope stands. Its lock is its own: threads that free
/// meet it only where they free memory of a scope that still stands.
struct MemoryScope::Ledger {
  MemoryCategory during = MemoryCategory::Temporaries;
  std::shared_ptr<OperatorMemory> counter;
  std::mutex mutex;
  bool open = true;
  std::unordered_set<Counted*> held;
};

namespace {

/// The innermost scope of the thread; null without one.
thread_local std::shared_ptr<MemoryScope::Ledger> t_ledger;

void begin_count(Counted& counted, const std::shared_ptr<MemoryScope::Ledger>& ledger) {
  counted.counter = ledger->counter;
  counted.ledger = ledger;
  counted.category.store(ledger->during, std::memory_order_relaxed);
  {
    std::lock_guard lock(ledger->mutex);
    ledger->held.insert(&counted);
  }
  counted.counter->changed(ledger->during, counted.bytes);
}

void end_count(Counted& counted) {
  {
    std::lock_guard lock(counted.ledger->mutex);
    if (counted.ledger->open) counted.ledger->held.erase(&counted);
  }
  counted.counter->changed(counted.category.load(std::memory_order_relaxed), -counted.bytes);
}

/// Blocks of a device have no room for a header: addresses lead to it.
class DeviceBlocks {
 public:
  static DeviceBlocks& all() {
    static auto* blocks = new DeviceBlocks;  // never destroyed: the allocator goes on telling
    return *blocks;
  }

  /// The innermost scope over the device's work.
  std::shared_ptr<MemoryScope::Ledger> exchange_scope(std::shared_ptr<MemoryScope::Ledger> scope) {
    std::lock_guard lock(mutex_);
    return std::exchange(scope_, std::move(scope));
  }
  void taken(const void* data, Bytes bytes) {
    std::lock_guard lock(mutex_);
    if (!scope_) return;
    std::unique_ptr<Counted>& counted = blocks_[data];
    counted = std::make_unique<Counted>();
    counted->bytes = bytes;
    begin_count(*counted, scope_);
  }
  void given_back(const void* data) {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(data);
    if (found == blocks_.end()) return;
    end_count(*found->second);
    blocks_.erase(found);
  }
  void claim(const void* data, MemoryCategory category) {
    std::lock_guard lock(mutex_);
    if (const auto found = blocks_.find(data); found != blocks_.end()) recount(*found->second, category);
  }

  static void recount(Counted& counted, MemoryCategory category) {
    const MemoryCategory from = counted.category.exchange(category);
    if (from == category) return;
    counted.counter->changed(from, -counted.bytes);
    counted.counter->changed(category, counted.bytes);
  }

 private:
  std::mutex mutex_;  // before a scope's, never after it
  std::shared_ptr<MemoryScope::Ledger> scope_;
  std::unordered_map<const void*, std::unique_ptr<Counted>> blocks_;
};

void release(void* data) {
  if (data == nullptr) return;
  Counted* counted = header_of(data);
  if (counted->counter) end_count(*counted);
  const auto bytes = static_cast<std::size_t>(counted->bytes);
  counted->~Counted();
  inner().kept.give_back(counted, bytes + sizeof(Counted));
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::kCPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    auto* counted = new (inner().kept.take(bytes + sizeof(Counted))) Counted;
    counted->bytes = static_cast<Bytes>(bytes);
    if (const std::shared_ptr<MemoryScope::Ledger>& ledger = t_ledger; ledger && !ledger->counter->of_device()) {
      begin_count(*counted, ledger);
    }
    void* data = counted + 1;
    return {data, data, &release, cpu};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    inner().allocator->copy_data(to, from, bytes);
  }
};

}  // namespace

void install_counting_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    static CountingAllocator allocator;
    inner();
    c10::SetCPUAllocator(&allocator, /*priority=*/100);
  });
}

MemoryScope::MemoryScope(MemoryCategory during, MemoryCategory after) : outer_(t_ledger), after_(after) {
  if (const auto& counter = OperatorMemory::current()) {
    if (!counter->of_device()) install_counting_allocator();
    ledger_ = std::make_shared<Ledger>();
    ledger_->during = during;
    ledger_->counter = counter;
    if (counter->of_device()) DeviceBlocks::all().exchange_scope(ledger_);
  }
  t_ledger = ledger_;
}

MemoryScope::~MemoryScope() {
  t_ledger = outer_;
  if (ledger_ && ledger_->counter->of_device()) DeviceBlocks::all().exchange_scope(outer_);
  if (!ledger_ || after_ == ledger_->during) return;
  Bytes moved = 0;
  {
    std::lock_guard lock(ledger_->mutex);
    ledger_->open = false;
    for (Counted* counted : ledger_->held) {
      MemoryCategory during = ledger_->during;
      if (counted->category.compare_exchange_strong(during, after_)) moved += counted->bytes;  // else it was claimed
    }
    ledger_->held.clear();
  }
  if (moved == 0) return;
  ledger_->counter->changed(ledger_->during, -moved);
  ledger_->counter->changed(after_, moved);
}

void claim(const at::Tensor& tensor, MemoryCategory category) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const c10::DataPtr& data = tensor.storage().data_ptr();
  if (data.get() == nullptr) return;
  if (data.get_deleter() != &release) return DeviceBlocks::all().claim(data.get(), category);
  Counted& counted = *header_of(data.get_context());
  if (counted.counter) DeviceBlocks::recount(counted, category);
}

void device_memory_taken(const void* data, Bytes bytes) { DeviceBlocks::all().taken(data, bytes); }
void device_memory_given_back(const void* data) { DeviceBlocks::all().given_back(data); }

}  // namespace foreshard::exec
