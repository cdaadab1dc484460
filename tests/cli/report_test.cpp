#include "cli/reports/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cli/sample_simulation.h"

namespace foreshard::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string report(const SampleSimulation& s) { return simulation_report(s.view(), {false, true, 140}); }

TEST(Report, SaysThatItFitsHowLongAStepIsAndHowSure) {
  const std::string text = report(sample_simulation());
  EXPECT_THAT(text, HasSubstr("llama-3-8b, fsdp2 FULL_SHARD, 64 × h100-sxm-80"));
  EXPECT_THAT(text, HasSubstr("2 × 8,192 tokens a rank"));
  EXPECT_THAT(text, HasSubstr("yes: 62.4 GiB of 80.0 GiB (78.0 %), 17.6 GiB left"))
      << "reserved and what lies beside the allocator";
  EXPECT_THAT(text, HasSubstr("1.23 s          1.05 s … 1.42 s"));
  EXPECT_THAT(text, HasSubstr("849,700         738,400 … 998,600  13,277 a card"));
  EXPECT_THAT(text, HasSubstr("41.2 %          36.0 % … 48.0 %  with recomputation 54.9 %"));
  EXPECT_THAT(text, HasSubstr("exposed communication 34.0 ms (2.8 %)"));
}

TEST(Report, TheSharesOfAStepAddUp) {
  SampleSimulation s = sample_simulation();
  const auto sum = [&s] {
    const StepShares shares = step_shares(s.prediction);
    return shares.compute + shares.exposed + shares.idle;
  };
  IterationResult& step = s.prediction.iterations.back();
  EXPECT_EQ(sum(), step.step_time);
  step.compute = 1'200'000'000, step.idle = 34'000'000;  // all that is idle is exposed communication
  EXPECT_EQ(sum(), step.step_time);
  EXPECT_EQ(step_shares(s.prediction).idle, 0);
  EXPECT_THAT(report(s), HasSubstr("compute 1.20 s (97.2 %), exposed communication 34.0 ms (2.8 %), idle beside it"));
  step.exposed_comm += 10'000'000;  // an all-reduce on the compute stream, which is busy with it
  s.prediction.exposed.push_back({"compute_stream", "all_reduce", 10'000'000});
  EXPECT_EQ(sum(), step.step_time);
  EXPECT_EQ(step_shares(s.prediction).compute, 1'190'000'000);
  EXPECT_EQ(step_shares(s.prediction).idle, 0);
}

TEST(Report, NamesTheNumbersThatAreAssumed) {
  SampleSimulation s = sample_simulation();
  EXPECT_THAT(report(s), Not(HasSubstr("assumed")));
  s.profile.sources = {{"hbm_share", "as the others', assumed"}, {"sm_count", "data sheet"}};
  EXPECT_THAT(report(s),
              HasSubstr("assumed        1 of 2 numbers of it, by experience instead of a source: hbm_share"));
}

TEST(Report, AnArchivesOwnSizesAreToldWhateverTheJobsBatch) {
  SampleSimulation s = sample_simulation();
  s.model.values.push_back({.shape = {32, 3, 1024, 1024}, .dtype = DType::Float32});
  s.model.inputs = {ValueId(static_cast<std::int32_t>(s.model.values.size() - 1))};
  s.model.tokens_per_batch = 0;
  EXPECT_THAT(report(s), HasSubstr("input 32 × 3 × 1,024 × 1,024 a rank"));
  s.model.values.back() = {.shape = {8, 512}, .dtype = DType::Int64};
  s.model.tokens_per_batch = 8 * 512;
  EXPECT_THAT(report(s), HasSubstr("8 × 512 tokens a rank"));
}

TEST(Report, SaysWhatTheMemoryHoldsAtItsPeakAndWhereThatIs) {
  const std::string text = report(sample_simulation());
  EXPECT_THAT(text, HasSubstr("Memory at its peak (backward of model.layers.31, instruction 412)"));
  EXPECT_LT(text.find("activations"), text.find("full parameters")) << "the largest first";
  EXPECT_THAT(text, HasSubstr("activations             50.0 GiB  84.7 %"));
  EXPECT_THAT(text, HasSubstr("beside the allocator    1.40 GiB"));
}

TEST(Report, SaysWhichCommunicationIsExposedAndWhy) {
  const std::string text = report(sample_simulation());
  EXPECT_THAT(text, testing::ContainsRegex("all_gather +65 +15.0 GiB +103 ms +12.0 ms +first gather 12.0 ms"));
  EXPECT_THAT(text, testing::ContainsRegex("reduce_scatter +33 +15.0 GiB +90.0 ms +22.0 ms +tail 22.0 ms"));
}

TEST(Report, SaysThePlanItsTrapsAndWhatThePredictionRestsOn) {
  const std::string text = report(sample_simulation());
  EXPECT_THAT(text, HasSubstr("2 units, the largest the root (1.96 GiB gathered); 3 all-gathers"));
  EXPECT_THAT(text, HasSubstr("V1 hold"));
  EXPECT_THAT(text, HasSubstr("huge root unit (W10, R10)"));
  EXPECT_THAT(text, HasSubstr("→ give embedding and head a unit"));
  EXPECT_THAT(text, HasSubstr("h100-sxm-80, level published"));
  EXPECT_THAT(text, HasSubstr("aten.mystery.default"));
}

TEST(Report, DrawsTheSteadyStepOnly) {
  const std::string text = report(sample_simulation());
  EXPECT_THAT(text, HasSubstr("The steady step\n"));
  EXPECT_THAT(text, HasSubstr("0 ms")) << "the axis starts with the last iteration";
  EXPECT_THAT(text, testing::ContainsRegex("1000 *\n$"));
  EXPECT_THAT(text, Not(HasSubstr("2000")));
}

TEST(Report, ANameOfMemoryThatRanOutComesWithTheChangeThatWouldFit) {
  const SampleSimulation s = sample_out_of_memory();
  Simulation view = s.view();
  view.remedy = Remedy{"checkpoint every block", {"checkpointing.policy=block"}, 40 * kGiB, 1.5e9};
  const std::string text = simulation_report(view, {});
  EXPECT_THAT(text, HasSubstr("out of memory in iteration 0, backward of model.layers.31, at instruction 412"));
  EXPECT_THAT(text, HasSubstr("3.00 GiB asked for, 2.00 GiB free of 80.0 GiB"));
  EXPECT_THAT(text, HasSubstr("--set checkpointing.policy=block"));
  EXPECT_THAT(text, HasSubstr("then 40.0 GiB reserved, 1.50 s a step"));
  EXPECT_THAT(text, Not(HasSubstr("tokens/s"))) << "there is no speed of a run that ended";
}

TEST(Report, WithoutATimelineItNamesTheTrace) {
  SampleSimulation s = sample_simulation();
  s.prediction.timeline = {};
  EXPECT_THAT(report(s), HasSubstr("--trace writes it"));
}

TEST(Report, ManyUnitsAreAlsoDrawnFromNearBy) {
  SampleSimulation s = sample_simulation();
  EXPECT_THAT(report(s), Not(HasSubstr("From near by")));
  s.prediction.timeline.spans.pop_back();
  for (int unit = 0; unit < 9; ++unit) {
    Span span;
    span.lane = LaneId(0), span.kind = SpanKind::Compute, span.start = 1'000'000 * unit, span.duration = 900'000;
    span.unit = unit, span.phase = static_cast<std::int32_t>(Phase::Backward);
    s.prediction.timeline.spans.push_back(span);
    s.prediction.timeline.units.push_back("layers." + std::to_string(unit));
  }
  EXPECT_THAT(report(s), HasSubstr("From near by: the backward of layers.4 and its neighbours"));
  EXPECT_THAT(report(s), testing::ContainsRegex("0 ms +0.5 +1 +1.5 +2 +2.5")) << "three units of a millisecond";
}

TEST(Report, MemoryThatRanOutBeforeTheFirstIterationHasNoInstruction) {
  SampleSimulation s = sample_out_of_memory();
  s.prediction.oom->phase = s.prediction.memory.phase = "init";
  s.prediction.oom->instruction = s.prediction.memory.instruction = {};
  EXPECT_THAT(report(s), HasSubstr("before the first iteration"));
  EXPECT_THAT(report(s), Not(HasSubstr("instruction -1")));
}

TEST(Report, WithoutARemedyItSaysWhatWasTried) {
  const SampleSimulation s = sample_out_of_memory();
  Simulation view = s.view();
  view.tried = {"checkpoint every block", "128 ranks instead of 64"};
  const std::string text = simulation_report(view, {});
  EXPECT_THAT(text, HasSubstr("none of the changes tried"));
  EXPECT_THAT(text, HasSubstr("- 128 ranks instead of 64"));
}

TEST(Report, AModelWithoutOperatorsPretendsNoTimes) {
  SampleSimulation s = sample_simulation();
  s.model.ops.clear();
  EXPECT_THAT(report(s), HasSubstr("no operator program"));
}

TEST(Report, PlainIsAsciiAndColourIsOnlyForThoseWhoAsk) {
  ReportStyle plain;
  plain.unicode = false;
  const std::string text = simulation_report(sample_simulation().view(), plain);
  EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) { return c == '\n' || (c >= 0x20 && c < 0x7f); }));
  ReportStyle coloured;
  coloured.color = true;
  EXPECT_THAT(simulation_report(sample_simulation().view(), coloured), HasSubstr("\x1b[1;32myes\x1b[0m"));
  EXPECT_THAT(report(sample_simulation()), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace foreshard::cli
