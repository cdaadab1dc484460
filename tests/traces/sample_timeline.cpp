#include "tests/traces/sample_timeline.h"

#include "core/plan.h"

namespace foreshard {

Timeline sample_timeline() {
  Timeline t;
  t.names = {
      "forward layers.0", "all_gather layers.1", "quote \" back\\slash \n line", "iteration 1", "launch", "world"};
  t.units = {"", "layers.0", "layers.1"};
  // Out of the order of rows on purpose: streams stand in order of creation.
  t.lanes = {{0, "D", 0}, {0, "host", 0}, {0, "U", -1}, {1, "G", 0}};
  const auto span = [](int lane, SpanKind kind, SimTime start, SimDuration duration, int name, int instruction,
                       int unit, Phase phase, Bytes bytes) {
    Span s;
    s.lane = LaneId(lane), s.kind = kind, s.start = start, s.duration = duration, s.name = NameId(name);
    s.instruction = InstructionId(instruction), s.unit = unit, s.phase = static_cast<int>(phase), s.bytes = bytes;
    return s;
  };
  t.spans = {span(0, SpanKind::Compute, 5'001, 40'000, 0, 7, 1, Phase::Forward, 0),
             span(0, SpanKind::Compute, 60'000, 30'123, 2, 9, 2, Phase::Backward, 0),
             span(1, SpanKind::HostIssue, 0, 1'250, 4, 7, 1, Phase::Forward, 0),
             span(1, SpanKind::HostWait, 1'250, 50'000, -1, 8, -1, Phase::None, 0),
             span(2, SpanKind::AllGather, 10'000, 60'000, 1, 8, 2, Phase::PreForward, 3'000'000'001),
             span(3, SpanKind::ReduceScatter, -500, 700, -1, -1, -1, Phase::None, 77)};
  t.spans[0].op = 3;
  t.spans[4].communicator = NameId(5);
  t.flows = {{SpanId(2), SpanId(0)}};
  t.counters = {{0, "allocated", "bytes"}, {0, "category:activations", "bytes"}};
  t.samples = {{CounterId(0), 0, 17'179'869'184}, {CounterId(0), 999, 512}, {CounterId(1), 5, 0}};
  t.marks = {{60'000, 0, NameId(3)}};
  t.provenance = {"simulated", "00ff", "foreshard 0.1.0", "h100-sxm-80", "simulated", 2};
  return t;
}

}  // namespace foreshard
