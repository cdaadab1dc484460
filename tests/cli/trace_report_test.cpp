#include "cli/reports/trace_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foreshard::cli {
namespace {

using ::testing::HasSubstr;

const std::string kFsdp2 = FORESHARD_TEST_DATA "/traces/fsdp2_step.json";

std::string report(int top) {
  const auto opened = open_traces({kFsdp2});
  EXPECT_TRUE(opened.has_value());
  const auto ranks = analyse_timeline(opened->timeline);
  EXPECT_TRUE(ranks.has_value());
  return analysis_report(*opened, *ranks, {{"step.json"}, top}, {});
}

TEST(TraceReport, TellsTimeByCauseStreamCollectiveUnitMemoryAndPath) {
  const std::string text = report(10);
  EXPECT_THAT(text, HasSubstr("kineto recording of 1 rank on NVIDIA H100 80GB HBM3"));
  EXPECT_THAT(text, HasSubstr("first to last work              730 us    100 %"));
  EXPECT_THAT(text, HasSubstr("    exposed"));
  EXPECT_THAT(text, HasSubstr("  A (stream 24)"));
  EXPECT_THAT(text, HasSubstr("  reduce_scatter"));
  EXPECT_THAT(text, HasSubstr("  layers.0 post_backward"));
  EXPECT_THAT(text, HasSubstr("  allocated"));
  EXPECT_THAT(text, HasSubstr("aten::mm"));
  EXPECT_THAT(text, HasSubstr("  Critical path"));
  EXPECT_THAT(report(2), HasSubstr("more (--top 0 shows all)"));
}

TEST(TraceReport, NeighboursOnThePathThatAreAlikeAreOne) {
  Timeline t;
  t.lanes = {{0, "D"}};
  t.names = {"short", "long"};
  for (const SimDuration duration : {10, 30, 20}) {
    Span span;
    span.lane = LaneId(0), span.kind = SpanKind::Compute, span.duration = duration;
    span.name = NameId(duration == 30 ? 1 : 0);
    t.spans.push_back(span);
  }
  const auto stretches = path_stretches(t, {{PathCause::Host, SpanId(0), 0, 5},
                                            {PathCause::Work, SpanId(0), 5, 15},
                                            {PathCause::Work, SpanId(1), 15, 45},
                                            {PathCause::Work, SpanId(2), 45, 65}});
  ASSERT_EQ(stretches.size(), 2u);
  EXPECT_EQ(stretches[1].steps, 3);
  EXPECT_EQ(stretches[1].name, "long");
  EXPECT_EQ(stretches[1].begin, 5);
  EXPECT_EQ(stretches[1].end, 65);
}

TEST(TraceReport, TimesHaveUnits) {
  EXPECT_EQ(time_of_text("--from", "12ms"), 12'000'000);
  EXPECT_EQ(time_of_text("--from", "1.5 s"), 1'500'000'000);
  EXPECT_EQ(time_of_text("--from", "300us"), 300'000);
  EXPECT_EQ(time_of_text("--from", "7"), 7);
  for (const char* wrong : {"", "soon", "-3ms", "3 days", "1e30s", "nan"})
    EXPECT_EQ(time_of_text("--from", wrong).error().code, ErrorCode::Usage) << wrong;
}

}  // namespace
}  // namespace foreshard::cli
