// What `run --backend cuda --timeline` records on the virtual device: all of it, whatever CUPTI refuses, drops or tells
// late, and no more than is asked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/temporary_path.h"
#include "tests/virtual_gpu/cuda_program.h"
#include "tests/virtual_gpu/planned_calls.h"
#include "traces/analysis/comparison.h"
#include "traces/formats/fst.h"

namespace foreshard {
namespace {

using testing::calls_planned;
using ::testing::HasSubstr;
using testing::LogFolder;
using ::testing::Not;
using testing::plan_of;
using testing::run;
namespace fs = std::filesystem;

TEST(RunCuda, RecordsThatCuptiDropsAreToldAndKept) {
  const std::string timeline = testing::temporary_path("dropped.fst");
  const ProgramEnd end = run({"--nproc", "2", "--timeline", timeline}, {"FAKEGPU_CUPTI=drops"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("note: rank 1: the timeline lacks "));
  const auto recorded = read_fst(timeline);
  fs::remove(timeline);
  ASSERT_TRUE(recorded) << to_text(recorded.error());
  EXPECT_GT(recorded->provenance.dropped_records, 0);
  EXPECT_THAT(recorded->provenance.clock, HasSubstr("CUPTI: "));
}

// LibTorch asks ten times for each kernel which device it is on and whether a graph is captured: such calls, recorded,
// cost a step on an H200 a third of its time.
TEST(RunCuda, CallsThatOnlyAskAreNotRecorded) {
  const std::string timeline = testing::temporary_path("calls.fst");
  const ProgramEnd end =
      run({"--timeline", timeline, "--set", "cluster.world_size=1", "--set", "cluster.ranks_per_node=1"});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  const auto recorded = read_fst(timeline);
  fs::remove(timeline);
  ASSERT_TRUE(recorded) << to_text(recorded.error());
  const std::string& clock = recorded->provenance.clock;
  const std::size_t at = clock.find("CUPTI: ");
  ASSERT_NE(at, std::string::npos) << clock;
  const long records = std::stol(clock.substr(at + 7));
  const auto spans = static_cast<long>(recorded->spans.size());  // each device span: itself, its call, its instruction
  EXPECT_LT(records, 4 * spans) << clock;
}

/// Spans of instructions by lane: "rank stream".
std::map<std::string, std::size_t> recorded_spans(const std::string& cupti, const std::string& record = "all") {
  const std::string timeline = testing::temporary_path("spans.fst");
  const ProgramEnd end = run({"--nproc", "2", "--timeline", timeline, "--record", record}, {"FAKEGPU_CUPTI=" + cupti});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  const auto recorded = read_fst(timeline);
  fs::remove(timeline);
  std::map<std::string, std::size_t> spans;
  for (const Span& span : recorded ? recorded->spans : std::vector<Span>()) {
    const Lane& lane = recorded->lanes[span.lane.index()];
    if (span.instruction.valid()) ++spans[std::to_string(lane.rank) + " " + lane.stream];
  }
  return spans;
}

TEST(RunCuda, RecordsThatComeLateOrAreOfFewKindsAreAttributedAllTheSame) {
  const auto in_time = recorded_spans("");
  ASSERT_GT(in_time.count("1 D"), 0u);
  EXPECT_EQ(recorded_spans("late"), in_time);
  EXPECT_EQ(recorded_spans("few"), in_time) << "kinds that a driver may refuse";
}

/// What stands beside the plan's spans: "rank lane name".
std::map<std::string, int> calls_of_the_driver(const Timeline& recorded, SpanKind kind) {
  std::map<std::string, int> calls;
  for (const Span& span : recorded.spans) {
    if (span.kind != kind) continue;
    EXPECT_FALSE(span.instruction.valid()) << "it would be taken for the plan's";
    EXPECT_GE(span.duration, 0);
    const Lane& lane = recorded.lanes[span.lane.index()];
    ++calls[std::to_string(lane.rank) + " " + lane.stream + " " + std::string(recorded.name_of(span.name))];
  }
  return calls;
}

TEST(RunCuda, ARecordingShowsTheWaitsOfThePlanAndTheDriversMemory) {
  const LogFolder logs;
  const std::string timeline = testing::temporary_path("waits.fst");
  const ProgramEnd end = run({"--nproc", "2", "--timeline", timeline}, {logs.variable()});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.err, Not(HasSubstr("CUPTI")));
  const auto recorded = read_fst(timeline);
  ASSERT_TRUE(recorded) << to_text(recorded.error());
  std::map<std::string, int> planned;
  for (const exec::PlannedCall& call : calls_planned(plan_of({"train.steps=3"}))) {
    for (const std::string rank : {"0 ", "1 "}) {
      const std::string stream(stream_name(call.stream));
      if (call.api == "cudaStreamWaitEvent")
        ++planned[rank + stream + " Stream Wait Event (" + std::string(stream_name(*call.waits_for)) + ")"];
      if (call.api == "cudaEventSynchronize") ++planned[rank + "host Event Sync (" + stream + ")"];
    }
  }
  ASSERT_GT(planned.count("0 D Stream Wait Event (A)"), 0u);
  std::map<std::string, int> waits = calls_of_the_driver(*recorded, SpanKind::Wait);
  for (const char* lane : {"D", "A", "S"})
    EXPECT_GE(waits["1 host Stream Sync (" + std::string(lane) + ")"], 3) << "the ends of three steps";
  std::erase_if(waits, [](const auto& row) { return row.first.find("Event") == std::string::npos; });
  EXPECT_EQ(waits, planned);

  EXPECT_GT(calls_of_the_driver(*recorded, SpanKind::Annotation)["0 host cudaMalloc"], 0);
  std::map<std::int64_t, int> sizes;  // of all ranks, from before the first step on
  for (const auto& calls : logs.of_ranks()) {
    for (const exec::DeviceCall& call : calls) sizes[call.bytes] += call.api == "cudaMalloc" ? 1 : 0;
  }
  for (const Span& span : recorded->spans) {
    if (recorded->name_of(span.name) == "cudaMalloc") {
      EXPECT_GE(--sizes[span.bytes], 0) << span.bytes;
    }
  }

  // Beside itself without them: neither what is compared nor how long is another.
  Timeline plans = *recorded;
  std::erase_if(plans.spans,
                [](const Span& span) { return span.kind == SpanKind::Wait || span.kind == SpanKind::Annotation; });
  plans.flows.clear();  // of spans that have moved
  const auto comparison = compare_timelines(*recorded, plans);
  fs::remove(timeline);
  ASSERT_TRUE(comparison) << to_text(comparison.error());
  EXPECT_EQ(comparison->step.a, comparison->step.b);
  EXPECT_EQ(comparison->compute.a, comparison->compute.b);
  EXPECT_EQ(comparison->comm.a, comparison->comm.b);
  EXPECT_EQ(comparison->only_a, 0);
}

TEST(RunCuda, KindsOfRecordsThatCuptiRefusesAreToldOnceAndStopNoOthers) {
  const std::string timeline = testing::temporary_path("few.fst");
  const ProgramEnd end =
      run({"--timeline", timeline, "--set", "cluster.world_size=1", "--set", "cluster.ranks_per_node=1"},
          {"FAKEGPU_CUPTI=few"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  const std::string told =
      "copies between cards, its own overhead, waits, events, memory of the driver: CUPTI cannot record: "
      "CUPTI_ERROR_NOT_COMPATIBLE";
  EXPECT_THAT(end.err, HasSubstr(told));
  EXPECT_EQ(end.err.find(told), end.err.rfind(told));
  const auto recorded = read_fst(timeline);
  fs::remove(timeline);
  ASSERT_TRUE(recorded) << to_text(recorded.error());
  EXPECT_TRUE(calls_of_the_driver(*recorded, SpanKind::Wait).empty());
  EXPECT_TRUE(std::any_of(recorded->spans.begin(), recorded->spans.end(),
                          [](const Span& span) { return span.kind == SpanKind::Compute; }));
}

TEST(RunCuda, WorkAloneIsRecordedWithoutWaitsAndMemory) {
  EXPECT_EQ(recorded_spans("", "work"), recorded_spans(""));
  const std::string timeline = testing::temporary_path("work.fst");
  const ProgramEnd end = run({"--timeline", timeline, "--record", "work", "--set", "cluster.world_size=1", "--set",
                              "cluster.ranks_per_node=1"});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  const auto recorded = read_fst(timeline);
  fs::remove(timeline);
  ASSERT_TRUE(recorded) << to_text(recorded.error());
  EXPECT_TRUE(calls_of_the_driver(*recorded, SpanKind::Wait).empty());
  EXPECT_TRUE(recorded->counters.empty()) << "no memory is better than a part of it";
}

}  // namespace
}  // namespace foreshard
