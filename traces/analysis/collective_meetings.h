// The collectives of several ranks, joined: who came last, by how much, and what the others lost waiting.
//
// In a recording NCCL's kernel begins when its rank is there and ends when all are: its start is the arrival. Joined
// are the collectives of one kind on one communicator by their place in the iteration, where all ranks of a group have
// equally many; of groups with one name those ranks that leave together. REQUIRES one clock for all ranks
// (open_traces). Pure functions; times in nanoseconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/timeline.h"

namespace foreshard {

struct MeetingMember {
  std::int32_t rank = 0;
  SpanId span;
  bool operator==(const MeetingMember&) const = default;
};

struct CollectiveMeeting {
  SpanKind kind = SpanKind::AllGather;
  std::int32_t iteration = 0, index = 0;  // index: of this kind on this communicator in the iteration
  std::vector<MeetingMember> members;     // by arrival: the last one came last
  SimTime first = 0, last = 0;            // arrivals
  SimDuration lateness = 0;               // of the last one behind the median of all
  SimDuration waited = 0;                 // mean over the others
};

/// Those of two ranks or more, in order of their first arrival. Errors are none: what cannot be joined is left out.
std::vector<CollectiveMeeting> find_meetings(const Timeline& timeline);

/// One row a rank and kind: how often it came last, and what that cost.
struct StragglerRow {
  std::int32_t rank = 0;
  SpanKind kind = SpanKind::AllGather;
  std::int64_t last = 0, meetings = 0;  // meetings: all that it took part in
  SimDuration lateness = 0;             // summed over the meetings to which it came last
  SimDuration waited = 0;               // what the others waited for it, their mean, summed
};
std::vector<StragglerRow> straggler_table(const std::vector<CollectiveMeeting>& meetings);  // most waited for first

}  // namespace foreshard
