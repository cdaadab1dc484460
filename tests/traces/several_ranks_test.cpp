#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/traces/trace_files.h"
#include "traces/encodings/tar_entries.h"
#include "traces/formats/open_trace.h"
#include "traces/timeline/clock_alignment.h"
#include "traces/timeline/iterations.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TraceFile;

/// A rank whose clock is `ahead` microseconds ahead; it begins its all-reduces at `starts` and all ranks leave them at
/// 1000, 2000, 3000.
std::string rank_trace(int rank, double ahead, const std::vector<double>& starts, bool says_rank = true) {
  std::string text = R"({"schemaVersion": 1, )";
  if (says_rank) text += R"("distributedInfo": {"rank": )" + std::to_string(rank) + R"(, "world_size": 2}, )";
  text += R"("traceEvents": [)";
  double leave = 0;
  for (const double start : starts) {
    leave += 1'000;
    text += R"({"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce_Sum_f32_RING_LL","pid":0,"tid":9,"ts":)" +
            std::to_string(start + ahead) + R"(,"dur":)" + std::to_string(leave - start) + "},";
  }
  text.back() = ']';
  return text + "}";
}

std::vector<SimTime> ends_of(const Timeline& t, std::int32_t rank) {
  std::vector<SimTime> ends;
  for (const Span& span : t.spans) {
    if (t.lanes[span.lane.index()].rank == rank) ends.push_back(span.start + span.duration);
  }
  return ends;
}

TEST(SeveralRanks, LeaveTheirCollectivesTogetherWhateverTheirClocksSay) {
  const TraceFile a("a.json", rank_trace(0, 0, {100, 1'100, 2'100})),
      b("b.json", rank_trace(1, 5'000, {400, 1'900, 2'050}));
  const auto opened = open_traces({a.path(), b.path()});
  ASSERT_TRUE(opened.has_value()) << to_text(opened.error());
  EXPECT_THAT(ranks_of(opened->timeline), ElementsAre(0, 1));
  EXPECT_EQ(ends_of(opened->timeline, 0), ends_of(opened->timeline, 1));
  EXPECT_EQ(ends_of(opened->timeline, 0).front(), 900'000) << "the earliest work is at 0";
  EXPECT_THAT(opened->warnings, IsEmpty());
  EXPECT_EQ(opened->world_size, 2);
  EXPECT_THAT(opened->timeline.provenance.clock, HasSubstr("collectives"));
}

TEST(SeveralRanks, AnArchiveOfThemIsOneTimeline) {
  const std::string archive =
      testing::tar_of({{"job/rank1.json", rank_trace(1, 70, {400, 1'900, 2'050})},
                       {"job/._rank1.json", "Mac OS X"},
                       {"job/readme.txt", "hello"},
                       {"job/rank0.json.gz", testing::gzipped(rank_trace(0, 0, {100, 1'100, 2'100}))}});
  const TraceFile file("job.tar.gz", testing::gzipped(archive));
  const auto opened = open_trace(file.path());
  ASSERT_TRUE(opened.has_value()) << to_text(opened.error());
  EXPECT_THAT(ranks_of(opened->timeline), ElementsAre(0, 1));
  EXPECT_EQ(ends_of(opened->timeline, 0), ends_of(opened->timeline, 1));
  ASSERT_EQ(opened->warnings.size(), 1u);
  EXPECT_THAT(opened->warnings[0].place, HasSubstr("job/readme.txt"));
  file.write(archive.substr(0, 900));
  const auto cut = open_trace(file.path());
  ASSERT_TRUE(cut.has_value()) << to_text(cut.error());
  EXPECT_FALSE(cut->warnings.empty());
}

TEST(SeveralRanks, WithoutCommonCollectivesUnixTimeDecidesAndWithoutThatAWarningSaysSo) {
  OpenedTrace a, b;
  for (OpenedTrace* trace : {&a, &b}) {
    trace->timeline.lanes = {{0, "D"}};
    trace->timeline.spans.resize(1);
    trace->timeline.spans[0].lane = LaneId(0);
    trace->timeline.spans[0].kind = SpanKind::Compute;
    trace->timeline.spans[0].duration = 10;
  }
  a.origin_ns = 5'000;
  b.origin_ns = 4'000;
  OpenedTrace joined = join_ranks({a, b}, {"a", "b"});
  EXPECT_EQ(joined.timeline.spans[0].start, 1'000);
  EXPECT_EQ(joined.timeline.spans[1].start, 0);
  EXPECT_EQ(joined.origin_ns, 4'000);
  EXPECT_THAT(ranks_of(joined.timeline), ElementsAre(0, 1)) << "both said rank 0";
  EXPECT_EQ(joined.warnings.size(), 1u);
  b.origin_ns.reset();
  joined = join_ranks({a, b}, {"a", "b"});
  ASSERT_EQ(joined.warnings.size(), 2u);
  EXPECT_THAT(joined.warnings[1].text, HasSubstr("cannot be compared"));
}

TEST(TarEntries, AHeaderHasItsChecksum) {
  const std::string archive = testing::tar_of({{"x", "content"}});
  EXPECT_TRUE(is_tar_header(std::string_view(archive).substr(0, 512)));
  std::string broken = archive;
  broken[3] ^= 1;
  EXPECT_FALSE(is_tar_header(std::string_view(broken).substr(0, 512)));
  EXPECT_FALSE(is_tar_header("short"));
}

}  // namespace
}  // namespace foreshard
