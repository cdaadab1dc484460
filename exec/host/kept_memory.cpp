#include "exec/host/kept_memory.h"

#include <algorithm>
#include <bit>
#include <exception>

namespace foreshard::exec {
namespace {

constexpr std::size_t kSmallest = 32 * 1024;  // below it the C library keeps its pages itself

/// The size of the block that serves it; 0: none of ours.
std::size_t block_size(std::size_t bytes) {
  if (bytes < kSmallest) return 0;
  const std::size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

}  // namespace

KeptMemory::~KeptMemory() { shrink(0); }

std::size_t KeptMemory::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_;
}

void* KeptMemory::take(std::size_t bytes) {
  const std::size_t size = block_size(bytes);
  if (size == 0) return source_.raw_allocate(bytes);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = free_.find(size); found != free_.end()) {
      void* const data = found->second.back().data;  // the latest: still in the caches
      found->second.pop_back();
      if (found->second.empty()) free_.erase(found);
      kept_ -= size;
      count(size);
      return data;
    }
    const std::size_t used = used_ + size, most = std::max(most_used_, used);
    shrink(most + most / 4 - used);
  }
  void* const data = from_source(size);
  const std::lock_guard lock(mutex_);
  count(size);  // not before: what the source refuses was never used
  return data;
}

/// REQUIRES the lock.
void KeptMemory::count(std::size_t taken) {
  used_ += taken;
  most_used_ = std::max(most_used_, used_);
}

void* KeptMemory::from_source(std::size_t size) {
  try {
    return source_.raw_allocate(size);
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    shrink(0);
  }
  return source_.raw_allocate(size);
}

void KeptMemory::give_back(void* data, std::size_t bytes) {
  const std::size_t size = block_size(bytes);
  if (size == 0) return source_.raw_deallocate(data);
  const std::lock_guard lock(mutex_);
  used_ -= size;
  kept_ += size;
  free_[size].push_back({data, calls_++});
  shrink(most_used_ + most_used_ / 4 - used_);
}

/// REQUIRES the lock.
void KeptMemory::shrink(std::size_t most) {
  while (kept_ > most) {
    const auto oldest = std::min_element(free_.begin(), free_.end(), [](const auto& a, const auto& b) {
      return a.second.front().since < b.second.front().since;
    });
    source_.raw_deallocate(oldest->second.front().data);
    kept_ -= oldest->first;
    oldest->second.pop_front();
    if (oldest->second.empty()) free_.erase(oldest);
  }
}

}  // namespace foreshard::exec
