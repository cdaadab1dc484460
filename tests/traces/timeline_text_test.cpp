#include "traces/formats/timeline_text.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/plan.h"

namespace foreshard {
namespace {

Span span(int lane, SpanKind kind, SimTime start, SimTime end, Phase phase = Phase::None) {
  Span s;
  s.lane = LaneId(lane), s.kind = kind, s.start = start, s.duration = end - start, s.phase = static_cast<int>(phase);
  return s;
}

// 40 ms: gather 0-10, forward 10-20, backward 20-40 with a reduction 30-40 behind it.
Timeline step() {
  Timeline t;
  t.lanes = {{0, "host", 0}, {0, "D", 0}, {0, "U", 0}, {0, "G", 0}};
  const SimTime ms = kMillisecond;
  t.spans = {span(0, SpanKind::HostIssue, 0, 10 * ms),
             span(0, SpanKind::HostWait, 10 * ms, 20 * ms),
             span(1, SpanKind::Compute, 10 * ms, 20 * ms, Phase::Forward),
             span(1, SpanKind::Compute, 20 * ms, 40 * ms, Phase::Backward),
             span(2, SpanKind::AllGather, 0, 10 * ms),
             span(3, SpanKind::ReduceScatter, 30 * ms, 40 * ms)};
  return t;
}

TEST(TimelineText, DrawsOneRowAStreamWithExposedCommunicationAndAnAxis) {
  TimelineTextOptions options;
  options.width = 40;
  options.unicode = false;
  EXPECT_EQ(draw_timeline(step(), options),
            "                           |forward  |backward\n"
            "host             ##########~~~~~~~~~~\n"
            "D compute                  ##############################\n"
            "U all-gather     ##########\n"
            "G reduce-scatter                               ##########\n"
            "exposed comm     ##########\n"
            "                 0 ms      10        20        30\n");
}

TEST(TimelineText, UnicodeAndPlainDrawingsHaveTheSameShape) {
  TimelineTextOptions options;
  const std::string unicode = draw_timeline(step(), options);
  options.unicode = false;
  const std::string plain = draw_timeline(step(), options);
  EXPECT_NE(unicode.find("█"), std::string::npos);
  EXPECT_TRUE(std::all_of(plain.begin(), plain.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
  EXPECT_EQ(std::count(unicode.begin(), unicode.end(), '\n'), std::count(plain.begin(), plain.end(), '\n'));
}

TEST(TimelineText, AHalfBusyColumnIsHalfAsHigh) {
  Timeline t = step();
  t.spans = {span(1, SpanKind::Compute, 0, 500, Phase::Forward),
             span(1, SpanKind::Compute, 20'000, 40'000, Phase::Forward)};
  TimelineTextOptions options;
  options.width = 40;
  EXPECT_NE(draw_timeline(t, options).find("D compute        ▄ "), std::string::npos);
}

TEST(TimelineText, AWindowShowsOnlyItself) {
  TimelineTextOptions options;
  options.width = 40;
  options.unicode = false;
  options.start = 20 * kMillisecond;
  options.end = 40 * kMillisecond;
  const std::string text = draw_timeline(step(), options);
  EXPECT_EQ(text.find("forward"), std::string::npos);
  EXPECT_EQ(text.find("U all-gather"), std::string::npos) << "a stream on which nothing ran is left out";
  EXPECT_NE(text.find("D compute        ########################################"), std::string::npos);
}

TEST(TimelineText, NothingRanNothingDrawn) {
  EXPECT_EQ(draw_timeline(Timeline{}, {}), "");
  TimelineTextOptions other_rank;
  other_rank.rank = 3;
  EXPECT_EQ(draw_timeline(step(), other_rank), "");
}

}  // namespace
}  // namespace foreshard
