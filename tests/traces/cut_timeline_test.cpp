// A part of a recording: what is kept, and that it can be read as a recording again.
#include "traces/timeline/cut_timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_path.h"
#include "tests/traces/sample_timeline.h"
#include "traces/formats/fst.h"
#include "traces/formats/open_trace.h"

namespace foreshard {
namespace {

std::vector<SimTime> starts(const Timeline& timeline) {
  std::vector<SimTime> all;
  for (const Span& span : timeline.spans) all.push_back(span.start);
  return all;
}

TEST(CutTimeline, KeepsWholeWhateverTouchesTheRange) {
  const Timeline whole = sample_timeline();
  const TimelineCut part = cut_timeline(whole, {}, {5'001, 60'000});
  EXPECT_EQ(starts(part.timeline), (std::vector<SimTime>{5'001, 1'250, 10'000}));
  EXPECT_EQ(part.timeline.spans[0], whole.spans[0]);
  EXPECT_TRUE(part.timeline.flows.empty()) << "its call ended before";
  EXPECT_TRUE(part.timeline.marks.empty()) << "the range ends before it";
  EXPECT_EQ(part.timeline.lanes, whole.lanes);
  ASSERT_EQ(part.timeline.samples.size(), 2u);
  EXPECT_EQ(part.timeline.samples[0], (CounterSample{CounterId(0), 5'001, 512})) << "the value at the begin";
  EXPECT_EQ(part.timeline.samples[1], (CounterSample{CounterId(1), 5'001, 0}));

  const TimelineCut early = cut_timeline(whole, {}, {0, 6'000});
  ASSERT_EQ(early.timeline.flows.size(), 1u);
  EXPECT_EQ(early.timeline.spans[early.timeline.flows[0].from.index()].kind, SpanKind::HostIssue);
  EXPECT_EQ(early.timeline.spans[early.timeline.flows[0].to.index()].start, 5'001);
}

TEST(CutTimeline, TheWholeRangeIsTheWholeRecording) {
  const Timeline whole = sample_timeline();
  EXPECT_EQ(cut_timeline(whole, {}, {-1'000, 1'000'000}).timeline, whole);
}

TEST(CutTimeline, ArgumentsFollowTheirSlices) {
  Timeline whole = sample_timeline();
  SliceArguments arguments;
  arguments.row_of_span = {2, 0, SliceArguments::kNone, 1, 3, SliceArguments::kNone};
  arguments.columns.push_back({"grid", {0, 2, 3}, {10, 12, 13}, {}, {}});
  arguments.columns.push_back(
      {"stack", {}, {}, {1, 2}, {arguments.texts.add("\"one\""), arguments.texts.add("\"two\"")}});
  arguments.columns.push_back({"elsewhere", {0}, {7}, {}, {}});
  const TimelineCut part = cut_timeline(whole, arguments, {5'001, 60'000});
  ASSERT_EQ(part.timeline.spans.size(), 3u);
  EXPECT_EQ(part.arguments.of(SpanId(0), "grid")->number, 12);
  EXPECT_EQ(part.arguments.of(SpanId(0), "stack")->json, "\"two\"");
  EXPECT_EQ(part.arguments.of(SpanId(1), "stack")->json, "\"one\"");
  EXPECT_EQ(part.arguments.of(SpanId(2), "grid")->number, 13);
  EXPECT_EQ(part.arguments.columns.size(), 2u) << "no slice of the range says the third";
  EXPECT_EQ(part.arguments.texts.size(), 2u);

  const std::string path = testing::temporary_path("part.fst");
  ASSERT_TRUE(write_fst(part.timeline, path, part.arguments).has_value());
  const auto read = open_trace(path);
  ASSERT_TRUE(read.has_value()) << to_text(read.error());
  ASSERT_EQ(read->timeline.spans.size(), 3u);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace foreshard
