// A step's time, each nanosecond of it given to one use: what computes, which communication stands alone and why, and
// what the device waited for while nothing ran. The uses add up to the step, so that two steps differ by the sum of the
// differences of their uses.
//
// A step lasts from its first work to that of the next one, the last step to its end. What computes counts first, then
// collectives (the one that ended last before computing went on), then copies; what is left is idle. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "core/timeline.h"
#include "traces/analysis/collective_meetings.h"
#include "traces/analysis/host_threads.h"
#include "traces/timeline/intervals.h"

namespace foreshard {

enum class TimeUse : std::uint8_t {
  Compute,
  // A collective runs, and nothing computes.
  FirstGather,    // nothing has been computed in the step yet
  Straggler,      // another rank was not there yet
  LateIssue,      // the host issued it when computing had already stopped
  Limiter,        // ... because FSDP's limiter held the host
  NotPrefetched,  // it queued behind a reduction that was issued before it, and its own unit waited for it
  ComputeStream,  // it runs on the stream that computes
  Tail,           // no backward follows
  Bandwidth,      // it was under way in time and takes longer than what it could hide behind
  Copies,         // between memories, alone
  // Nothing runs.
  Data,
  Synchronise,  // the host waited for the device, and then the device for the host, or for a collective it issued
  Allocator,
  HeldBack,   // the host stood in FSDP's limiter
  Host,       // the next work was not launched yet
  KernelGap,  // launched, and came within 30 us
  Other,      // launched, and held back by an event or the device
};
inline constexpr std::size_t kTimeUses = static_cast<std::size_t>(TimeUse::Other) + 1;
std::string_view time_use_name(TimeUse use);  // "compute", "first_gather", ...
bool is_exposed_comm(TimeUse use);
bool is_idle(TimeUse use);

struct UseStretch {
  Interval time;
  TimeUse use = TimeUse::Other;
  SpanId span;  // what ran; of idle time what came next; invalid = nothing came
  SpanId host;  // of idle time: what the thread did, or the call that came late
};

struct StepAccount {
  std::int32_t rank = 0, iteration = 0;
  Interval time;
  std::vector<UseStretch> stretches;  // in order of time, without holes
  std::array<SimDuration, kTimeUses> sums{};
  SimDuration length() const { return time.end - time.begin; }
  SimDuration of(TimeUse use) const { return sums[static_cast<std::size_t>(use)]; }
};

/// Answers for one rank; the timeline and the meetings outlive it.
class StepAccountant {
 public:
  StepAccountant(const Timeline& timeline, std::int32_t rank, const std::vector<CollectiveMeeting>& meetings);
  ~StepAccountant();
  StepAccountant(const StepAccountant&) = delete;
  StepAccountant& operator=(const StepAccountant&) = delete;

  std::size_t steps() const;
  std::size_t steady() const;  // traces/timeline/iterations.h. REQUIRES steps() > 0
  Interval window(std::size_t step) const;
  StepAccount account(std::size_t step) const;

  const HostThreads& threads() const;
  SpanId call_of(SpanId work) const;             // the host's call; invalid where nothing says it
  const std::vector<SpanId>& work() const;       // on devices, by start
  bool was_prefetched(SpanId collective) const;  // other units' computing was issued between it and its own unit's
  /// Work on devices that begins in the step, by start.
  std::vector<SpanId> work_in(std::size_t step) const;

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace foreshard
