// Exposed communication in any timeline: when a collective runs while its rank's compute stream ("D") stands idle, and
// what made it so. The causes are those of a prediction (sim/play/exposure.h); here they are read off the spans alone,
// so that predictions, recordings and foreign traces are measured with one yardstick.
#pragma once

#include <string>
#include <vector>

#include "core/timeline.h"
#include "traces/timeline/iterations.h"

namespace foreshard {

struct CauseTime {
  std::string cause;  // first_gather, limiter, host, tail, compute_stream, bandwidth
  SpanKind kind = SpanKind::AllGather;
  SimDuration time = 0;
};

struct ExposedComm {
  SimDuration exposed = 0;        // each instant counts once
  SimDuration comm = 0;           // collectives, alone
  SimDuration busy = 0;           // the compute stream
  std::vector<CauseTime> causes;  // largest first
};

bool is_collective(SpanKind kind);

/// The host is held back so that all-gathers do not run ahead: a plan's wait, or FSDP1's range around its own.
bool is_limiter_wait(const Timeline& timeline, const Span& span);

ExposedComm find_exposed_comm(const Timeline& timeline, const TimelineIteration& iteration);

}  // namespace foreshard
