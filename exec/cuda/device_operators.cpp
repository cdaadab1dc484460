#include "exec/cuda/device_operators.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>
#include <mutex>

#include "exec/host/counting_allocator.h"

namespace foreshard::exec {

namespace Allocator = c10::cuda::CUDACachingAllocator;

void DeviceOperators::at(PlanPlace place) {
  const auto step = static_cast<std::uint64_t>(static_cast<std::uint32_t>(place.step));
  place_.store((step << 32) | static_cast<std::uint32_t>(place.instruction), std::memory_order_relaxed);
}

void DeviceOperators::changed(MemoryCategory category, Bytes change) {
  constexpr StreamIndex kCompute(0);
  const std::uint64_t place = place_.load(std::memory_order_relaxed);
  const PlanPlace here{static_cast<std::int32_t>(place >> 32), static_cast<std::int32_t>(place & 0xffffffffU)};
  ledger_->operators(kCompute, category, change, kCompute, here);
}

void follow_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    Allocator::attachAllocatorTraceTracker([](const Allocator::TraceEntry& entry) {
      constexpr std::size_t kLeast = 512;  // what the allocator rounds up to
      const void* data = reinterpret_cast<const void*>(entry.addr_);
      if (entry.action_ == Allocator::TraceEntry::ALLOC) {
        device_memory_taken(data, static_cast<Bytes>((entry.size_ + kLeast - 1) / kLeast * kLeast));
      } else if (entry.action_ == Allocator::TraceEntry::FREE_REQUESTED) {
        device_memory_given_back(data);
      }
    });
  });
}

}  // namespace foreshard::exec
