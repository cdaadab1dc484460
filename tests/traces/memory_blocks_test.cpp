// Blocks that live at a moment, by the frame that asked for them.
#include "traces/analysis/memory_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "traces/formats/open_trace.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;

LiveBlocks live(const Timeline& timeline, const BlockOptions& options = {}) {
  const auto found = live_blocks(timeline, options);
  EXPECT_TRUE(found.has_value());
  return found.value_or(LiveBlocks{});
}

Timeline snapshot() {
  const auto opened = open_trace(FORESHARD_TEST_DATA "/traces/snapshot.pickle");
  EXPECT_TRUE(opened.has_value());
  return opened ? opened->timeline : Timeline{};
}

TEST(MemoryBlocks, AtThePeakAddUpToWhatIsAllocated) {
  const LiveBlocks blocks = live(snapshot());
  EXPECT_EQ(blocks.allocated, 1'700);
  EXPECT_THAT(blocks.rows, ElementsAre(BlockRow{"model.py:12 forward", 1, 1'000, 1'000},
                                       BlockRow{"??:0 c10::cuda::malloc", 1, 500, 500}, BlockRow{"", 0, 200, 0}));
}

TEST(MemoryBlocks, AtAnyMomentAreThoseThatLiveThen) {
  const Timeline t = snapshot();
  EXPECT_THAT(live(t, {.rank = {}, .at = t.spans[0].start}).rows,
              ElementsAre(BlockRow{"model.py:12 forward", 1, 1'000, 1'000}, BlockRow{"", 0, 200, 0}));
  const SimTime end = t.spans[1].start + t.spans[1].duration;
  EXPECT_THAT(live(t, {.rank = {}, .at = end}).rows,
              ElementsAre(BlockRow{"??:0 c10::cuda::malloc", 1, 500, 500}, BlockRow{"", 0, 200, 0}))
      << "what was never freed lives at the end";
}

TEST(MemoryBlocks, TwoRecordingsDifferByFrame) {
  const Timeline a = snapshot();
  Timeline b = a;
  b.spans[0].bytes = 400;
  for (CounterSample& sample : b.samples)
    if (b.counters[sample.counter.index()].name == "allocated") sample.value -= 600;
  const auto rows = block_differences(live(a), live(b, {.rank = {}, .at = live(a).at}));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].frame, "model.py:12 forward");
  EXPECT_EQ(rows[0].difference(), 600);
  EXPECT_EQ(rows[1].difference(), 0);
}

Bytes sum_of(const LiveBlocks& blocks) {
  Bytes sum = 0;
  for (const BlockRow& row : blocks.rows) sum += row.bytes;
  return sum;
}

TEST(MemoryBlocks, BeyondTheCounterAddUpAllTheSame) {
  Timeline t = snapshot();
  t.spans[0].bytes = 30'000;
  const LiveBlocks blocks = live(t);
  EXPECT_EQ(sum_of(blocks), blocks.allocated);
  EXPECT_EQ(blocks.rows.back(), (BlockRow{std::string(kBeyondCounter), 0, 1'700 - 30'500, 0}));
}

TEST(MemoryBlocks, OfEqualFramesAreOneRow) {
  Timeline t = snapshot();
  t.names.push_back(t.names[t.spans[0].name.index()]);
  t.spans[1].name = NameId(static_cast<std::int32_t>(t.names.size()) - 1);
  EXPECT_THAT(live(t).rows, ElementsAre(BlockRow{"model.py:12 forward", 2, 1'500, 1'000}, BlockRow{"", 0, 200, 0}));
  t.names.back().clear();
  EXPECT_THAT(live(t).rows, ElementsAre(BlockRow{"model.py:12 forward", 1, 1'000, 1'000}, BlockRow{"", 1, 700, 500}));
}

TEST(MemoryBlocks, ASampleOfNoCounterIsNobodys) {
  Timeline t = snapshot();
  t.samples.insert(t.samples.begin(), CounterSample{CounterId(-1), 0, 1'000'000});
  EXPECT_EQ(live(t).allocated, 1'700);
}

TEST(MemoryBlocks, WithoutHistoryThereAreNone) {
  EXPECT_FALSE(live_blocks(Timeline{}).has_value());
  Timeline t;
  t.counters = {{0, "allocated", "bytes"}};
  t.samples = {{CounterId(0), 5, 100}};
  EXPECT_FALSE(live_blocks(t, {.rank = 0, .at = {}}).has_value());
}

}  // namespace
}  // namespace foreshard
