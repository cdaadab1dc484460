// The Timeline: what ran when, on which rank and stream. A plain value; simulator and executor both return one.
//
// Times are integer nanoseconds from the start of the recording. A span carries the id of the plan instruction that it
// stems from, so that predicted and measured timelines join on ids. Texts are interned in `names`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/units.h"

namespace foreshard {

using LaneId = Id<struct LaneTag>;
using SpanId = Id<struct SpanTag>;
using CounterId = Id<struct CounterTag>;

/// What a span means: decides its colour in viewers and its place in analyses.
enum class SpanKind : std::uint8_t {
  HostIssue,
  HostWait,
  Compute,
  AllGather,
  ReduceScatter,
  AllReduce,
  Broadcast,
  Copy,
  Cast,
  Memset,
  Optimizer,
  Wait,
  Other,
  SendRecv,    // point to point, all-to-all
  Annotation,  // a range that somebody named, around work: no work itself
};
inline constexpr SpanKind kLastSpanKind = SpanKind::Annotation;
std::string_view span_kind_name(SpanKind kind);  // "compute", "all_gather", ...

struct Lane {
  std::int32_t rank = 0;
  std::string stream;  // "host", "D", "U", ...
  std::int32_t priority = 0;
  std::string label = {};  // what the recording calls it: "stream 7", "thread 785244"; often empty
  bool operator==(const Lane&) const = default;
};

struct Span {
  LaneId lane;
  SpanKind kind = SpanKind::Other;
  SimTime start = 0;
  SimDuration duration = 0;
  NameId name;                // Timeline::names
  InstructionId instruction;  // invalid for foreign traces
  std::int32_t op = -1;       // index in Model::ops
  std::int32_t unit = -1;     // index in the plan's units; see Timeline::units
  std::int32_t phase = 0;     // Phase of the plan
  NameId communicator = {};   // Timeline::names: of a collective, where it is known
  Bytes bytes = 0;
  bool operator==(const Span&) const = default;
};

/// From the host's issue to the work on the stream.
struct Flow {
  SpanId from, to;
  bool operator==(const Flow&) const = default;
};

struct Counter {
  std::int32_t rank = 0;
  std::string name;  // "allocated", "reserved", "category:activations", ...
  std::string unit;  // "bytes"
  bool operator==(const Counter&) const = default;
};

struct CounterSample {
  CounterId counter;
  SimTime time = 0;
  std::int64_t value = 0;
  bool operator==(const CounterSample&) const = default;
};

/// A named moment: start of an iteration, a phase, an out-of-memory.
struct TimeMark {
  SimTime time = 0;
  std::int32_t rank = 0;
  NameId name;
  bool operator==(const TimeMark&) const = default;
};

struct Provenance {
  std::string source;       // "simulated", "executed", "kineto"
  std::string plan_digest;  // hex; empty if unknown
  std::string software;
  std::string hardware;  // profile id or card
  std::string clock;     // "simulated", "steady_clock", ...
  std::int64_t dropped_records = 0;
  bool operator==(const Provenance&) const = default;
};

struct Timeline {
  std::vector<Lane> lanes;
  std::vector<Span> spans;  // by lane, then start
  std::vector<Flow> flows;
  std::vector<Counter> counters;
  std::vector<CounterSample> samples;  // by counter, then time
  std::vector<TimeMark> marks;
  std::vector<std::string> names;
  std::vector<std::string> units;  // unit names by index
  Provenance provenance;
  bool operator==(const Timeline&) const = default;

  std::string_view name_of(NameId id) const {
    return id.valid() ? std::string_view(names[id.index()]) : std::string_view();
  }
};

}  // namespace foreshard
