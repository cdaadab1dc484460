// What decided how long a rank took: the chain of host work, launches and kernels that ends last, found backwards from
// the last work on a device.
//
// A kernel began when the last of these was done: the work before it on its stream, its launch, or (where it began
// later than both) work of another stream that it must have waited for. A launch came when its thread came to it. A
// thread came to it when its wait for the device was over (a call that waits, or a launch that found the queue full and
// came back when work ended), or when it got its turn from another thread: it had no slice while the other worked
// (backward's thread and Python's take turns). A thread that had no slice while nobody else worked ran what was not
// recorded. What nothing explains stays a gap.
#pragma once

#include <string_view>
#include <vector>

#include "core/timeline.h"

namespace foreshard {

enum class PathCause : std::uint8_t { Work, Host, Launch, Gap };
std::string_view path_cause_name(PathCause cause);  // "work", "host", "launch", "gap"

/// One stretch of the path; they follow each other without holes.
struct PathStep {
  PathCause cause = PathCause::Work;
  SpanId span;  // the work; host: the call that it led to, or the thread's last slice before it handed over; launch
                // and gap: the work that had to wait
  SimTime begin = 0, end = 0;
  bool operator==(const PathStep&) const = default;
};

/// Of the rank's spans inside [begin, end), in order of time. Empty if nothing ran on a device.
std::vector<PathStep> find_critical_path(const Timeline& timeline, std::int32_t rank, SimTime begin, SimTime end);

}  // namespace foreshard
