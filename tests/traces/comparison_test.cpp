// traces/analysis/comparison.h: a timeline laid beside itself, beside a shifted, a scaled and a measured one.
#include "traces/analysis/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "core/instruction_spans.h"
#include "core/plan.h"
#include "traces/analysis/step_spread.h"
#include "traces/timeline/exposed_comm.h"
#include "traces/timeline/merged_timeline.h"

namespace foreshard {
namespace {

/// A step in letters, 100 ns a letter, of iterations that repeat every 4000 ns and have 10 instructions each:
///
///   host  |i0|i1|i2|  wait of i3  |i4|i5|
///   A     .[==== 1: gather a ====].[=5: gather b=]
///   D     ........................[== 2: forward a ==]..[= 4: backward a =]
class Sample {
 public:
  std::int32_t iterations = 2;
  std::int32_t rank = 0;
  double scale = 1.0;     // of compute spans
  SimDuration shift = 0;  // of everything
  bool kernels = false;   // compute shows as two kernels with other names
  std::string source = "simulated";
  SimDuration gather = 1000;

  Timeline make() const {
    Timeline t;
    t.lanes = {{rank, "host", 0}, {rank, "D", 0}, {rank, "A", -1}};
    t.units = {"", "a", "b"};
    t.names = {"all_gather", "a", "first kernel", "second kernel", "issue"};
    t.counters = {{rank, "allocated", "bytes"}, {rank, "category:activations", "bytes"}};
    t.provenance.source = source;
    t.provenance.plan_digest = "00ff";
    for (std::int32_t k = 0; k < iterations; ++k) add_iteration(t, k);
    std::stable_sort(t.spans.begin(), t.spans.end(), [](const Span& x, const Span& y) { return x.lane < y.lane; });
    return t;
  }

 private:
  void add_iteration(Timeline& t, std::int32_t k) const {
    const SimTime base = 4000 * k + shift;
    const auto add = [&](int lane, SpanKind kind, SimTime start, SimDuration duration, int name, int id, int unit,
                         Phase phase) {
      Span s;
      s.lane = LaneId(lane), s.kind = kind, s.start = base + start, s.duration = duration, s.name = NameId(name);
      s.instruction = InstructionId(10 * k + id), s.unit = unit, s.phase = static_cast<std::int32_t>(phase);
      t.spans.push_back(s);
    };
    for (int i : {0, 1, 2}) add(0, SpanKind::HostIssue, 50 * i, 50, 4, i, 1, Phase::Forward);
    add(0, SpanKind::HostWait, 150, 500, 4, 3, -1, Phase::None);
    for (int i : {4, 5}) add(0, SpanKind::HostIssue, 650 + 50 * (i - 4), 50, 4, i, 1, Phase::Backward);
    add(2, SpanKind::AllGather, 100, gather, 0, 1, 1, Phase::PreForward);
    add(2, SpanKind::AllGather, 100 + gather, 600, 0, 5, 2, Phase::PreBackward);
    const auto compute = [&](SimTime start, SimDuration duration, int id, Phase phase) {
      const auto scaled = static_cast<SimDuration>(static_cast<double>(duration) * scale);
      if (!kernels) return add(1, SpanKind::Compute, start, scaled, 1, id, 1, phase);
      add(1, SpanKind::Compute, start, scaled / 2, 2, id, 1, phase);
      add(1, SpanKind::Compute, start + scaled / 2, scaled - scaled / 2, 3, id, 1, phase);
    };
    compute(100 + gather, 400, 2, Phase::Forward);
    compute(700 + gather, 300, 4, Phase::Backward);
    const auto name = [&](const std::string& text) {
      t.names.push_back(text);
      return NameId(t.names.size() - 1);
    };
    t.marks.push_back({base, rank, name(iteration_mark(k))});
    t.marks.push_back({base, rank, name(issue_mark(k, InstructionId(10 * k)))});
    auto at = t.samples.begin();
    for (; at != t.samples.end() && at->counter == CounterId(0);) ++at;
    at = t.samples.insert(at, {CounterId(0), base + 60, 1000 + 100 * k}) + 1;
    t.samples.insert(at, {CounterId(0), base + 700, 500});
    t.samples.push_back({CounterId(1), base + 60, 300});
    t.samples.push_back({CounterId(1), base + 700, 0});
  }
};

Comparison must_compare(const Timeline& a, const Timeline& b, const CompareOptions& options = {}) {
  auto result = compare_timelines(a, b, options);
  if (!result) throw std::runtime_error(to_text(result.error()));
  return *result;
}

TEST(CompareTimelines, ARecordingsStepsVary) {
  Sample sample;
  const Timeline predicted = sample.make();
  sample.source = "recorded";
  sample.iterations = 6;
  Timeline recorded = sample.make();
  for (Span& span : recorded.spans)
    if (span.kind == SpanKind::Compute) span.duration += 10 * (span.instruction.value / 10);  // of the k-th: 2 x 10 k
  const auto compared = compare_timelines(predicted, recorded);
  ASSERT_TRUE(compared);
  EXPECT_FALSE(compared->spread_a) << "a prediction's steps are equal";
  ASSERT_TRUE(compared->spread_b);
  EXPECT_EQ(compared->spread_b->iterations, 5) << "the first still warms up";
  EXPECT_EQ(compared->spread_b->compute, (Spread{720, 760, 800}));
  EXPECT_EQ(compared->spread_b->comm, (Spread{1600, 1600, 1600}));
  EXPECT_EQ(spread_of_steps(recorded, {7}), std::nullopt) << "no such rank";
  sample.iterations = 3;
  EXPECT_EQ(spread_of_steps(sample.make(), {0}), std::nullopt) << "two that repeat are none";
}

TEST(StepSpread, CollectivesLieAboutTheMeanOfTheirKindAndSize) {
  Sample sample;
  sample.source = "recorded";
  sample.iterations = 6;
  Timeline recorded = sample.make();
  std::map<std::pair<SpanKind, Bytes>, int> seen;
  for (Span& span : recorded.spans) {
    if (!is_collective(span.kind)) continue;
    const int nth = seen[{span.kind, span.bytes}]++;
    span.duration = (nth % 2 == 0 ? 500 : 1500) * (span.kind == SpanKind::AllGather ? 1 : 10);
  }
  EXPECT_EQ(spread_of_collectives(recorded, 0, 2), (std::vector<double>{0.5, 1.5})) << "whatever kind";
  EXPECT_EQ(spread_of_collectives(recorded, 0, 1000), std::vector<double>{}) << "too few for a part";
  EXPECT_EQ(spread_of_collectives(recorded, 6, 2), std::vector<double>{}) << "no iteration is left";
  ASSERT_TRUE(spread_of_steps(recorded, {0}, 3));
  EXPECT_EQ(spread_of_steps(recorded, {0}, 3)->iterations, 3);
}

TEST(CompareTimelines, WaitingIsNoWork) {
  Sample sample;
  const Timeline a = sample.make();
  Timeline b = a;
  const auto host =
      std::find_if(b.spans.begin(), b.spans.end(), [](const Span& s) { return s.kind == SpanKind::HostIssue; });
  ASSERT_NE(host, b.spans.end());
  Span wait = *host;
  wait.kind = SpanKind::HostWait;
  wait.start += wait.duration;
  wait.duration = 100;
  b.spans.push_back(wait);
  for (const StreamPair& stream : must_compare(a, b).by_stream) EXPECT_EQ(stream.busy.difference(), 0) << stream.stream;
}

TEST(SignedPercent, HasNoNegativeNothing) {
  EXPECT_EQ(signed_percent(0.0421), "+4.2 %");
  EXPECT_EQ(signed_percent(-0.0031), "-0.3 %");
  EXPECT_EQ(signed_percent(-0.0004), "+0.0 %");
}

TEST(Comparison, ATimelineIsEqualToItself) {
  const Timeline t = Sample().make();
  const Comparison c = must_compare(t, t);
  EXPECT_EQ(c.iteration_a, 1);
  EXPECT_EQ(c.joined, 10);  // 6 of the host, 4 of the streams
  EXPECT_EQ(c.only_a + c.only_b, 0);
  EXPECT_EQ(c.step.a, 2000);
  EXPECT_EQ(c.step.error(), 0);
  EXPECT_EQ(c.exposed_comm_points(), 0);
  EXPECT_EQ(c.peak_memory, (Pair{1100, 1100}));
  for (const InstructionPair& i : c.by_instruction) {
    EXPECT_EQ(i.duration.difference(), 0);
    EXPECT_EQ(i.start.difference(), 0);
  }
}

TEST(Comparison, ThePeakOfSeveralSamplesAtOneTimeIsTheHighest) {
  Timeline t = Sample().make();
  const auto last = std::find_if(t.samples.begin(), t.samples.end(),
                                 [](const CounterSample& s) { return s.counter == CounterId(0) && s.value == 1100; });
  t.samples.insert(last, {CounterId(0), last->time, 7000});
  EXPECT_EQ(must_compare(t, t).peak_memory, (Pair{7000, 7000}));
}

/// Waits while nothing computes, and memory of the driver that an iteration takes and others do not, the last of it
/// behind all work.
TEST(Comparison, CallsOfTheDriverBesideThePlanAreNoDifference) {
  Sample sample;
  sample.source = "executed";
  sample.iterations = 4;
  const Timeline without = sample.make();
  Timeline with = without;
  const auto add = [&](int lane, SpanKind kind, SimTime start, SimDuration duration) {
    Span span;
    span.lane = LaneId(lane), span.kind = kind, span.start = start, span.duration = duration;
    span.unit = 1, span.phase = static_cast<std::int32_t>(Phase::Backward);
    with.spans.push_back(span);
  };
  for (const std::int32_t k : {0, 1, 2, 3}) add(1, SpanKind::Wait, 4000 * k + 100, 700);
  for (const SimTime start : {4100, 4200, 12'100, 12'200, 14'500}) add(0, SpanKind::Annotation, start, 900);
  std::stable_sort(with.spans.begin(), with.spans.end(), [](const Span& x, const Span& y) {
    return std::pair(x.lane, x.start) < std::pair(y.lane, y.start);
  });
  const Comparison c = must_compare(with, without);
  EXPECT_EQ(c.iteration_a, c.iteration_b);
  EXPECT_EQ(c.only_a + c.only_b, 0);
  for (const Pair& pair : {c.step, c.compute, c.comm, c.exposed}) EXPECT_EQ(pair.a, pair.b);
  for (const UnitPair& unit : c.by_unit) EXPECT_EQ(unit.busy().difference(), 0) << unit.unit;
  for (const CausePair& cause : c.by_cause) EXPECT_EQ(cause.time.difference(), 0) << cause.cause;
}

TEST(Comparison, AShiftOfTheWholeTimelineIsNoDifference) {
  Sample later;
  later.shift = 123'456;
  const Comparison c = must_compare(Sample().make(), later.make());
  EXPECT_EQ(c.joined, 10);
  EXPECT_EQ(c.step.error(), 0);
  for (const InstructionPair& i : c.by_instruction) EXPECT_EQ(i.start.difference(), 0);
}

TEST(Comparison, ASlowerGatherIsFoundWithItsUnitItsCauseAndWhatItPushesBack) {
  Sample slow;
  slow.gather = 1500;
  const Comparison c = must_compare(Sample().make(), slow.make());
  EXPECT_DOUBLE_EQ(c.step.error(), -0.2);  // 2000 against 2500
  EXPECT_EQ(c.by_instruction.front().instruction, InstructionId(11));
  EXPECT_EQ(c.by_instruction.front().duration, (Pair{1000, 1500}));
  EXPECT_EQ(c.by_unit.front().unit, "a");
  EXPECT_EQ(c.by_unit.front().comm, (Pair{1000, 1500}));
  EXPECT_EQ(c.by_cause.front().cause, "first_gather");
  EXPECT_EQ(c.by_cause.front().time.difference(), -500);
  for (const InstructionPair& i : c.by_instruction) {
    if (i.instruction == InstructionId(12)) {
      EXPECT_EQ(i.start, (Pair{1100, 1600}));
    }
  }
  // Gather a is exposed for all its time, b where compute is not: 1000 + 200 of 2000, 1500 + 200 of 2500.
  EXPECT_NEAR(c.exposed_comm_points(), 60.0 - 68.0, 1e-9);
}

TEST(Comparison, AScaleOfComputeIsFoundInEveryUnitAndInstruction) {
  for (const double scale : {0.5, 0.9, 1.3}) {
    Sample scaled;
    scaled.scale = scale;
    const Comparison c = must_compare(scaled.make(), Sample().make());
    EXPECT_NEAR(c.compute.error(), scale - 1, 1e-9);
    for (const InstructionPair& i : c.by_instruction) {
      EXPECT_NEAR(i.duration.error(), i.kind == SpanKind::Compute ? scale - 1 : 0, 1e-9);
    }
  }
}

TEST(Comparison, KernelsOfAPredictionJoinTheSegmentOfAMeasurement) {
  Sample kernels;
  kernels.kernels = true;
  Sample executed;
  executed.source = "executed";
  const Comparison c = must_compare(kernels.make(), executed.make());
  EXPECT_EQ(c.joined, 10);
  EXPECT_EQ(c.only_a + c.only_b, 0);
  EXPECT_EQ(c.compute.error(), 0);
}

TEST(Comparison, OfAMeasurementTheMedianRepeatStandsForTheRun) {
  Sample executed;
  executed.source = "executed";
  executed.iterations = 6;
  Timeline t = executed.make();
  for (Span& span : t.spans) {  // the last one is disturbed
    if (span.instruction == InstructionId(54)) span.duration += 100'000;
  }
  const Comparison c = must_compare(Sample().make(), t);
  EXPECT_EQ(c.step.error(), 0);
  EXPECT_NE(c.iteration_b, 5);
  CompareOptions options;
  options.iteration = 0;
  EXPECT_EQ(must_compare(Sample().make(), t, options).peak_memory, (Pair{1000, 1000}));
}

TEST(Comparison, WhatOnlyOneOfThemHasIsListed) {
  Timeline t = Sample().make();
  std::erase_if(t.spans, [](const Span& s) { return s.instruction == InstructionId(15) && s.lane == LaneId(2); });
  t.flows.clear();
  const Comparison c = must_compare(Sample().make(), t);
  EXPECT_EQ(c.only_a, 1);
  EXPECT_EQ(c.only_b, 0);
  ASSERT_EQ(c.missing.size(), 1u);
  EXPECT_EQ(c.missing[0].duration, (Pair{600, 0}));
  EXPECT_EQ(c.missing[0].unit, "b");
}

TEST(Comparison, ForeignSpansJoinByWhatTheyAreAndWhichOne) {
  Timeline a = Sample().make(), b = Sample().make();
  for (Timeline* t : {&a, &b}) {
    for (Span& span : t->spans) span.instruction = InstructionId();
    t->marks.clear();
  }
  for (Span& span : b.spans) span.duration += span.kind == SpanKind::Compute ? 7 : 0;
  const Comparison c = must_compare(a, b);
  EXPECT_EQ(c.joined, 8);  // two iterations that nobody marks
  EXPECT_EQ(c.only_a + c.only_b, 0);
  for (const InstructionPair& i : c.by_instruction) {
    EXPECT_EQ(i.duration.difference(), i.kind == SpanKind::Compute ? -7 : 0);
  }
}

TEST(Comparison, RanksOfBothAreComparedAndTheirMeanIsTold) {
  Sample other;
  other.rank = 1;
  Sample slow = other;
  slow.gather = 1500;
  const Timeline both = merge_timelines({Sample().make(), other.make()});
  const Timeline measured = merge_timelines({Sample().make(), slow.make()});
  const Comparison c = must_compare(both, measured);
  EXPECT_EQ(c.ranks, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(c.joined, 20);
  EXPECT_EQ(c.step, (Pair{2000, 2250}));
  EXPECT_EQ(c.by_instruction.front().rank, 1);
  CompareOptions options;
  options.rank = 0;
  EXPECT_EQ(must_compare(both, measured, options).step.error(), 0);
  EXPECT_EQ(must_compare(Sample().make(), measured).ranks, (std::vector<std::int32_t>{0}));
}

TEST(Comparison, DifferentPlansAreRefusedUnlessForced) {
  Timeline other = Sample().make();
  other.provenance.plan_digest = "abcd";
  const auto refused = compare_timelines(Sample().make(), other);
  ASSERT_FALSE(refused);
  EXPECT_THAT(to_text(refused.error()), ::testing::AllOf(::testing::HasSubstr("00ff"), ::testing::HasSubstr("abcd"),
                                                         ::testing::HasSubstr("--force")));
  CompareOptions options;
  options.force = true;
  EXPECT_EQ(must_compare(Sample().make(), other, options).joined, 10);
}

TEST(Comparison, WhatCannotBeComparedIsAnError) {
  Sample other;
  other.rank = 3;
  EXPECT_FALSE(compare_timelines(Sample().make(), other.make()));
  CompareOptions options;
  options.iteration = 9;
  const auto missing = compare_timelines(Sample().make(), Sample().make(), options);
  ASSERT_FALSE(missing);
  EXPECT_THAT(to_text(missing.error()), ::testing::HasSubstr("0 to 1"));
  EXPECT_FALSE(compare_timelines(Timeline(), Timeline()));
}

/// Whatever a timeline is, it is equal to itself; and what is longer in B is never called shorter.
TEST(Comparison, RandomTimelinesAreEqualToThemselves) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    Timeline t = Sample().make();
    std::uniform_int_distribution<int> pick(0, static_cast<int>(t.spans.size()) - 1);
    for (int change = 0; change < 8; ++change) {
      Span& span = t.spans[static_cast<std::size_t>(pick(random))];
      span.start += pick(random) * 10 - 60;
      span.duration += pick(random);
      if (pick(random) == 0) span.instruction = InstructionId();
      if (pick(random) == 1) span.unit = -1;
      if (pick(random) == 2) span.name = NameId();
    }
    const Comparison c = must_compare(t, t);
    EXPECT_EQ(c.only_a + c.only_b, 0);
    EXPECT_EQ(c.step.error(), 0);
    EXPECT_EQ(c.exposed.difference(), 0);
    for (const UnitPair& unit : c.by_unit) EXPECT_EQ(unit.busy().difference(), 0);
  }
}

}  // namespace
}  // namespace foreshard
