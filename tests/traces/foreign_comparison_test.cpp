// A prediction, whose spans know their instructions, against a recording whose spans do not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan.h"
#include "traces/analysis/comparison.h"

namespace foreshard {
namespace {

Span work(int lane, SpanKind kind, SimTime start, SimDuration duration, int unit, Phase phase, int instruction) {
  Span span;
  span.lane = LaneId(lane), span.kind = kind, span.start = start, span.duration = duration, span.unit = unit;
  span.phase = static_cast<std::int32_t>(phase), span.instruction = InstructionId(instruction);
  return span;
}

Timeline prediction() {
  Timeline t;
  t.provenance.source = "simulated";
  t.lanes = {{0, "D"}, {0, "U"}};
  t.units = {"", "layers.0"};
  t.spans = {work(0, SpanKind::Compute, 100, 300, 1, Phase::Forward, 4),
             work(1, SpanKind::AllGather, 0, 100, 1, Phase::PreForward, 2),
             work(1, SpanKind::AllGather, 100, 80, 1, Phase::PreForward, 3)};
  return t;
}

/// The same step, kernel by kernel; both collectives on a stream of another name; units in another order.
Timeline recording(bool with_units) {
  Timeline t;
  t.provenance.source = "kineto";
  t.lanes = {{0, "D"}, {0, "stream 24"}, {0, "host"}};
  if (with_units) t.units = {"layers.0", ""};
  const int unit = with_units ? 0 : -1;
  const auto phase = [&](Phase known) { return with_units ? known : Phase::None; };
  t.spans = {work(0, SpanKind::Compute, 110, 150, unit, phase(Phase::Forward), -1),
             work(0, SpanKind::Compute, 260, 170, unit, phase(Phase::Forward), -1),
             work(1, SpanKind::AllGather, 0, 110, unit, phase(Phase::PreForward), -1),
             work(1, SpanKind::AllGather, 110, 90, unit, phase(Phase::PreForward), -1),
             work(2, SpanKind::HostIssue, 0, 400, -1, Phase::None, -1),
             work(2, SpanKind::Annotation, 0, 400, -1, Phase::None, -1)};
  return t;
}

TEST(ForeignComparison, JoinsByKindUnitAndPhaseWhateverTheStream) {
  const auto c = compare_timelines(prediction(), recording(true));
  ASSERT_TRUE(c.has_value());
  EXPECT_EQ(c->joined, 3);
  EXPECT_EQ(c->only_a + c->only_b, 0);
  ASSERT_EQ(c->by_unit.size(), 1u);
  EXPECT_EQ(c->by_unit[0].unit, "layers.0");
  EXPECT_EQ(c->by_unit[0].compute, (Pair{300, 320})) << "two kernels are one segment";
  EXPECT_EQ(c->by_unit[0].comm, (Pair{180, 200}));
}

TEST(ForeignComparison, NumberedUnitsOfFsdp1AreThoseOfThePlanInOrderOfForward) {
  Timeline predicted = prediction();
  predicted.units = {"layers.0", ""};  // the root's forward begins first, wherever it stands in the list
  predicted.spans.insert(predicted.spans.begin(), work(0, SpanKind::Compute, 0, 50, 1, Phase::Forward, 1));
  for (std::size_t s = 1; s < predicted.spans.size(); ++s) predicted.spans[s].unit = 0, predicted.spans[s].start += 50;
  Timeline recorded = recording(true);
  recorded.units = {"fsdp 1 (Block_3)", "fsdp 0"};
  const auto c = compare_timelines(predicted, recorded);
  ASSERT_TRUE(c.has_value());
  EXPECT_EQ(c->joined, 3);
  for (const InstructionPair& pair : c->by_instruction) EXPECT_EQ(pair.unit, "layers.0");
}

TEST(ForeignComparison, WithoutUnitsTheKindAloneJoins) {
  const auto c = compare_timelines(prediction(), recording(false));
  ASSERT_TRUE(c.has_value());
  EXPECT_EQ(c->joined, 3);
  EXPECT_EQ(c->only_a + c->only_b, 0);
}

}  // namespace
}  // namespace foreshard
