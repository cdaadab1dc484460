#include "traces/formats/open_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/traces/sample_timeline.h"
#include "tests/traces/trace_files.h"
#include "traces/formats/chrome_trace.h"
#include "traces/formats/fst.h"

namespace foreshard {
namespace {

using testing::gzipped;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TraceFile;
using testing::zstd_packed;

std::string small_trace() {
  return R"({"schemaVersion": 1, "traceEvents": [
  {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 100, "dur": 5, "args": {"correlation": 1}},
  {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 110.5, "dur": 5, "args": {"correlation": 2}}
  ]})";
}

TEST(OpenTrace, ReadsOurOwnFileByItsContentWhateverItIsCalled) {
  const TraceFile path("timeline.json");
  ASSERT_TRUE(write_fst(sample_timeline(), path.path()).has_value());
  const auto opened = open_trace(path.path());
  ASSERT_TRUE(opened.has_value()) << to_text(opened.error());
  EXPECT_EQ(opened->timeline, sample_timeline());
  EXPECT_EQ(opened->format, "fst");
}

TEST(OpenTrace, SamplesOfOneTimeKeepTheirNumberAndOrderInBothOfOurForms) {
  Timeline timeline = sample_timeline();
  timeline.samples = {{CounterId(0), 7'000, 512}, {CounterId(0), 7'000, 4'096}, {CounterId(0), 7'000, 1'024},
                      {CounterId(0), 9'000, 64},  {CounterId(1), 7'000, 12},    {CounterId(1), 7'000, 3}};
  const auto read = [](const std::string& path) {
    const auto opened = open_trace(path);
    EXPECT_TRUE(opened.has_value());
    std::vector<std::pair<std::string, std::int64_t>> samples;
    if (!opened) return samples;
    for (const CounterSample& s : opened->timeline.samples)
      samples.emplace_back(opened->timeline.counters[s.counter.index()].name, s.value);
    return samples;
  };
  const TraceFile fst("timeline.fst"), json("timeline.json", chrome_trace_json(timeline));
  ASSERT_TRUE(write_fst(timeline, fst.path()).has_value());
  const std::vector<std::pair<std::string, std::int64_t>> expected{
      {"allocated", 512}, {"allocated", 4'096},         {"allocated", 1'024},
      {"allocated", 64},  {"category:activations", 12}, {"category:activations", 3}};
  EXPECT_EQ(read(fst.path()), expected);
  EXPECT_EQ(read(json.path()), expected);
}

TEST(OpenTrace, PackedFilesAreWhatTheyHold) {
  const TraceFile path("trace.bin");
  for (const std::string& bytes :
       {small_trace(), gzipped(small_trace()), zstd_packed(small_trace()), "\xef\xbb\xbf" + small_trace(),
        gzipped(small_trace().substr(0, 60)) + gzipped(small_trace().substr(60))}) {
    path.write(bytes);
    const auto opened = open_trace(path.path());
    ASSERT_TRUE(opened.has_value()) << to_text(opened.error());
    EXPECT_EQ(opened->format, "kineto");
    ASSERT_EQ(opened->timeline.spans.size(), 2u);
    EXPECT_EQ(opened->timeline.spans[1].start, 10'500);
    EXPECT_THAT(opened->warnings, IsEmpty());
  }
}

TEST(OpenTrace, APackedFileThatBreaksOffGivesWhatIsThereAndAWarning) {
  std::string events = R"({"traceEvents": [)";
  for (int i = 0; i < 5'000; ++i)
    events += R"({"ph":"X","cat":"kernel","name":"k)" + std::to_string(i * 7919 % 4999) + R"(","pid":0,"tid":7,"ts":)" +
              std::to_string(i) + R"(,"dur":1},)";
  events.back() = ']';
  events += "}";
  const std::string whole = gzipped(events);
  const TraceFile path("trace.json.gz");
  path.write(whole.substr(0, whole.size() / 2));
  const auto opened = open_trace(path.path());
  ASSERT_TRUE(opened.has_value()) << to_text(opened.error());
  EXPECT_GT(opened->timeline.spans.size(), 1'000u);
  EXPECT_LT(opened->timeline.spans.size(), 5'000u);
  ASSERT_EQ(opened->warnings.size(), 1u);
  EXPECT_THAT(opened->warnings[0].text, HasSubstr("truncated"));
  EXPECT_EQ(opened->warnings[0].place, path.path());
}

TEST(OpenTrace, WhatIsNoRecordingIsAnErrorThatNamesTheFile) {
  const TraceFile path("notes.txt");
  for (const char* bytes : {"", "hello", "{\"a\": 1}", "{", "\x1f\x8b",
                            "\x89"
                            "FST",
                            "   "}) {
    path.write(bytes);
    const auto opened = open_trace(path.path());
    ASSERT_FALSE(opened.has_value()) << bytes;
    EXPECT_EQ(opened.error().file, path.path()) << bytes;
  }
  EXPECT_EQ(open_trace("/nowhere/at.all").error().code, ErrorCode::NotFound);
  EXPECT_EQ(open_trace(std::filesystem::temp_directory_path().string()).error().code, ErrorCode::NotFound);
}

TEST(OpenTrace, TheReaderCanBeStopped) {
  const TraceFile path("trace.json");
  path.write(small_trace());
  OpenOptions options;
  double last = -1;
  options.progress = [&](double fraction) {
    last = fraction;
    return false;
  };
  EXPECT_FALSE(open_trace(path.path(), options).has_value());
  EXPECT_EQ(last, 1.0);
}

}  // namespace
}  // namespace foreshard
