// MemoryLedger: bytes by pool and category, counted twice: as the plan decides and as the streams do it.
//
// `allocated` is the plan's count: buffers change when the issuer says so, operators' tensors when their work runs,
// which on another thread may be sooner or later. So each change carries its place in the plan, and settle() walks them
// in the plan's order: peaks are the same in every run. Any thread; a report is a snapshot.
#pragma once

#include <array>
#include <limits>
#include <mutex>
#include <vector>

#include "exec/backend/backend.h"

namespace foreshard::exec {

/// A position in the order of the plan's instructions over the whole run.
struct PlanPlace {
  std::int32_t step = 0;
  std::int32_t instruction = -1;
  auto operator<=>(const PlanPlace&) const = default;
};

struct MemoryChange {
  PlanPlace place;
  MemoryCategory category = MemoryCategory::Temporaries;
  StreamIndex pool;
  Bytes change = 0;
  bool operator==(const MemoryChange&) const = default;
};

class MemoryLedger {
 public:
  MemoryLedger();

  /// `host_memory`: its pool is no device's, as offloaded parameters lie in. It is counted by category alone: in no
  /// total and in no change that settle() tells.
  void add_stream(bool host_memory = false);
  /// By the issuer.
  void allocated(StreamIndex pool, MemoryCategory category, Bytes change, PlanPlace place);
  void resident(StreamIndex pool, MemoryCategory category, Bytes change);
  /// Operators' tensors, in both counts. On a stream's own thread `runs_on` is that stream and `place` its work's;
  /// elsewhere invalid: it counts behind everything.
  void operators(StreamIndex pool, MemoryCategory category, Bytes change, StreamIndex runs_on, PlanPlace place);

  /// The changes since the last call, in the plan's order; within one instruction the issuer's first. Peaks are up to
  /// date afterwards. REQUIRES that no work runs.
  std::vector<MemoryChange> settle();
  void reset_peaks();
  MemoryReport report() const;

 private:
  MemoryCount& count(StreamIndex pool, MemoryCategory category);
  bool on_device(StreamIndex pool) const { return !host_memory_[pool.index()]; }

  mutable std::mutex mutex_;
  MemoryReport report_;
  /// Each in the plan's order: the issuer's, each stream's; the last one's come behind all.
  std::vector<std::vector<MemoryChange>> logs_;
  // Allocated, as far as settled: [stream][category].
  std::vector<CategoryCounts> settled_;
  std::vector<bool> host_memory_;  // by pool
  CategoryCounts settled_by_category_{};
  Bytes settled_total_ = 0;
};

}  // namespace foreshard::exec
