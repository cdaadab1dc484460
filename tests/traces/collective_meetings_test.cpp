#include "traces/analysis/collective_meetings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foreshard {
namespace {

constexpr SimDuration kUs = kMicrosecond;

struct Arrival {
  SimTime start, end;  // microseconds
};

/// One all-gather a rank, all called "mesh_shard".
Timeline gathers(const std::vector<Arrival>& arrivals) {
  Timeline t;
  t.names = {"", "mesh_shard"};
  for (std::size_t rank = 0; rank < arrivals.size(); ++rank) {
    t.lanes.push_back({static_cast<std::int32_t>(rank), "A"});
    Span span;
    span.lane = LaneId(rank);
    span.kind = SpanKind::AllGather;
    span.start = arrivals[rank].start * kUs;
    span.duration = (arrivals[rank].end - arrivals[rank].start) * kUs;
    span.communicator = NameId(1);
    t.spans.push_back(span);
  }
  return t;
}

std::vector<std::int32_t> ranks_in(const CollectiveMeeting& meeting) {
  std::vector<std::int32_t> ranks;
  for (const MeetingMember& member : meeting.members) ranks.push_back(member.rank);
  return ranks;
}

TEST(CollectiveMeetings, TheLastToComeIsWaitedFor) {
  const auto meetings = find_meetings(gathers({{0, 900}, {100, 905}, {700, 902}}));
  ASSERT_EQ(meetings.size(), 1u);
  EXPECT_THAT(ranks_in(meetings[0]), testing::ElementsAre(0, 1, 2));
  EXPECT_EQ(meetings[0].lateness, 600 * kUs);
}

TEST(CollectiveMeetings, GroupsOfAMeshThatShareANameAreApart) {
  // 0 and 2 leave at 400, 1 and 3 at 1,500: all four overlap in time.
  const auto meetings = find_meetings(gathers({{0, 400}, {50, 1500}, {100, 404}, {380, 1502}}));
  ASSERT_EQ(meetings.size(), 2u);
  EXPECT_THAT(ranks_in(meetings[0]), testing::ElementsAre(0, 2));
  EXPECT_THAT(ranks_in(meetings[1]), testing::ElementsAre(1, 3));
  const auto table = straggler_table(meetings);
  for (const StragglerRow& row : table) EXPECT_EQ(row.meetings, 1) << "those that it took part in";
}

TEST(CollectiveMeetings, WhoLeavesAloneMetNobody) {
  EXPECT_TRUE(find_meetings(gathers({{0, 400}, {300, 2500}})).empty());
}

}  // namespace
}  // namespace foreshard
