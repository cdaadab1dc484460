// cli/reports/compare_report.h: the table and the JSON, whole.
#include "cli/reports/compare_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace foreshard::cli {
namespace {

Comparison sample() {
  Comparison c;
  c.iteration_a = 2, c.iteration_b = 7;
  c.ranks = {0};
  c.joined = 12, c.only_b = 1;
  c.step = {90e6, 100e6};
  c.compute = {60e6, 70e6};
  c.comm = {40e6, 41e6};
  c.exposed = {9e6, 20e6};
  c.peak_memory = {1024.0 * 1024, 1024.0 * 1000};
  UnitPair unit;
  unit.unit = "layers.0";
  unit.compute = {30e6, 35e6};
  unit.comm = {10e6, 10e6};
  c.by_unit = {unit};
  c.by_cause = {{"host", SpanKind::AllGather, {2e6, 9e6}}};
  c.by_category = {{"activations", {4096, 2048}}};
  c.by_stream = {{"D", {60e6, 70e6}}};
  InstructionPair i;
  i.stream = "D", i.instruction = InstructionId(17), i.kind = SpanKind::Compute, i.name = "layers.0";
  i.unit = "layers.0", i.phase = 3, i.duration = {30e6, 35e6}, i.start = {1e6, 2e6};
  c.by_instruction = {i};
  i.stream = "A", i.kind = SpanKind::AllGather, i.duration = {0, 5e3};
  c.missing = {i};
  return c;
}

ComparedSides sides() { return {{"job.toml", "prediction on cpu-host", "00ff"}, {"run.fst", "recording", "00ff"}, 10}; }

TEST(CompareReport, SaysWhereTheyPart) {
  EXPECT_EQ(comparison_report(sample(), sides(), {false, false, 100}),
            R"(A  job.toml: prediction on cpu-host, iteration 2
B  run.fst: recording, iteration 7
   12 instructions joined, 0 only in A, 1 only in B

Step                                          A            B        A - B       of B
  step time                             90.0 ms       100 ms     -10.0 ms    -10.0 %
  compute stream busy                   60.0 ms      70.0 ms     -10.0 ms    -14.3 %
  communication busy                    40.0 ms      41.0 ms     -1.00 ms     -2.4 %
  exposed communication                 9.00 ms      20.0 ms     -11.0 ms    -55.0 %
  exposed share of the step                                            -10.00 points
  peak allocated                       1.00 MiB     1000 KiB    +24.0 KiB     +2.4 %
  stream D                              60.0 ms      70.0 ms     -10.0 ms    -14.3 %

Busy time by unit                             A            B        A - B       of B
  layers.0                              40.0 ms      45.0 ms     -5.00 ms    -11.1 %
    compute                             30.0 ms      35.0 ms     -5.00 ms    -14.3 %
    comm                                10.0 ms      10.0 ms         0 ns     +0.0 %

Exposed communication by cause                A            B        A - B       of B
  host (all_gather)                     2.00 ms      9.00 ms     -7.00 ms    -77.8 %

Peak memory by category                       A            B        A - B       of B
  activations                          4.00 KiB     2.00 KiB    +2.00 KiB   +100.0 %

Instructions by duration                      A            B        A - B       of B
  17 D compute layers.0 forward         30.0 ms      35.0 ms     -5.00 ms    -14.3 %

In one of them only
  17 A all_gather layers.0 forward                   5.00 us
)");
}

TEST(CompareReport, TellsHowTheStepsOfARecordingVary) {
  Comparison c = sample();
  c.spread_b = StepSpread{19, {95e6, 99e6, 120e6}, {60e6, 66e6, 80e6}, {39e6, 40e6, 55e6}, {10e6, 12e6, 30e6}};
  EXPECT_THAT(comparison_report(c, sides(), {false, false, 100}), ::testing::HasSubstr(R"(
B's 19 steps                              least       median         most          A
  step time                             95.0 ms      99.0 ms       120 ms     -9.1 %
  compute stream busy                   60.0 ms      66.0 ms      80.0 ms     -9.1 %
  communication busy                    39.0 ms      40.0 ms      55.0 ms     +0.0 %
  exposed communication                 10.0 ms      12.0 ms      30.0 ms    -25.0 %
)"));
  const auto json = nlohmann::json::parse(comparison_json(c, sides()));
  EXPECT_TRUE(json["steps_a"].is_null());
  EXPECT_EQ(json["steps_b"]["iterations"], 19);
  EXPECT_EQ(json["steps_b"]["comm"]["most_ns"], 55e6);
}

TEST(CompareReport, JsonHasTheFieldsThatOthersRelyOn) {
  const auto json = nlohmann::json::parse(comparison_json(sample(), sides()));
  EXPECT_EQ(json["schema"], "foreshard.comparison/1");
  EXPECT_EQ(json["joined"], 12);
  EXPECT_EQ(json["only_a"], 0);
  EXPECT_EQ(json["only_b"], 1);
  EXPECT_NEAR(json["step_error"].get<double>(), -0.1, 1e-12);
  EXPECT_NEAR(json["exposed_comm_points"].get<double>(), -10.0, 1e-9);
  EXPECT_NEAR(json["memory_error"].get<double>(), 0.024, 1e-12);
  EXPECT_EQ(json["by_unit"][0]["unit"], "layers.0");
  EXPECT_EQ(json["by_unit"][0]["busy"]["a_ns"], 40'000'000);
  EXPECT_EQ(json["by_cause"][0]["cause"], "host");
  EXPECT_EQ(json["by_category"][0]["peak"]["b_bytes"], 2048);
  EXPECT_EQ(json["by_instruction"][0]["instruction"], 17);
  EXPECT_EQ(json["missing"][0]["stream"], "A");
}

TEST(CompareReport, TheWorstDifferenceIsTheLargestOfTheThree) {
  Comparison c = sample();
  EXPECT_NEAR(worst_difference(c), 0.1, 1e-12);
  c.peak_memory = {2, 1};
  EXPECT_NEAR(worst_difference(c), 1.0, 1e-12);
}

}  // namespace
}  // namespace foreshard::cli
