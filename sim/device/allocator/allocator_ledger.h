// What one caching allocator counts, and the log of all it does when one is wanted. Everything that moves bytes says so
// here. Bytes; times of the host.
#pragma once

#include <algorithm>
#include <vector>

#include "core/memory_log.h"
#include "core/units.h"
#include "sim/device/allocator/allocator_stats.h"
#include "sim/device/device_clock.h"

namespace foreshard {

/// The most that there ever was, whenever peaks were reset.
struct MemoryPeaks {
  Bytes allocated = 0, active = 0, reserved = 0;
};

class AllocatorLedger {
 public:
  AllocatorLedger(const DeviceClock& clock, int streams)
      : clock_(clock), reserved_by_stream_(static_cast<std::size_t>(streams), 0) {}

  AllocatorStats stats;  // whoever moves bytes counts them

  void reset_peaks() {
    highest_ = highest();
    stats.reset_peaks();
  }
  MemoryPeaks highest() const {
    return {std::max(highest_.allocated, stats.allocated.peak), std::max(highest_.active, stats.active.peak),
            std::max(highest_.reserved, stats.reserved.peak)};
  }
  Bytes reserved_of(int stream) const { return reserved_by_stream_[static_cast<std::size_t>(stream)]; }
  /// Bytes that a stream's pools took from the driver, or (negative) gave back.
  void reserve(int stream, Bytes bytes) {
    if (bytes >= 0)
      stats.reserved.add(bytes);
    else
      stats.reserved.remove(-bytes);
    reserved_by_stream_[static_cast<std::size_t>(stream)] += bytes;
  }
  void change_inactive(Bytes by) {
    if (by >= 0)
      stats.inactive_split.add(by);
    else
      stats.inactive_split.remove(-by);
  }

  /// From now on all that happens is written down; nullptr ends it. `origin` is whose the next calls are.
  void log_to(MemoryLog* log) { log_ = log; }
  void set_origin(std::int32_t origin) { origin_ = origin; }
  const MemoryLog* log() const { return log_; }
  void note(MemoryAction action, Bytes address, Bytes bytes, int stream) {
    if (log_ != nullptr) write(action, address, bytes, stream);
  }

 private:
  [[gnu::noinline]] void write(MemoryAction action, Bytes address, Bytes bytes, int stream) {
    log_->events.push_back({action, stream, origin_, address, bytes, clock_.host()});
  }

  const DeviceClock& clock_;
  MemoryPeaks highest_;
  std::vector<Bytes> reserved_by_stream_;
  MemoryLog* log_ = nullptr;
  std::int32_t origin_ = -1;
};

}  // namespace foreshard
