#include "traces/formats/kineto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/plan.h"
#include "tests/traces/sample_timeline.h"
#include "tests/traces/trace_files.h"
#include "traces/analysis/analysis.h"
#include "traces/formats/chrome_trace.h"
#include "traces/timeline/exposed_comm.h"
#include "traces/timeline/iterations.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kFsdp2 = FORESHARD_TEST_DATA "/traces/fsdp2_step.json";

OpenedTrace read_text(std::string_view text, const std::string& file = "trace.json") {
  const auto source = memory_source(text);
  auto opened = read_chrome_json(*source, file);
  EXPECT_TRUE(opened.has_value()) << to_text(opened.error());
  return opened ? std::move(*opened) : OpenedTrace{};
}

OpenedTrace read_events(const std::string& events) { return read_text(R"({"traceEvents": [)" + events + "]}"); }

std::vector<std::string> texts(const OpenedTrace& opened) {
  std::vector<std::string> all;
  for (const TraceWarning& warning : opened.warnings) all.push_back(warning.text);
  return all;
}

/// "stream kind unit phase start+duration" of the spans on streams.
std::vector<std::string> device_spans(const Timeline& t) {
  std::vector<std::string> lines;
  for (const Span& span : t.spans) {
    if (span.kind == SpanKind::HostIssue || span.kind == SpanKind::HostWait || span.kind == SpanKind::Annotation)
      continue;
    const std::string unit = span.unit < 0 ? "-" : t.units[static_cast<std::size_t>(span.unit)];
    lines.push_back(t.lanes[span.lane.index()].stream + " " + std::string(span_kind_name(span.kind)) + " '" + unit +
                    "' " + std::string(phase_name(static_cast<Phase>(span.phase))) + " " + std::to_string(span.start) +
                    "+" + std::to_string(span.duration));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST(Kineto, KernelsGetUnitPhaseAndStreamOfThePlanFromTheRangesOfTheirLaunch) {
  const auto opened = open_trace(kFsdp2);
  ASSERT_TRUE(opened.has_value()) << to_text(opened.error());
  EXPECT_THAT(device_spans(opened->timeline),
              ElementsAre("A all_gather '' pre_forward 36000+40000",
                          "A all_gather 'layers.0' pre_forward 120000+100000", "C copy '' pre_forward 30000+5000",
                          "D compute '' forward 95000+100000", "D compute 'layers.0' backward 325010+150000",
                          "D compute 'layers.0' forward 225000+100000", "D copy '' pre_forward 77000+6000",
                          "D optimizer '-' optimizer 700000+60000", "S copy 'layers.0' post_backward 480000+8000",
                          "S reduce_scatter 'layers.0' post_backward 490000+200000"));
  EXPECT_THAT(opened->warnings, IsEmpty());
}

TEST(Kineto, AStepBeginsWithItsFirstKernelAndTheFileSaysRankCardAndClock) {
  const auto opened = open_trace(kFsdp2);
  ASSERT_TRUE(opened.has_value());
  const Timeline& t = opened->timeline;
  ASSERT_EQ(t.marks.size(), 2u);
  EXPECT_EQ(t.name_of(t.marks[0].name), "issue 4 from 0");
  EXPECT_EQ(t.name_of(t.marks[1].name), "iteration 4");
  EXPECT_EQ(t.marks[1].time, 30'000);
  for (const Lane& lane : t.lanes) EXPECT_EQ(lane.rank, 3);
  EXPECT_EQ(t.provenance.hardware, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(opened->origin_ns, 1'711'964'646'001'000'000);
  EXPECT_EQ(opened->world_size, 8);
}

TEST(Kineto, CorrelationNumbersAndArrowsBecomeFlows) {
  const auto opened = open_trace(kFsdp2);
  ASSERT_TRUE(opened.has_value());
  const Timeline& t = opened->timeline;
  EXPECT_EQ(t.flows.size(), 11u) << "ten launches, and forward to backward";
  int across_threads = 0;
  for (const Flow& flow : t.flows) {
    const Span &from = t.spans[flow.from.index()], &to = t.spans[flow.to.index()];
    across_threads += to.kind == SpanKind::HostIssue;
    EXPECT_LT(from.start, to.start);
  }
  EXPECT_EQ(across_threads, 1);
}

TEST(Kineto, CollectivesKnowTheirBytesAndMemoryEventsAreCounters) {
  const auto opened = open_trace(kFsdp2);
  ASSERT_TRUE(opened.has_value());
  std::vector<Bytes> bytes;
  for (const Span& span : opened->timeline.spans) {
    if (span.bytes > 0) bytes.push_back(span.bytes);
  }
  EXPECT_THAT(bytes, ::testing::UnorderedElementsAre(8000 * 2, 4000 * 2, 4000 * 4));
  std::vector<std::string> counters;
  for (const Counter& counter : opened->timeline.counters) counters.push_back(counter.name);
  EXPECT_THAT(counters, ElementsAre("allocated", "reserved", "host allocated"));
  ASSERT_EQ(opened->timeline.samples.size(), 5u);
  EXPECT_EQ(opened->timeline.samples[1].value, 4000);
}

TEST(Kineto, UnixMicrosecondsKeepEveryDigit) {
  const OpenedTrace opened = read_events(
      R"({"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":1669783687464181.123,"dur":45.0015},
         {"ph":"X","cat":"kernel","name":"b","pid":0,"tid":7,"ts":1669783687464181.124,"dur":1e1})");
  ASSERT_EQ(opened.timeline.spans.size(), 2u);
  EXPECT_EQ(opened.timeline.spans[1].start, 1);
  EXPECT_EQ(opened.timeline.spans[0].duration, 45'002) << "half a nanosecond is rounded up";
  EXPECT_EQ(opened.timeline.spans[1].duration, 10'000);
  EXPECT_EQ(opened.origin_ns, 1'669'783'687'464'181'123);
}

TEST(Kineto, KernelsOfOneStreamThatOverlapAreKept) {
  const OpenedTrace opened = read_events(
      R"({"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":10,"dur":10},
         {"ph":"X","cat":"kernel","name":"b","pid":0,"tid":7,"ts":15,"dur":10})");
  EXPECT_EQ(opened.timeline.spans.size(), 2u);
  EXPECT_EQ(opened.timeline.lanes.size(), 1u);
}

TEST(Kineto, WhatCannotBeShownIsCountedNeverLostSilently) {
  const OpenedTrace opened = read_events(
      R"({"ph":"X","cat":"kernel","name":"good","pid":0,"tid":7,"ts":10,"dur":10},
         {"ph":"X","cat":"kernel","name":"nan","pid":0,"tid":7,"ts":NaN,"dur":10},
         {"ph":"X","cat":"kernel","name":"late","pid":0,"tid":7,"ts":20,"dur":-3},
         {"ph":"X","cat":"kernel","name":"late too","pid":0,"tid":7,"ts":20,"dur":-1.5},
         {"ph":"X","cat":"kernel","name":"long","pid":0,"tid":7,"ts":21,"dur":"Infinity"},
         {"ph":"X","cat":"kernel","name":"no duration","pid":0,"tid":7,"ts":22},
         {"ph":"X","cat":"kernel","name":"other clock","pid":0,"tid":7,"ts":200000000000,"dur":1},
         {"ph":"E","pid":0,"tid":7,"ts":25}, 17, {"ph":"X","cat":"kernel"},
         {"ph":"z","name":"odd","ts":1})");
  EXPECT_EQ(opened.timeline.spans.size(), 2u);
  EXPECT_EQ(opened.timeline.provenance.dropped_records, 7);
  EXPECT_THAT(texts(opened), ::testing::UnorderedElementsAre(
                                 "slices without a time: left out (2 times; first: nan)",
                                 "slices with a negative duration: left out (2 times; first: late)",
                                 "slices whose duration is no number: left out (long)",
                                 "slices without a duration, shown as moments (no duration)",
                                 "slices left out: their clock is more than a day from the others' (other clock)",
                                 "ends without a beginning: left out", "events of kind 'z' are not shown (odd)",
                                 "1 values among the events are no events: left out"));
}

TEST(Kineto, TruncatedFilesGiveWhatIsThereWhereverTheyEnd) {
  std::string whole = R"({"schemaVersion": 1, "traceEvents": [)";
  for (int i = 0; i < 20; ++i)
    whole += R"({"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":)" + std::to_string(i) + R"(,"dur":1},)";
  whole.back() = ']';
  whole += "}";
  std::size_t before = 0;
  for (std::size_t size = whole.find("traceEvents") + 15; size < whole.size() - 1; ++size) {
    const OpenedTrace opened = read_text(std::string_view(whole).substr(0, size));
    EXPECT_GE(opened.timeline.spans.size(), before) << size;
    before = opened.timeline.spans.size();
    ASSERT_EQ(opened.warnings.size(), 1u) << size;
    EXPECT_THAT(opened.warnings[0].text, HasSubstr("breaks off"));
  }
  EXPECT_EQ(before, 20u);
}

TEST(Kineto, BrokenNamesDoNotTakeTheirNeighboursAlong) {
  const std::string good = R"({"ph":"X","cat":"kernel","name":"good","pid":0,"tid":7,"ts":1,"dur":1})";
  const std::string control =
      "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"bad\x01name\",\"pid\":0,\"tid\":7,\"ts\":2,\"dur\":1}";
  const std::string latin1 =
      "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"caf\xe9\",\"pid\":0,\"tid\":7,\"ts\":3,\"dur\":1}";
  const std::string quote =
      "{\n\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"say \"hi\" now\",\n\"pid\":0,\"tid\":7,\"ts\":4,\"dur\":1\n}";
  const OpenedTrace opened = read_events(good + "," + control + ",\n" + latin1 + ",\n" + quote + ",\n" + good + ",");
  EXPECT_GE(opened.timeline.spans.size(), 4u);
  EXPECT_THAT(texts(opened), ::testing::Contains(HasSubstr("broken characters, mended (2 times")));
  EXPECT_THAT(texts(opened), ::testing::Contains(HasSubstr("no valid JSON: left out")));
  EXPECT_THAT(opened.timeline.names, ::testing::Contains("bad name"));
  EXPECT_THAT(opened.timeline.names, ::testing::Contains("caf?"));
}

TEST(Kineto, AKeyThatALineBreakCutsIsNoCrash) {
  // Found by fuzzing: a quote alone on its line where a key should stand.
  for (const std::string_view text :
       {"{\"\"a\":[\n\"\n{ph\":\"\"1,", "{\"\n", "{\"a\n:1}", "{\"\n\":1, \"traceEvents\": []}"}) {
    const auto source = memory_source(text);
    static_cast<void>(read_chrome_json(*source, "cut.json"));
  }
}

TEST(Kineto, ACounterThatIsCalledAlmostAsOursIsSomebodysOwn) {
  const OpenedTrace opened = read_events(R"({"ph": "C", "name": "memory [bytes]", "ts": 1, "args": {"a": 1}},
    {"ph": "C", "name": "memory, of which [bytes]", "ts": 2, "args": {"a": 2}})");
  std::vector<std::string> names;
  for (const Counter& counter : opened.timeline.counters) names.push_back(counter.name);
  EXPECT_THAT(names, ElementsAre("memory", "memory, of which"));
}

TEST(Kineto, EventsMayHaveTheirKeysInAnyOrderAndStandInABareArray) {
  const OpenedTrace opened = read_text(
      R"([{"args":{"correlation":5},"dur":2,"ts":7,"tid":"stream 7 ","pid":"0","name":"k","cat":"Kernel","ph":"X"},
          {"args":{"correlation":5},"dur":2,"ts":1,"tid":9,"pid":9,"name":"cudaLaunchKernel","cat":"Runtime","ph":"X"}])",
      "rank-5_trace.json");
  EXPECT_EQ(opened.timeline.flows.size(), 1u);
  ASSERT_EQ(opened.timeline.lanes.size(), 2u);
  EXPECT_EQ(opened.timeline.lanes[0].label, "stream 7");
  EXPECT_EQ(opened.timeline.lanes[0].rank, 5) << "from the file's name";
  EXPECT_THAT(opened.warnings, IsEmpty());
}

TEST(Kineto, CallsOfAnyMakersRuntimeLaunchWork) {
  for (const char* category : {"cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "privateuse1_runtime"}) {
    const OpenedTrace opened =
        read_events(std::string(R"({"ph":"X","cat":")") + category +
                    R"(","name":"launch","pid":1,"tid":1,"ts":1,"dur":2,"args":{"correlation":9999999999}},
           {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":7,"dur":2,"args":{"correlation":9999999999}})");
    EXPECT_EQ(opened.timeline.flows.size(), 1u) << category;
    for (const Span& span : opened.timeline.spans) EXPECT_EQ(span.op, -1) << "the number is gone";
  }
}

TEST(Kineto, BeginningsAndEndsMakeSlices) {
  const OpenedTrace opened = read_events(
      R"({"ph":"B","name":"outer","pid":1,"tid":2,"ts":1},{"ph":"B","name":"inner","pid":1,"tid":2,"ts":2},
         {"ph":"E","pid":1,"tid":2,"ts":3},{"ph":"E","pid":1,"tid":2,"ts":9},{"ph":"B","name":"open","pid":1,"tid":2,"ts":10})");
  ASSERT_EQ(opened.timeline.spans.size(), 3u);
  EXPECT_EQ(opened.timeline.spans[0].duration, 8'000);
  EXPECT_EQ(opened.timeline.spans[1].duration, 1'000);
  EXPECT_THAT(texts(opened), ElementsAre("slices that begin and never end, shown as moments"));
}

/// Two nested forwards of FSDP1 with Python's stack, the limiter before the second gather, both gathers launched late.
const char* const kFsdp1Events = R"(
  {"ph":"X","cat":"python_function","name":"nn.Module: FullyShardedDataParallel_0","pid":1,"tid":1,"ts":0,"dur":900},
  {"ph":"X","cat":"user_annotation","name":"FullyShardedDataParallel.forward","pid":1,"tid":1,"ts":1,"dur":898},
  {"ph":"X","cat":"user_annotation","name":"FullyShardedDataParallel._pre_forward","pid":1,"tid":1,"ts":2,"dur":98},
  {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":10,"dur":5,"args":{"correlation":1}},
  {"ph":"X","cat":"python_function","name":"nn.Module: Net_0","pid":1,"tid":1,"ts":110,"dur":780},
  {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":120,"dur":5,"args":{"correlation":2}},
  {"ph":"X","cat":"user_annotation","name":"FullyShardedDataParallel.forward","pid":1,"tid":1,"ts":200,"dur":600},
  {"ph":"X","cat":"user_annotation","name":"FullyShardedDataParallel._pre_forward","pid":1,"tid":1,"ts":201,"dur":299},
  {"ph":"X","cat":"user_annotation","name":"FullyShardedDataParallel.rate_limiter","pid":1,"tid":1,"ts":205,"dur":195},
  {"ph":"X","cat":"cuda_runtime","name":"cudaEventSynchronize","pid":1,"tid":1,"ts":206,"dur":190},
  {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":410,"dur":5,"args":{"correlation":3}},
  {"ph":"X","cat":"python_function","name":"nn.Module: Block_7","pid":1,"tid":1,"ts":510,"dur":280},
  {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":520,"dur":5,"args":{"correlation":4}},
  {"ph":"X","cat":"kernel","name":"ncclKernel_AllGather","pid":0,"tid":20,"ts":20,"dur":80,"args":{"correlation":1}},
  {"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":130,"dur":70,"args":{"correlation":2}},
  {"ph":"X","cat":"kernel","name":"ncclKernel_AllGather","pid":0,"tid":20,"ts":420,"dur":100,"args":{"correlation":3}},
  {"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":530,"dur":70,"args":{"correlation":4}})";

TEST(Kineto, UnitsOfFsdp1AreNumberedByForwardAndNamedByPythonsStack) {
  const OpenedTrace opened = read_events(kFsdp1Events);
  EXPECT_THAT(device_spans(opened.timeline), ElementsAre("D compute 'fsdp 0 (Net_0)' forward 130000+70000",
                                                         "D compute 'fsdp 1 (Block_7)' forward 530000+70000",
                                                         "U all_gather 'fsdp 0 (Net_0)' pre_forward 20000+80000",
                                                         "U all_gather 'fsdp 1 (Block_7)' pre_forward 420000+100000"));
}

// As PyTorch 2.11 records it, two units of three; the backward on autograd's own thread.
//   forward   |root: op at 20 |unit 1: split at 110, mm at 150, ends at 290| |unit 2: mm at 350, ends at 440|   |
//   backward  root's node: hook prefetches unit 2 | unit 2's node | unit 1's: mm, split | AccumulateGrad:
//   reduce-scatter
const char* const kFsdp1Backward = R"(
  {"ph":"X","cat":"user_annotation","name":"FullyShardedDataParallel.forward","pid":1,"tid":1,"ts":0,"dur":500},
  {"ph":"X","cat":"cpu_op","name":"aten::addmm","pid":1,"tid":1,"ts":20,"dur":10},
  {"ph":"X","cat":"user_annotation","name":"FullyShardedDataParallel.forward","pid":1,"tid":1,"ts":100,"dur":200},
  {"ph":"X","cat":"user_annotation","name":"FullyShardedDataParallel._pre_forward","pid":1,"tid":1,"ts":101,"dur":40},
  {"ph":"X","cat":"cpu_op","name":"aten::split_with_sizes","pid":1,"tid":1,"ts":110,"dur":10},
  {"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":150,"dur":10},
  {"ph":"X","cat":"user_annotation","name":"FullyShardedDataParallel._post_forward","pid":1,"tid":1,"ts":280,"dur":10},
  {"ph":"X","cat":"user_annotation","name":"FullyShardedDataParallel.forward","pid":1,"tid":1,"ts":310,"dur":140},
  {"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":350,"dur":10},
  {"ph":"X","cat":"user_annotation","name":"FullyShardedDataParallel._post_forward","pid":1,"tid":1,"ts":430,"dur":10},
  {"ph":"X","cat":"user_annotation","name":"FullyShardedDataParallel._post_forward","pid":1,"tid":1,"ts":480,"dur":10},
  {"ph":"s","id":1,"cat":"fwdbwd","name":"fwdbwd","pid":1,"tid":1,"ts":20},
  {"ph":"s","id":2,"cat":"fwdbwd","name":"fwdbwd","pid":1,"tid":1,"ts":350},
  {"ph":"s","id":3,"cat":"fwdbwd","name":"fwdbwd","pid":1,"tid":1,"ts":150},
  {"ph":"s","id":4,"cat":"fwdbwd","name":"fwdbwd","pid":1,"tid":1,"ts":110},
  {"ph":"X","cat":"cpu_op","name":"autograd::engine::evaluate_function: AddmmBackward0","pid":1,"tid":2,"ts":1000,"dur":100},
  {"ph":"X","cat":"user_annotation","name":"FullyShardedDataParallel._pre_backward_hook","pid":1,"tid":2,"ts":1001,"dur":49},
  {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":2,"ts":1004,"dur":3,"args":{"correlation":9}},
  {"ph":"X","cat":"user_annotation","name":"FullyShardedDataParallel._pre_backward_prefetch","pid":1,"tid":2,"ts":1010,"dur":35},
  {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":2,"ts":1020,"dur":5,"args":{"correlation":10}},
  {"ph":"X","cat":"cpu_op","name":"AddmmBackward0","pid":1,"tid":2,"ts":1060,"dur":35},
  {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":2,"ts":1070,"dur":5,"args":{"correlation":11}},
  {"ph":"f","bp":"e","id":1,"cat":"fwdbwd","name":"fwdbwd","pid":1,"tid":2,"ts":1060},
  {"ph":"X","cat":"cpu_op","name":"autograd::engine::evaluate_function: MmBackward0","pid":1,"tid":2,"ts":1110,"dur":40},
  {"ph":"X","cat":"cpu_op","name":"MmBackward0","pid":1,"tid":2,"ts":1112,"dur":35},
  {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":2,"ts":1115,"dur":5,"args":{"correlation":12}},
  {"ph":"f","bp":"e","id":2,"cat":"fwdbwd","name":"fwdbwd","pid":1,"tid":2,"ts":1112},
  {"ph":"X","cat":"cpu_op","name":"autograd::engine::evaluate_function: MmBackward0","pid":1,"tid":2,"ts":1200,"dur":100},
  {"ph":"X","cat":"cpu_op","name":"MmBackward0","pid":1,"tid":2,"ts":1210,"dur":80},
  {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":2,"ts":1215,"dur":5,"args":{"correlation":13}},
  {"ph":"f","bp":"e","id":3,"cat":"fwdbwd","name":"fwdbwd","pid":1,"tid":2,"ts":1210},
  {"ph":"X","cat":"cpu_op","name":"autograd::engine::evaluate_function: SplitWithSizesBackward0","pid":1,"tid":2,"ts":1310,"dur":20},
  {"ph":"X","cat":"cpu_op","name":"SplitWithSizesBackward0","pid":1,"tid":2,"ts":1312,"dur":15},
  {"ph":"f","bp":"e","id":4,"cat":"fwdbwd","name":"fwdbwd","pid":1,"tid":2,"ts":1312},
  {"ph":"X","cat":"cpu_op","name":"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad","pid":1,"tid":2,"ts":1340,"dur":60},
  {"ph":"X","cat":"user_annotation","name":"FullyShardedDataParallel._post_backward_hook","pid":1,"tid":2,"ts":1345,"dur":50},
  {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":2,"ts":1350,"dur":5,"args":{"correlation":14}},
  {"ph":"X","cat":"kernel","name":"ncclKernel_AllGather","pid":0,"tid":20,"ts":1008,"dur":20,"args":{"correlation":9}},
  {"ph":"X","cat":"kernel","name":"ncclKernel_AllGather","pid":0,"tid":20,"ts":1030,"dur":70,"args":{"correlation":10}},
  {"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":1080,"dur":10,"args":{"correlation":11}},
  {"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":1120,"dur":20,"args":{"correlation":12}},
  {"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":1220,"dur":30,"args":{"correlation":13}},
  {"ph":"X","cat":"kernel","name":"ncclKernel_ReduceScatter","pid":0,"tid":24,"ts":1360,"dur":40,"args":{"correlation":14}})";

TEST(Kineto, UnitsOfFsdp1sBackwardComeFromAutogradsArrows) {
  const OpenedTrace opened = read_events(kFsdp1Backward);
  EXPECT_THAT(
      device_spans(opened.timeline),
      ElementsAre("D compute 'fsdp 0' backward 1080000+10000", "D compute 'fsdp 1' backward 1220000+30000",
                  "D compute 'fsdp 2' backward 1120000+20000", "G reduce_scatter 'fsdp 1' post_backward 1360000+40000",
                  "U all_gather 'fsdp 0' pre_backward 1008000+20000",
                  "U all_gather 'fsdp 2' pre_backward 1030000+70000"));
}

// The same node of autograd, of a reentrant checkpoint around unit 1: its arrow comes from the root's forward.
TEST(Kineto, AReentrantCheckpointAroundAUnitOfFsdp1IsNotTakenForWhatSurroundsIt) {
  const OpenedTrace opened = read_events(std::string(kFsdp1Backward) + R"(,
  {"ph":"X","cat":"cpu_op","name":"CheckpointFunction","pid":1,"tid":1,"ts":40,"dur":10},
  {"ph":"s","id":5,"cat":"fwdbwd","name":"fwdbwd","pid":1,"tid":1,"ts":40},
  {"ph":"X","cat":"cpu_op","name":"autograd::engine::evaluate_function: CheckpointFunctionBackward","pid":1,"tid":2,"ts":1500,"dur":100},
  {"ph":"X","cat":"cpu_op","name":"CheckpointFunctionBackward","pid":1,"tid":2,"ts":1502,"dur":95},
  {"ph":"f","bp":"e","id":5,"cat":"fwdbwd","name":"fwdbwd","pid":1,"tid":2,"ts":1502},
  {"ph":"X","cat":"user_annotation","name":"FullyShardedDataParallel.forward","pid":1,"tid":2,"ts":1510,"dur":30},
  {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":2,"ts":1520,"dur":5,"args":{"correlation":20}},
  {"ph":"X","cat":"cpu_op","name":"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad","pid":1,"tid":2,"ts":1550,"dur":40},
  {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":2,"ts":1560,"dur":5,"args":{"correlation":21}},
  {"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":1530,"dur":10,"args":{"correlation":20}},
  {"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":1570,"dur":10,"args":{"correlation":21}})");
  EXPECT_THAT(device_spans(opened.timeline), ::testing::IsSupersetOf({"D compute '-' backward 1530000+10000",
                                                                      "D compute '-' backward 1570000+10000"}));
}

TEST(Kineto, TheLimiterIsFoundInRecordingsOfOthers) {
  const OpenedTrace opened = read_events(kFsdp1Events);
  const auto analysed = analyse_timeline(opened.timeline);
  ASSERT_TRUE(analysed.has_value());
  const RankAnalysis& rank = analysed->front();
  EXPECT_EQ(rank.idle.host, 30'000 + 220'000);
  EXPECT_EQ(rank.idle.kernel, 10'000) << "launched as the one before ended";
  EXPECT_EQ(rank.limiter, 195'000) << "of the 220 us before the second gather";
  const auto gaps = find_idle_gaps(opened.timeline).at(0);
  EXPECT_THAT(gaps,
              ElementsAre(IdleGap{{100'000, 130'000}, IdleCause::Host}, IdleGap{{200'000, 205'000}, IdleCause::Host},
                          IdleGap{{205'000, 400'000}, IdleCause::Limiter}, IdleGap{{400'000, 420'000}, IdleCause::Host},
                          IdleGap{{520'000, 530'000}, IdleCause::Kernel}));
  const ExposedComm exposed = find_exposed_comm(opened.timeline, iterations_of(opened.timeline, 0).front());
  ASSERT_EQ(exposed.causes.size(), 2u);
  EXPECT_EQ(exposed.causes[0].cause, "limiter");
  EXPECT_EQ(exposed.causes[1].cause, "first_gather");
}

TEST(Kineto, OurOwnChromeJsonReadsBack) {
  Timeline written = sample_timeline();
  written.spans.push_back(written.spans[0]);  // overlaps: drawn in a second row, one lane again when read
  written.spans.back().start += 1'000;
  std::swap(written.spans[1], written.spans.back());
  std::stable_sort(written.spans.begin(), written.spans.end(), [](const Span& a, const Span& b) {
    return std::pair(a.lane, a.start) < std::pair(b.lane, b.start);
  });
  const OpenedTrace opened = read_text(chrome_trace_json(written));
  EXPECT_EQ(opened.format, "chrome");
  EXPECT_THAT(opened.warnings, IsEmpty());
  const Timeline& t = opened.timeline;
  ASSERT_EQ(t.spans.size(), written.spans.size());
  std::vector<std::string> was, is;
  const auto told = [](const Timeline& from, const Span& s, SimTime zero) {
    return from.lanes[s.lane.index()].stream + " r" + std::to_string(from.lanes[s.lane.index()].rank) + " " +
           std::string(span_kind_name(s.kind)) + " " + std::string(from.name_of(s.name)) + " " +
           std::to_string(s.start - zero) + "+" + std::to_string(s.duration) + " i" +
           std::to_string(s.instruction.value) + " u" +
           (s.unit < 0 ? "-" : from.units[static_cast<std::size_t>(s.unit)]) + " p" + std::to_string(s.phase) + " " +
           std::to_string(s.bytes) + " o" + std::to_string(s.op);
  };
  for (const Span& span : written.spans) was.push_back(told(written, span, -500));
  for (const Span& span : t.spans) is.push_back(told(t, span, 0));
  EXPECT_THAT(is, ::testing::UnorderedElementsAreArray(was));
  EXPECT_EQ(t.provenance, written.provenance);
  EXPECT_EQ(t.flows.size(), 1u);
  EXPECT_EQ(t.counters, written.counters);
  ASSERT_EQ(t.samples.size(), written.samples.size());
  EXPECT_EQ(t.samples[0].value, written.samples[0].value);
  ASSERT_EQ(t.marks.size(), 1u);
  EXPECT_EQ(t.name_of(t.marks[0].name), "iteration 1");
}

}  // namespace
}  // namespace foreshard
