#include "sim/device/driver_memory.h"

#include <algorithm>

namespace foreshard {

bool DriverMemory::charge(Bytes bytes) {
  if (bytes > limit_ - used_) return false;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return true;
}

Bytes DriverMemory::reserve(Bytes bytes) {
  const Bytes size = round_up(bytes, kPage);
  for (std::size_t i = 0; i < holes_.size(); ++i) {
    if (holes_[i].size < size) continue;
    const Bytes address = holes_[i].begin;
    holes_[i].begin += size;
    holes_[i].size -= size;
    if (holes_[i].size == 0) holes_.erase(holes_.begin() + static_cast<std::ptrdiff_t>(i));
    return address;
  }
  if (!holes_.empty() && holes_.back().begin + holes_.back().size == end_) {  // a hole at the end is open to the rest
    end_ = holes_.back().begin;
    holes_.pop_back();
  }
  const Bytes address = end_;
  end_ += size;
  return address;
}

Bytes DriverMemory::allocate(Bytes bytes) {
  if (!charge(round_up(bytes, kPage))) return kNoAddress;
  return reserve(bytes);
}

void DriverMemory::release(Bytes address, Bytes bytes) {
  const Bytes size = round_up(bytes, kPage);
  discharge(size);
  auto next = std::lower_bound(holes_.begin(), holes_.end(), address,
                               [](const Hole& hole, Bytes begin) { return hole.begin < begin; });
  const bool joins_next = next != holes_.end() && address + size == next->begin;
  if (next != holes_.begin()) {
    auto before = std::prev(next);
    if (before->begin + before->size == address) {
      before->size += size + (joins_next ? next->size : 0);
      if (joins_next) holes_.erase(next);
      return;
    }
  }
  if (joins_next) {
    next->begin = address;
    next->size += size;
    return;
  }
  holes_.insert(next, Hole{address, size});
}

}  // namespace foreshard
