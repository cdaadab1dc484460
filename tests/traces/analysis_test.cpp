#include "traces/analysis/analysis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "traces/analysis/range_statistics.h"
#include "traces/formats/open_trace.h"
#include "traces/timeline/intervals.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;

constexpr SimDuration kUs = kMicrosecond;

Span span_of(int lane, SpanKind kind, SimTime start, SimDuration duration) {
  Span span;
  span.lane = LaneId(lane), span.kind = kind, span.start = start, span.duration = duration;
  return span;
}

/// D:    [0 10)            [50 ---- 90)   [95 100)     in microseconds
/// U:         [20 ------ 60)
/// host: the second work of D was called at 45, the third at 60
Timeline three_gaps() {
  Timeline t;
  t.lanes = {{0, "D"}, {0, "U"}, {0, "host"}};
  t.spans = {span_of(0, SpanKind::Compute, 0, 10 * kUs),         span_of(0, SpanKind::Compute, 50 * kUs, 40 * kUs),
             span_of(0, SpanKind::Copy, 95 * kUs, 5 * kUs),      span_of(1, SpanKind::AllGather, 20 * kUs, 40 * kUs),
             span_of(2, SpanKind::HostIssue, 45 * kUs, 2 * kUs), span_of(2, SpanKind::HostIssue, 60 * kUs, 2 * kUs)};
  t.flows = {{SpanId(4), SpanId(1)}, {SpanId(5), SpanId(2)}};
  return t;
}

TEST(Analysis, TakesTheTimeOfARankApart) {
  const auto ranks = analyse_timeline(three_gaps());
  ASSERT_TRUE(ranks.has_value());
  const RankAnalysis& rank = ranks->at(0);
  EXPECT_EQ(rank.length(), 100 * kUs);
  EXPECT_EQ(rank.busy, (10 + 70 + 5) * kUs) << "20 to 90 without a hole";
  EXPECT_EQ(rank.compute, 50 * kUs);
  EXPECT_EQ(rank.comm, 40 * kUs);
  EXPECT_EQ(rank.overlap, 10 * kUs);
  EXPECT_EQ(rank.exposed(), 30 * kUs);
  EXPECT_EQ(rank.idle, (IdleTime{0, 15 * kUs, 0})) << "10 to 20 and 90 to 95: launched in time, and short";
  EXPECT_EQ(rank.busy + rank.idle.total(), rank.length());
}

TEST(Analysis, AStreamsIdleTimeHasTheCauseOfWhatEndsIt) {
  AnalysisOptions options;
  options.kernel_gap = 5 * kUs;
  const auto ranks = analyse_timeline(three_gaps(), options);
  ASSERT_TRUE(ranks.has_value());
  ASSERT_EQ(ranks->at(0).streams.size(), 2u);
  const StreamAnalysis& compute = ranks->at(0).streams[0];
  EXPECT_EQ(compute.busy, 55 * kUs);
  EXPECT_EQ(compute.idle, (IdleTime{40 * kUs, 0, 5 * kUs})) << "launched at 45, after the stream fell idle at 10";
  EXPECT_EQ(ranks->at(0).idle, (IdleTime{0, 0, 15 * kUs})) << "not shorter than the limit";
}

TEST(Analysis, OnlyTheWindowCounts) {
  AnalysisOptions options;
  options.from = 20 * kUs;
  options.to = 95 * kUs;
  const auto ranks = analyse_timeline(three_gaps(), options);
  ASSERT_TRUE(ranks.has_value());
  EXPECT_EQ(ranks->at(0).begin, 20 * kUs);
  EXPECT_EQ(ranks->at(0).end, 90 * kUs);
  EXPECT_EQ(ranks->at(0).idle.total(), 0);
  options.to = 20 * kUs;
  EXPECT_EQ(analyse_timeline(three_gaps(), options).error().code, ErrorCode::OutOfRange);
  options.to = 95 * kUs;
  options.rank = 7;
  EXPECT_EQ(analyse_timeline(three_gaps(), options).error().expected, "0");
}

TEST(Analysis, TheCriticalPathGoesThroughStreamsLaunchesAndTheHost) {
  const auto ranks = analyse_timeline(three_gaps());
  ASSERT_TRUE(ranks.has_value());
  const std::vector<PathStep> path = ranks->at(0).critical_path;
  ASSERT_FALSE(path.empty());
  for (std::size_t i = 1; i < path.size(); ++i) EXPECT_EQ(path[i].begin, path[i - 1].end) << "no holes";
  EXPECT_EQ(path.front().begin, 0);
  EXPECT_EQ(path.back().end, 100 * kUs);
  std::vector<std::string> told;
  for (const PathStep& step : path)
    told.push_back(std::string(path_cause_name(step.cause)) + " " + std::to_string((step.end - step.begin) / kUs));
  // The second work of D waited for its launch at 45; the copy behind it for D alone.
  EXPECT_THAT(told, ElementsAre("host 45", "launch 5", "work 40", "gap 5", "work 5"));
}

TEST(Analysis, AHostThatWaitedForTheDeviceLeadsBackToTheDevice) {
  Timeline t;
  t.lanes = {{0, "D"}, {0, "host"}};
  t.spans = {span_of(0, SpanKind::Compute, 10, 90), span_of(0, SpanKind::Compute, 130, 20),
             span_of(1, SpanKind::HostIssue, 5, 2), span_of(1, SpanKind::HostWait, 20, 85),
             span_of(1, SpanKind::HostIssue, 120, 5)};
  t.flows = {{SpanId(2), SpanId(0)}, {SpanId(4), SpanId(1)}};
  const std::vector<PathStep> path = find_critical_path(t, 0, 0, 1'000);
  ASSERT_EQ(path.size(), 6u);
  EXPECT_EQ(path[0], (PathStep{PathCause::Host, SpanId(2), 0, 5}));
  EXPECT_EQ(path[1], (PathStep{PathCause::Launch, SpanId(0), 5, 10}));
  EXPECT_EQ(path[2], (PathStep{PathCause::Work, SpanId(0), 10, 100}));
  EXPECT_EQ(path[3], (PathStep{PathCause::Host, SpanId(4), 100, 120}));
  EXPECT_EQ(path[4], (PathStep{PathCause::Launch, SpanId(1), 120, 130}));
  EXPECT_EQ(path[5], (PathStep{PathCause::Work, SpanId(1), 130, 150}));
}

std::vector<std::string> told_path(const Timeline& t, const std::vector<PathStep>& path) {
  std::vector<std::string> told;
  for (const PathStep& step : path) {
    const Span& span = t.spans[step.span.index()];
    told.push_back(std::string(path_cause_name(step.cause)) + " " + t.lanes[span.lane.index()].stream + " " +
                   std::to_string((step.end - step.begin) / kUs));
  }
  return told;
}

/// host:   [0 ----- forward ----- 100)                                     [405 optimizer 425)
/// host 2:                            [110 ------- backward ------ 395)
/// D:         [30 ------------- 250)                               [390 - 400)      [415 .. 430)
TEST(Analysis, TheCriticalPathLeavesAThreadThatWaitedForAnothersTurn) {
  Timeline t;
  t.lanes = {{0, "D"}, {0, "host"}, {0, "host 2"}};
  t.spans = {span_of(0, SpanKind::Compute, 30 * kUs, 220 * kUs),  span_of(0, SpanKind::Compute, 390 * kUs, 10 * kUs),
             span_of(0, SpanKind::Compute, 415 * kUs, 15 * kUs),  span_of(1, SpanKind::HostIssue, 0, 100 * kUs),
             span_of(1, SpanKind::HostIssue, 20 * kUs, 5 * kUs),  span_of(1, SpanKind::HostIssue, 405 * kUs, 20 * kUs),
             span_of(1, SpanKind::HostIssue, 410 * kUs, 3 * kUs), span_of(2, SpanKind::HostIssue, 110 * kUs, 285 * kUs),
             span_of(2, SpanKind::HostIssue, 380 * kUs, 5 * kUs)};
  t.flows = {{SpanId(4), SpanId(0)}, {SpanId(8), SpanId(1)}, {SpanId(6), SpanId(2)}};
  // From the last kernel: its launch, the optimizer's thread, which had its turn when backward's was over, and that one
  // when forward's was.
  EXPECT_THAT(told_path(t, find_critical_path(t, 0, 0, 1'000 * kUs)),
              ElementsAre("host host 100", "host host 2 295", "host host 15", "launch D 5", "work D 15"));
}

/// The queue is full: the third launch comes back when the first kernel has ended, so the device decides, not the host.
TEST(Analysis, ALaunchThatFoundTheQueueFullLeadsBackToTheDevice) {
  Timeline t;
  t.names = {"cudaLaunchKernel"};
  t.lanes = {{0, "D"}, {0, "host"}};
  t.spans = {span_of(0, SpanKind::Compute, 10 * kUs, 300 * kUs), span_of(0, SpanKind::Compute, 330 * kUs, 20 * kUs),
             span_of(1, SpanKind::HostIssue, 0, 5 * kUs), span_of(1, SpanKind::HostIssue, 10 * kUs, 302 * kUs),
             span_of(1, SpanKind::HostIssue, 320 * kUs, 5 * kUs)};
  for (std::size_t call = 2; call < 5; ++call) t.spans[call].name = NameId(0);
  t.flows = {{SpanId(2), SpanId(0)}, {SpanId(4), SpanId(1)}};
  EXPECT_THAT(told_path(t, find_critical_path(t, 0, 0, 1'000 * kUs)),
              ElementsAre("launch D 10", "work D 300", "host host 10", "launch D 10", "work D 20"));
}

TEST(Analysis, UnitsCollectivesAndMemoryOfAForeignRecording) {
  const auto opened = open_trace(FORESHARD_TEST_DATA "/traces/fsdp2_step.json");
  ASSERT_TRUE(opened.has_value());
  const auto ranks = analyse_timeline(opened->timeline);
  ASSERT_TRUE(ranks.has_value());
  const RankAnalysis& rank = ranks->at(0);
  EXPECT_EQ(rank.rank, 3);
  ASSERT_EQ(rank.collectives.size(), 2u);
  EXPECT_EQ(rank.collectives[0].kind, SpanKind::AllGather);
  EXPECT_EQ(rank.collectives[0].count, 2);
  EXPECT_EQ(rank.collectives[0].bytes, 24'000);
  EXPECT_EQ(rank.collectives[0].exposed, 40'000 + 25'000) << "the second under 75 us of computing";
  EXPECT_EQ(rank.units[0].unit, "layers.0");
  EXPECT_EQ(rank.units[0].comm + rank.units[0].copies, 208'000);
  ASSERT_EQ(rank.memory.size(), 3u);
  EXPECT_EQ(rank.memory[0].peak, 5'000);
  EXPECT_EQ(rank.memory[0].during, "aten::mm");
}

TEST(Analysis, APeakBeforeAnySliceHasItsTime) {
  const auto opened = open_trace(FORESHARD_TEST_DATA "/traces/snapshot.pickle");
  ASSERT_TRUE(opened.has_value());
  const auto ranks = analyse_timeline(opened->timeline);
  ASSERT_TRUE(ranks.has_value());
  ASSERT_EQ(ranks->at(0).memory.size(), 3u);
  EXPECT_EQ(ranks->at(0).memory[0].counter, "reserved");
  EXPECT_EQ(ranks->at(0).memory[0].time, 0);
  EXPECT_EQ(ranks->at(0).memory[1].peak, 1'700);
  EXPECT_EQ(ranks->at(0).memory[1].at_end, 700);
}

TEST(RangeStatistics, AgreesWithTheAnalysisOnTheWholeAndWithCountingOnAnyWindow) {
  std::mt19937 random(7);
  Timeline t;
  t.lanes = {{0, "D"}, {0, "U"}, {1, "D"}};
  for (int lane = 0; lane < 3; ++lane) {
    SimTime at = 0;
    for (int i = 0; i < 40; ++i) {
      at += static_cast<SimTime>(random() % 20);
      const auto kind = lane == 1 ? SpanKind::AllGather : random() % 4 == 0 ? SpanKind::Copy : SpanKind::Compute;
      t.spans.push_back(span_of(lane, kind, at, static_cast<SimDuration>(random() % 25)));  // some overlap
    }
  }
  const RangeStatistics statistics(t);
  const auto counted = [&](SimTime begin, SimTime end, auto what) {
    SimDuration sum = 0;
    for (SimTime at = begin; at < end; ++at) sum += what(at) ? 1 : 0;
    return sum;
  };
  const auto runs = [&](SimTime at, auto which) {
    for (const Span& s : t.spans) {
      if (t.lanes[s.lane.index()].rank == 0 && which(s.kind) && s.start <= at && at < s.start + s.duration) return true;
    }
    return false;
  };
  for (const auto& [begin, end] :
       {std::pair<SimTime, SimTime>{0, 2'000}, {100, 101}, {137, 290}, {300, 300}, {400, 120}, {-50, 60}}) {
    const RankStatistics rank = statistics.rank(0, begin, end);
    EXPECT_EQ(rank.busy, counted(begin, end, [&](SimTime at) { return runs(at, is_device_work); })) << begin;
    EXPECT_EQ(rank.compute, counted(begin, end, [&](SimTime at) { return runs(at, is_computing); })) << begin;
    EXPECT_EQ(rank.overlap, counted(begin, end,
                                    [&](SimTime at) {
                                      return runs(at, is_computing) &&
                                             runs(at, [](SpanKind k) { return k == SpanKind::AllGather; });
                                    }))
        << begin;
    EXPECT_EQ(rank.exposed(), rank.comm - rank.overlap);
  }
  const auto ranks = analyse_timeline(t);
  ASSERT_TRUE(ranks.has_value());
  EXPECT_EQ(ranks->at(0).busy, statistics.rank(0, statistics.begin(), statistics.end()).busy);
  EXPECT_EQ(statistics.rank(9, 0, 100).busy, 0) << "no such rank";
}

TEST(RangeStatistics, KnowsTheHighestOfACounterInAnyWindow) {
  std::mt19937 random(3);
  Timeline t;
  t.counters = {{0, "allocated", "bytes"}, {0, "empty", "bytes"}};
  for (int i = 0; i < 77; ++i) t.samples.push_back({CounterId(0), 10 * i, static_cast<std::int64_t>(random() % 50)});
  const RangeStatistics statistics(t);
  for (SimTime begin = -5; begin < 780; begin += 13) {
    for (SimTime end = begin + 1; end < 800; end += 37) {
      std::int64_t high = 0, low = 0, before = 0;
      SimTime high_at = begin;
      for (const CounterSample& s : t.samples) before = s.time <= begin ? s.value : before;
      high = low = before;
      for (const CounterSample& s : t.samples) {
        if (s.time <= begin || s.time >= end) continue;
        if (s.value > high) high = s.value, high_at = s.time;
        low = std::min(low, s.value);
      }
      const CounterStatistics c = statistics.counter(CounterId(0), begin, end);
      ASSERT_EQ(c.peak, high) << begin << " " << end;
      ASSERT_EQ(c.low, low) << begin << " " << end;
      ASSERT_EQ(c.peak_at, high_at) << begin << " " << end;
      ASSERT_EQ(c.at_begin, before);
    }
  }
  EXPECT_EQ(statistics.counter(CounterId(1), 0, 100).peak, 0);
}

TEST(RangeStatistics, SeveralSamplesAtTheBeginOfAWindowAreAllInIt) {
  Timeline t;
  t.counters = {{0, "allocated", "bytes"}};
  for (const std::int64_t value : {70, 10, 20}) t.samples.push_back({CounterId(0), 0, value});
  t.samples.push_back({CounterId(0), 5, 60});
  const CounterStatistics c = RangeStatistics(t).counter(CounterId(0), 0, 9);
  EXPECT_EQ(c.peak, 70);
  EXPECT_EQ(c.low, 10);
  EXPECT_EQ(c.at_begin, 20);
  EXPECT_EQ(c.at_end, 60);
}

TEST(Intervals, MergeIntersectAndCover) {
  const std::vector<Interval> merged = merge_intervals({{5, 9}, {1, 3}, {3, 4}, {8, 12}, {20, 20}});
  EXPECT_THAT(merged, ElementsAre(Interval{1, 4}, Interval{5, 12}));
  EXPECT_THAT(intersect_intervals(merged, {{0, 2}, {3, 6}, {11, 30}}),
              ElementsAre(Interval{1, 2}, Interval{3, 4}, Interval{5, 6}, Interval{11, 12}));
  EXPECT_EQ(length_of(merged), 10);
  const IntervalIndex index(merged);
  EXPECT_EQ(index.covered(0, 100), 10);
  EXPECT_EQ(index.covered(2, 6), 3);
  EXPECT_EQ(index.covered(4, 5), 0);
  EXPECT_EQ(index.covered(6, 2), 0);
}

}  // namespace
}  // namespace foreshard
