// Rules A1 to A15 with the specification's own numbers.
#include "sim/device/allocator/caching_allocator.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace foreshard {
namespace {

struct Device {
  explicit Device(AllocatorSettings settings = {}, Bytes memory = 80 * kGiB, ClockMode mode = ClockMode::Model)
      : driver(memory), clock(mode, 4), allocator(with_memory(settings, memory), driver, clock, 4) {}
  static AllocatorSettings with_memory(AllocatorSettings settings, Bytes memory) {
    settings.device_memory = memory;
    return settings;
  }
  DriverMemory driver;
  DeviceClock clock;
  CachingAllocator allocator;
};

TEST(AllocatorRounding, IsAMultipleOf512OrOfAPartOfAPowerOfTwo) {  // A1
  AllocatorSettings plain, quarters;
  quarters.power2_divisions = same_divisions(4);
  EXPECT_EQ(round_request(1, plain), 512);
  EXPECT_EQ(round_request(400, plain), 512);  // A15: a shard of 100 fp32 elements
  EXPECT_EQ(round_request(9000, plain), 9216);
  EXPECT_EQ(round_request(9000, quarters), 10240);
  EXPECT_EQ(round_request(1200, quarters), 1536);
}

TEST(Allocator, OfAHostCountsWhatWasAskedFor) {
  AllocatorSettings settings;
  settings.exact = true;
  Device d(settings);
  const BlockHandle odd = d.allocator.allocate(1001, 0), large = d.allocator.allocate(3 * kMiB + 7, 1);
  EXPECT_EQ(d.allocator.stats().allocated.current, 1001 + 3 * kMiB + 7);
  d.allocator.free(odd);
  const BlockHandle smaller = d.allocator.allocate(999, 0);
  EXPECT_EQ(d.allocator.block_bytes(smaller), 999);
  d.allocator.free(smaller);
  d.allocator.free(large);
  EXPECT_EQ(d.allocator.stats().allocated.current, 0);
}

TEST(AllocatorRounding, DivisionsFollowTheInterval) {  // A11
  AllocatorSettings settings;                          // 256:1, 512:2, 1024:4, above:8 in MiB
  for (std::size_t i = 0; i < 16; ++i) settings.power2_divisions[i] = i < 8 ? 1 : i == 8 ? 2 : i == 9 ? 4 : 8;
  EXPECT_EQ(round_request(300 * kMiB, settings), 384 * kMiB);
  EXPECT_EQ(round_request(1500 * kMiB, settings), 1536 * kMiB);
  EXPECT_EQ(round_request(200 * kMiB, settings), 200 * kMiB);
}

TEST(Allocator, SmallRequestsShareTwoMebibyteSegments) {  // A2, A3
  Device d;
  d.allocator.allocate(kMiB, 0);
  EXPECT_EQ(d.allocator.stats().reserved.current, 2 * kMiB);
  d.allocator.allocate(kMiB, 0);
  EXPECT_EQ(d.allocator.stats().reserved.current, 2 * kMiB);
  d.allocator.allocate(kMiB + 1, 0);
  EXPECT_EQ(d.allocator.stats().reserved.current, 22 * kMiB);
}

TEST(Allocator, LargeSegmentsAreTwentyMebibytesOrRoundedToTwo) {  // A3
  Device d;
  const BlockHandle three = d.allocator.allocate(3 * kMiB, 0);
  EXPECT_EQ(d.allocator.stats().reserved.current, 20 * kMiB);
  EXPECT_EQ(d.allocator.stats().inactive_split.current, 17 * kMiB);
  d.allocator.free(three);
  EXPECT_EQ(d.allocator.stats().inactive_split.current, 0);
  d.allocator.allocate(21 * kMiB, 0);
  EXPECT_EQ(d.allocator.stats().reserved.current, 42 * kMiB);
  EXPECT_EQ(segment_bytes(11 * kMiB + 512), 12 * kMiB);
}

TEST(Allocator, AFreeBlockServesOnlyItsOwnStream) {  // A2
  Device d;
  d.allocator.free(d.allocator.allocate(30 * kMiB, 1));
  d.allocator.allocate(30 * kMiB, 2);
  EXPECT_EQ(d.allocator.stats().reserved.current, 60 * kMiB);
  EXPECT_EQ(d.allocator.reserved_of(1), 30 * kMiB);
  EXPECT_EQ(d.allocator.reserved_of(2), 30 * kMiB);
  d.allocator.allocate(30 * kMiB, 1);
  EXPECT_EQ(d.allocator.stats().reserved.current, 60 * kMiB);
}

TEST(Allocator, TakesTheSmallestBlockThatFits) {  // A4
  Device d;
  const BlockHandle large = d.allocator.allocate(60 * kMiB, 0);
  const BlockHandle fitting = d.allocator.allocate(40 * kMiB, 0);
  d.allocator.free(large);
  d.allocator.free(fitting);
  d.allocator.allocate(39 * kMiB, 0);
  EXPECT_EQ(d.allocator.stats().allocated.current, 40 * kMiB);  // A5: 1 MiB is not split off
  d.allocator.allocate(60 * kMiB, 0);
  EXPECT_EQ(d.allocator.stats().reserved.current, 100 * kMiB);
}

TEST(Allocator, MaxSplitSizeKeepsSmallRequestsOutOfLargeBlocks) {  // A4
  AllocatorSettings settings;
  settings.max_split_size = 100 * kMiB;
  Device d(settings);
  d.allocator.free(d.allocator.allocate(120 * kMiB, 0));
  d.allocator.allocate(90 * kMiB, 0);
  EXPECT_EQ(d.allocator.stats().reserved.current, 210 * kMiB);
  Device e(settings);
  e.allocator.free(e.allocator.allocate(128 * kMiB, 0));
  e.allocator.allocate(110 * kMiB, 0);
  EXPECT_EQ(e.allocator.stats().reserved.current, 128 * kMiB);
  EXPECT_EQ(e.allocator.stats().allocated.current, 128 * kMiB);
  Device f(settings);
  f.allocator.free(f.allocator.allocate(130 * kMiB, 0));
  f.allocator.allocate(110 * kMiB, 0);
  EXPECT_EQ(f.allocator.stats().reserved.current, 240 * kMiB);
}

TEST(Allocator, SplitsOnlyWhereMoreThanAMebibyteIsLeft) {  // A5
  Device d;
  d.allocator.allocate(9 * kMiB, 0);
  EXPECT_EQ(d.allocator.stats().allocated.current, 9 * kMiB);
  Device e;
  const BlockHandle whole = e.allocator.allocate(20 * kMiB, 0);
  e.allocator.free(whole);
  e.allocator.allocate(19 * kMiB + kMiB / 2, 0);
  EXPECT_EQ(e.allocator.stats().allocated.current, 20 * kMiB);
  EXPECT_EQ(e.allocator.stats().requested.current, 19 * kMiB + kMiB / 2);
}

TEST(Allocator, NeighboursMergeWhenBothAreFree) {  // A5
  Device d;
  const BlockHandle a = d.allocator.allocate(4 * kMiB, 0), b = d.allocator.allocate(4 * kMiB, 0),
                    c = d.allocator.allocate(4 * kMiB, 0);
  d.allocator.free(a);
  d.allocator.free(c);
  d.allocator.free(b);
  d.allocator.allocate(20 * kMiB, 0);
  EXPECT_EQ(d.allocator.stats().reserved.current, 20 * kMiB);
}

TEST(Allocator, ABlockUsedElsewhereReturnsWhenThePollSeesTheEvent) {  // A7
  Device d;
  const BlockHandle block = d.allocator.allocate(30 * kMiB, 1);
  d.clock.enqueue(0, 1000);
  d.allocator.record_stream(block, 0);
  d.allocator.free(block);
  EXPECT_EQ(d.allocator.stats().allocated.current, 0);
  EXPECT_EQ(d.allocator.stats().active.current, 30 * kMiB);
  d.allocator.allocate(30 * kMiB, 1);
  EXPECT_EQ(d.allocator.stats().reserved.current, 60 * kMiB);  // too early
  d.clock.host_cost(1000);
  d.allocator.allocate(30 * kMiB, 1);
  EXPECT_EQ(d.allocator.stats().reserved.current, 60 * kMiB);
  EXPECT_EQ(d.allocator.stats().active.current, 60 * kMiB);
}

TEST(Allocator, PollsAreFifoPerStream) {  // A7
  Device d;
  const BlockHandle first = d.allocator.allocate(30 * kMiB, 1), second = d.allocator.allocate(40 * kMiB, 1);
  d.clock.enqueue(0, 1000);
  d.allocator.record_stream(first, 0);
  d.allocator.free(first);
  d.allocator.record_stream(second, 2);  // stream 2 is idle: done at once
  d.allocator.free(second);
  d.allocator.allocate(1, 3);
  EXPECT_EQ(d.allocator.stats().active.current, 30 * kMiB + 512);
}

/// Whoever polls pays for a question to each head, found done or not: in turn, as the host's time goes on with them.
TEST(PendingFrees, APollAsksHeadAfterHead) {
  constexpr int kStreams = 4;
  AllocatorSettings settings;
  settings.query_ns = 7;
  settings.event_ns = 3;
  Blocks blocks;
  DeviceClock clock(ClockMode::Model, kStreams);
  PendingFrees pending(settings, kStreams, blocks, clock);
  std::array<std::deque<std::pair<SimTime, BlockHandle>>, kStreams> queues;
  std::map<BlockHandle, int> events;  // of each that waits
  std::mt19937 random(11);
  const auto below = [&random](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  int found = 0, beyond = 0;
  for (int k = 0; k < 20'000; ++k) {
    if (below(3) == 0) clock.enqueue(below(kStreams), below(200));
    if (below(4) == 0) clock.host_cost(below(150));
    if (below(6) == 0) {
      const BlockHandle block = blocks.make();
      blocks[block].uses = static_cast<std::uint64_t>(1 + below((1 << kStreams) - 1));
      for (int s = 0; s < kStreams; ++s) {
        if ((blocks[block].uses >> s & 1) == 0) continue;
        queues[static_cast<std::size_t>(s)].emplace_back(clock.tail(s), block);
        ++events[block];
      }
      pending.add(block);
    }
    if (!pending.any()) continue;
    SimTime host = clock.host();
    std::vector<BlockHandle> expected, completed;
    for (auto& queue : queues) {
      while (!queue.empty()) {
        host += settings.query_ns;
        if (queue.front().first > host) break;
        if (--events[queue.front().second] == 0) expected.push_back(queue.front().second);
        queue.pop_front();
      }
    }
    const bool waits = pending.waits_beyond(clock.host(), 1);
    pending.poll([&](BlockHandle block) { completed.push_back(block); });
    ASSERT_EQ(completed, expected) << k;
    ASSERT_EQ(clock.host(), host) << k;
    if (waits) ASSERT_TRUE(completed.empty()) << k;
    for (const BlockHandle block : completed) blocks.drop(block);
    found += completed.empty() ? 0 : 1;
    beyond += waits ? 1 : 0;
  }
  EXPECT_GT(found, 500);
  EXPECT_GT(beyond, 500);
}

TEST(Allocator, SaysBeforeTimeMatters) {
  AllocatorSettings settings;
  settings.driver_ns = 50;
  settings.event_ns = 5;
  Device d(settings);
  std::vector<SimTime> told;
  d.allocator.before_time_matters([&] { told.push_back(d.clock.host()); });
  const BlockHandle first = d.allocator.allocate(30 * kMiB, 1);
  EXPECT_EQ(told, std::vector<SimTime>({0})) << "before the driver's call is paid for";
  d.allocator.free(first);
  const BlockHandle again = d.allocator.allocate(30 * kMiB, 1);
  EXPECT_EQ(told.size(), 1U) << "a cached block needs no time";
  d.allocator.record_stream(again, 2);
  d.allocator.free(again);
  EXPECT_EQ(told, std::vector<SimTime>({0, 50})) << "before the event is recorded";
}

TEST(Allocator, ItsOwnStreamNeedsNoEvent) {  // A7
  Device d;
  const BlockHandle block = d.allocator.allocate(30 * kMiB, 1);
  d.clock.enqueue(1, 1000);
  d.allocator.record_stream(block, 1);
  d.allocator.free(block);
  EXPECT_EQ(d.allocator.stats().active.current, 0);
}

TEST(Allocator, ARetrySynchronisesAndReleasesTheCache) {  // A6(7)
  Device d({}, 100 * kMiB);
  const BlockHandle block = d.allocator.allocate(60 * kMiB, 1);
  d.clock.enqueue(0, 5000);
  d.allocator.record_stream(block, 0);
  d.allocator.free(block);
  EXPECT_GE(d.allocator.allocate(80 * kMiB, 0), 0);
  EXPECT_EQ(d.allocator.stats().retries, 1);
  EXPECT_GE(d.clock.host(), 5000);
  EXPECT_EQ(d.allocator.stats().reserved.current, 80 * kMiB);
  EXPECT_EQ(d.allocator.stats().ooms, 0);
}

TEST(Allocator, OutOfMemoryIsCountedAndLeavesTheRestUsable) {  // A6(9)
  Device d({}, 100 * kMiB);
  const BlockHandle block = d.allocator.allocate(60 * kMiB, 0);
  EXPECT_EQ(d.allocator.allocate(80 * kMiB, 0), kNoBlock);
  EXPECT_EQ(d.allocator.stats().ooms, 1);
  EXPECT_EQ(d.allocator.stats().retries, 1);
  d.allocator.free(block);
  EXPECT_GE(d.allocator.allocate(80 * kMiB, 0), 0);
}

TEST(Allocator, TheFractionIsALimitLikeTheDevices) {  // A12
  AllocatorSettings settings;
  settings.memory_fraction = 0.5;
  Device d(settings, 100 * kMiB);
  EXPECT_GE(d.allocator.allocate(40 * kMiB, 0), 0);
  EXPECT_EQ(d.allocator.allocate(40 * kMiB, 0), kNoBlock);
  EXPECT_EQ(d.allocator.stats().ooms, 1);
}

TEST(Allocator, GarbageCollectionFreesOldBlocksUntilBelowTheThreshold) {  // A9
  AllocatorSettings settings;
  settings.memory_fraction = 1.0;
  settings.garbage_collection_threshold = 0.8;
  Device d(settings, 1000 * kMiB);
  std::vector<BlockHandle> blocks;
  for (int i = 0; i < 9; ++i) blocks.push_back(d.allocator.allocate(100 * kMiB, 0));
  for (const BlockHandle block : blocks) d.allocator.free(block);
  d.allocator.allocate(100 * kMiB, 1);  // 900 of 1000 reserved: collects down to 800, then allocates
  EXPECT_EQ(d.allocator.stats().reserved.current, 900 * kMiB);
  EXPECT_EQ(d.allocator.stats().device_frees, 1);
  EXPECT_EQ(d.allocator.stats().retries, 0);
}

TEST(Allocator, EmptyCacheGivesBackOnlyWholeSegments) {
  Device d;
  const BlockHandle a = d.allocator.allocate(30 * kMiB, 0);
  d.allocator.allocate(4 * kMiB, 0);
  d.allocator.free(a);
  d.allocator.empty_cache();
  EXPECT_EQ(d.allocator.stats().reserved.current, 20 * kMiB);
  EXPECT_EQ(d.driver.used(), 20 * kMiB);
}

TEST(ExpandableSegments, GrowInPagesAndSplitAtHalfAKibibyte) {  // A10
  AllocatorSettings settings;
  settings.expandable_segments = true;
  Device d(settings);
  const BlockHandle a = d.allocator.allocate(30 * kMiB, 0);
  EXPECT_EQ(d.allocator.stats().reserved.current, 40 * kMiB);
  d.allocator.allocate(9 * kMiB, 0);
  EXPECT_EQ(d.allocator.stats().allocated.current, 39 * kMiB);
  EXPECT_EQ(d.allocator.stats().reserved.current, 40 * kMiB);
  d.allocator.free(a);
  d.allocator.allocate(35 * kMiB, 0);  // 30 are free but not the last: the segment grows behind the last block
  EXPECT_EQ(d.allocator.stats().reserved.current, 80 * kMiB);
  EXPECT_EQ(d.allocator.stats().inactive_split.current, 0);
}

TEST(ExpandableSegments, GiveBackPagesFromTheMiddle) {  // A10
  AllocatorSettings settings;
  settings.expandable_segments = true;
  Device d(settings);
  d.allocator.allocate(10 * kMiB, 0);
  const BlockHandle b = d.allocator.allocate(60 * kMiB, 0);
  d.allocator.allocate(10 * kMiB, 0);
  EXPECT_EQ(d.driver.used(), 80 * kMiB);
  d.allocator.free(b);
  d.allocator.empty_cache();
  EXPECT_EQ(d.driver.used(), 40 * kMiB);  // 10..70: whole pages 20..60
  d.allocator.allocate(45 * kMiB, 0);
  EXPECT_EQ(d.driver.used(), 80 * kMiB);
}

TEST(ExpandableSegments, DoNotShareBetweenStreams) {  // A10
  AllocatorSettings settings;
  settings.expandable_segments = true;
  Device d(settings);
  d.allocator.free(d.allocator.allocate(30 * kMiB, 0));
  d.allocator.allocate(30 * kMiB, 1);
  EXPECT_EQ(d.allocator.stats().reserved.current, 80 * kMiB);
}

TEST(Allocator, ARequestOfNoBytesOwnsNothing) {
  Device d;
  const BlockHandle nothing = d.allocator.allocate(0, 0);
  EXPECT_EQ(nothing, kEmptyBlock);
  d.allocator.free(nothing);
  EXPECT_EQ(d.allocator.stats().reserved.current, 0);
}

TEST(DeviceClock, TheThreeModesDifferInWhatIsFinished) {
  for (const ClockMode mode : {ClockMode::Model, ClockMode::Lazy, ClockMode::Instant}) {
    DeviceClock clock(mode, 2);
    clock.enqueue(0, 100);
    const EventStamp event = clock.record(0);
    clock.host_cost(200);
    EXPECT_EQ(clock.finished(event), mode != ClockMode::Lazy);
    clock.host_wait(event);
    EXPECT_TRUE(clock.finished(event));
  }
}

TEST(DeviceClock, WaitingForOneEventCompletesWhatItDependedOn) {
  DeviceClock clock(ClockMode::Lazy, 3);
  clock.enqueue(0, 100);
  const EventStamp first = clock.record(0);
  clock.stream_wait(1, first);
  clock.enqueue(1, 100);
  clock.enqueue(2, 100);
  const EventStamp other = clock.record(2);
  clock.host_wait(clock.record(1));
  EXPECT_TRUE(clock.finished(first));
  EXPECT_FALSE(clock.finished(other));
}

}  // namespace
}  // namespace foreshard
