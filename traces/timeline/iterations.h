// Which spans of a timeline belong to which iteration: by the ids of instructions where the marks say where an
// iteration's begin (core/instruction_spans.h), else by time. A pure function.
#pragma once

#include <optional>
#include <vector>

#include "core/timeline.h"

namespace foreshard {

struct TimelineIteration {
  std::int32_t index = 0;
  SimTime begin = 0;          // the one before has ended
  SimTime issue = 0;          // the host begins to issue it
  SimTime end = 0;            // of its last span
  InstructionId first;        // instruction; invalid where marks do not say it
  std::vector<SpanId> spans;  // of the rank, in the timeline's order
};

/// Of one rank, in order. Without marks the whole timeline is one iteration. What lies before the first mark is left
/// out.
std::vector<TimelineIteration> iterations_of(const Timeline& timeline, std::int32_t rank);

bool is_predicted(const Timeline& timeline);

/// Of a recording those at its end that do the same, but for the first of them, which still warms up; latest first.
std::vector<const TimelineIteration*> repeated_iterations(const Timeline& timeline,
                                                          const std::vector<TimelineIteration>& iterations);

/// The iteration that stands for the run: of a prediction the last one; of a measurement that one of the repeated ones
/// at the end whose length is the median. REQUIRES that there is one.
const TimelineIteration& steady_iteration(const Timeline& timeline, const std::vector<TimelineIteration>& iterations);

/// Ranks that have lanes, ascending.
std::vector<std::int32_t> ranks_of(const Timeline& timeline);

}  // namespace foreshard
