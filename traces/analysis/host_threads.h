// What the threads of a rank did at any moment: their nested slices, and what such a moment means for a device that
// stands idle meanwhile.
//
// Built once for a rank in one pass; a question costs O(log n + depth). Keeps a reference to the timeline. May be asked
// from several threads. Times in nanoseconds.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "core/timeline.h"
#include "traces/timeline/intervals.h"

namespace foreshard {

enum class HostUse : std::uint8_t {
  Issue,        // operators, launches, Python: what a step is made of
  Data,         // waiting for a batch
  Synchronise,  // waiting for the device
  Allocator,    // asking the driver for memory, or giving it back
  Limiter,      // FSDP's limit on all-gathers
  Nothing,      // no slice: Python that was not recorded, or another thread's turn
};
std::string_view host_use_name(HostUse use);  // "issue", "data", "synchronise", ...

/// Of a slice's name alone: an iterator of batches, a driver's call for memory, the limiter's range; else Issue.
HostUse host_use_of_name(std::string_view name);

class HostThreads {
 public:
  HostThreads(const Timeline& timeline, std::int32_t rank);

  struct Doing {
    Interval time;
    HostUse use = HostUse::Nothing;
    SpanId span;  // the slice that says so; invalid for Nothing
  };
  /// What `lane` did in [begin, end), in order, without holes. Where it has no slice and another thread waits for data,
  /// memory or the device, that counts.
  std::vector<Doing> doing(LaneId lane, SimTime begin, SimTime end) const;

  /// The innermost slice of the thread at that moment; invalid if there is none.
  SpanId innermost(LaneId lane, SimTime time) const;
  SpanId parent(SpanId span) const;  // of a host's slice; invalid = outermost

  /// The operator that a call was made for: the outermost slice around it that is no named range, itself if none.
  SpanId operator_of(SpanId call) const;

 private:
  struct Thread {
    std::vector<SpanId> spans;          // by start
    std::vector<std::int32_t> parents;  // index in spans, -1 = none
  };
  std::int32_t index_at(const Thread& thread, SimTime time) const;
  Doing doing_at(const Thread& thread, SimTime time, SimTime end) const;
  HostUse use_of(const Span& span) const;
  const Span& at(SpanId id) const { return t_.spans[id.index()]; }

  const Timeline& t_;
  std::map<std::int32_t, Thread> threads_;  // by lane
  std::vector<HostUse> name_use_;
};

}  // namespace foreshard
