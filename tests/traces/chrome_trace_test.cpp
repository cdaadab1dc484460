#include "traces/formats/chrome_trace.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_path.h"
#include "tests/traces/sample_timeline.h"

namespace foreshard {
namespace {

using nlohmann::json;

std::vector<json> events(const Timeline& t, const std::string& phase) {
  const json trace = json::parse(chrome_trace_json(t));
  std::vector<json> out;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == phase) out.push_back(event);
  }
  return out;
}

std::map<std::string, int> threads_of_rank(const Timeline& t, int rank) {
  std::map<std::string, int> threads;
  for (const json& event : events(t, "M")) {
    if (event["name"] == "thread_name" && event["pid"] == rank) threads[event["args"]["name"]] = event["tid"];
  }
  return threads;
}

TEST(ChromeTrace, ARankIsAProcessAndStreamsAreThreadsWithSpokenNames) {
  std::map<int, std::string> processes;
  for (const json& event : events(sample_timeline(), "M")) {
    if (event["name"] == "process_name") processes[event["pid"]] = event["args"]["name"];
  }
  EXPECT_EQ(processes, (std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}}));
  EXPECT_EQ(threads_of_rank(sample_timeline(), 0),
            (std::map<std::string, int>{{"host", 0}, {"D compute", 1}, {"U all-gather", 2}}));
  EXPECT_EQ(threads_of_rank(sample_timeline(), 1), (std::map<std::string, int>{{"G reduce-scatter", 0}}));
}

TEST(ChromeTrace, RowsOfBothRuntimesAreInTheOrderOfTheData) {
  const std::vector<std::string> fsdp1{"host", "D", "U", "G", "Q", "H"}, fsdp2{"host", "D", "C", "A", "S", "H"};
  for (const auto& streams : {fsdp1, fsdp2}) {
    for (std::size_t i = 1; i < streams.size(); ++i)
      EXPECT_LT(stream_row(streams[i - 1]), stream_row(streams[i])) << streams[i];
  }
  EXPECT_EQ(spoken_stream_name("stream 20"), "stream 20");
}

TEST(ChromeTrace, SpansCarryTheirInstructionUnitPhaseBytesAndOperator) {
  const auto spans = events(sample_timeline(), "X");
  ASSERT_EQ(spans.size(), sample_timeline().spans.size());
  EXPECT_EQ(spans[0]["name"], "forward layers.0");
  EXPECT_EQ(spans[0]["cat"], "compute");
  EXPECT_EQ(spans[0]["args"], (json{{"instruction", 7}, {"unit", "layers.0"}, {"phase", "forward"}, {"op", 3}}));
  EXPECT_EQ(spans[4]["args"], (json{{"instruction", 8},
                                    {"unit", "layers.1"},
                                    {"phase", "pre_forward"},
                                    {"communicator", "world"},
                                    {"bytes", 3'000'000'001}}));
  EXPECT_EQ(spans[1]["name"], "quote \" back\\slash \n line");
  EXPECT_EQ(spans[3]["name"], "host_wait") << "a span without a name is called by its kind";
}

TEST(ChromeTrace, NanosecondsSurvive) {
  const std::string text = chrome_trace_json(sample_timeline());
  EXPECT_NE(text.find("\"ts\":5.001,\"dur\":40.000"), std::string::npos);
  EXPECT_NE(text.find("\"ts\":-0.500,\"dur\":0.700"), std::string::npos) << "a trace may start before its zero";
}

TEST(ChromeTrace, AFlowLeadsFromTheIssueToTheKernel) {
  const auto start = events(sample_timeline(), "s"), finish = events(sample_timeline(), "f");
  ASSERT_EQ(start.size(), 1u);
  ASSERT_EQ(finish.size(), 1u);
  EXPECT_EQ(start[0]["id"], finish[0]["id"]);
  EXPECT_EQ(start[0]["tid"], threads_of_rank(sample_timeline(), 0)["host"]);
  EXPECT_EQ(finish[0]["tid"], threads_of_rank(sample_timeline(), 0)["D compute"]);
  EXPECT_EQ(finish[0]["ts"], 5.001);
  EXPECT_EQ(finish[0]["bp"], "e") << "binds to the slice that encloses it, not to the next one";
}

TEST(ChromeTrace, CountersAndMarksAndProvenanceAreThere) {
  const auto counters = events(sample_timeline(), "C");
  ASSERT_EQ(counters.size(), 3u);
  EXPECT_EQ(counters[0]["args"]["allocated"], 17'179'869'184);
  EXPECT_EQ(counters[2]["args"]["activations"], 0);
  const auto marks = events(sample_timeline(), "i");
  ASSERT_EQ(marks.size(), 1u);
  EXPECT_EQ(marks[0]["name"], "iteration 1");
  const json other = json::parse(chrome_trace_json(sample_timeline()))["otherData"];
  EXPECT_EQ(other["hardware"], "h100-sxm-80");
  EXPECT_EQ(other["plan_digest"], "00ff");
  EXPECT_EQ(other["dropped_records"], "2");
}

TEST(ChromeTrace, SpansThatOverlapWithoutNestingGetARowEach) {
  Timeline t = sample_timeline();
  t.spans = {t.spans[0], t.spans[0], t.spans[0]};
  t.flows.clear();
  t.spans[1].start += 10'000;                               // sticks out behind the first
  t.spans[2].start += 20'000, t.spans[2].duration = 1'000;  // inside both
  const auto spans = events(t, "X");
  EXPECT_EQ(spans[0]["tid"], spans[2]["tid"]);
  EXPECT_NE(spans[0]["tid"], spans[1]["tid"]);
  EXPECT_EQ(threads_of_rank(t, 0).count("D compute (2)"), 1u);
}

TEST(ChromeTrace, AnEmptyTimelineIsStillATrace) {
  const json trace = json::parse(chrome_trace_json(Timeline{}));
  EXPECT_TRUE(trace["traceEvents"].empty());
}

TEST(ChromeTrace, TheFileIsGzippedIfItsNameSaysSo) {
  const std::string path = testing::temporary_path("x.json.gz");
  ASSERT_TRUE(write_chrome_trace(sample_timeline(), path).has_value());
  gzFile file = gzopen(path.c_str(), "rb");
  std::string text(1U << 20U, '\0');
  const int got = gzread(file, text.data(), static_cast<unsigned>(text.size()));
  EXPECT_EQ(gzdirect(file), 0) << "really gzipped";
  gzclose(file);
  std::remove(path.c_str());
  ASSERT_GT(got, 0);
  text.resize(static_cast<std::size_t>(got));
  EXPECT_EQ(text, chrome_trace_json(sample_timeline()));
}

TEST(ChromeTrace, AFileThatCannotBeWrittenIsAnError) {
  const auto written = write_chrome_trace(sample_timeline(), "/nowhere/at/all.json");
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::NotFound);
}

}  // namespace
}  // namespace foreshard
