// What ran, kept while a plan is played: spans (only when a timeline is asked for), idle gaps of the compute stream and
// the collectives, from which exposure is worked out. Times in nanoseconds of the device clock.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan.h"
#include "core/timeline.h"
#include "core/units.h"

namespace foreshard {

struct ActivitySpan {
  SimTime start = 0, end = 0;
  Bytes bytes = 0;
  std::int32_t instruction = -1;  // position over all iterations played
  std::int32_t op = -1;           // index in Model::ops
  std::int32_t name = -1;         // >= 0: LoweredProgram::op_names; -1: the instruction's own name
  std::int32_t unit = -1;
  std::int32_t communicator = -1;  // of a collective of the program; the others: the instruction's
  Stream stream = Stream::D;
  SpanKind kind = SpanKind::Other;
  Phase phase = Phase::None;
  bool first_of_issue = false;  // a flow leads here from the host's span of the instruction
};

/// Time in which the compute stream stood idle before something ran on it.
struct ComputeGap {
  SimTime begin = 0, end = 0;
  bool host_late = false;     // the host had not issued the work before `end`: nothing else was waited for
  Phase phase = Phase::None;  // of the work that ended it
};

struct CollectiveRun {
  SimTime start = 0, end = 0;
  Bytes bytes = 0;
  InstructionKind kind = InstructionKind::AllGather;
  Phase phase = Phase::None;
  std::int32_t instruction = -1;
  bool on_compute = false;       // ran on the compute stream itself
  bool after_host_wait = false;  // the host had been blocked right before it was issued (limiter)
  double at_half = 0;  // times as long where the network between nodes gives half; 0: inside a node, or measured
};

struct Activity {
  bool keep_spans = false;
  std::vector<ActivitySpan> spans;  // in issue order: by start within one stream
  std::vector<ComputeGap> gaps;
  std::vector<CollectiveRun> collectives;
  SimDuration compute_busy = 0;  // kernels on D
  std::int64_t events = 0;
};

}  // namespace foreshard
