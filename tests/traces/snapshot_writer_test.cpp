#include "traces/formats/snapshot_writer.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_path.h"
#include "traces/encodings/pickle.h"
#include "traces/encodings/pickle_writer.h"
#include "traces/formats/memory_snapshot.h"

namespace foreshard {
namespace {

MemoryLog small_log() {
  MemoryLog log;
  log.origins = {{"activations", "layers.3", "forward", 1, 17}, {"workspace", "", "init", -1, -1}};
  log.events = {{MemoryAction::SegmentAlloc, 1, 0, Bytes{1} << 40, 2097152, 5'000},
                {MemoryAction::Alloc, 1, 0, Bytes{1} << 40, 1000, 6'000},
                {MemoryAction::Alloc, 1, 1, (Bytes{1} << 40) + 1024, 300, 7'000},
                {MemoryAction::FreeRequested, 1, 1, (Bytes{1} << 40) + 1024, 300, 9'000},
                {MemoryAction::OutOfMemory, 1, 0, 77, 512, 11'000}};
  MemoryLog::Segment segment{Bytes{1} << 40, 2097152, 1024, 1536, 1300, 1, true, false, {}};
  segment.blocks = {{segment.address, 1024, 1000, MemoryLog::State::Allocated, 0},
                    {segment.address + 1024, 512, 300, MemoryLog::State::PendingFree, 1},
                    {segment.address + 1536, 2097152 - 1536, 0, MemoryLog::State::Inactive, -1}};
  log.segments = {segment};
  return log;
}

TEST(SnapshotWriter, WritesTheFieldsOfPyTorchsSnapshot) {
  const std::string bytes = memory_snapshot_pickle(small_log());
  const auto pickle = Pickle::parse(bytes, "snapshot.pickle");
  ASSERT_TRUE(pickle.has_value()) << to_text(pickle.error());
  const PickleValue* traces = pickle->get(pickle->root(), "device_traces");
  ASSERT_NE(traces, nullptr);
  ASSERT_EQ(traces->items.size(), 1u);
  const PickleValue& events = pickle->at(traces->items[0]);
  ASSERT_EQ(events.items.size(), 5u);
  const PickleValue& alloc = pickle->at(events.items[1]);
  EXPECT_EQ(pickle->text(alloc, "action"), "alloc");
  EXPECT_EQ(pickle->integer(alloc, "addr", 0), Bytes{1} << 40);
  EXPECT_EQ(pickle->integer(alloc, "size", 0), 1000);
  EXPECT_EQ(pickle->integer(alloc, "stream", 0), 1);
  EXPECT_EQ(pickle->integer(alloc, "time_us", 0), 6);
  const PickleValue* frames = pickle->get(alloc, "frames");
  ASSERT_NE(frames, nullptr);
  ASSERT_EQ(frames->items.size(), 2u);
  EXPECT_EQ(pickle->text(pickle->at(frames->items[0]), "name"), "activations");
  EXPECT_EQ(pickle->text(pickle->at(frames->items[0]), "filename"), "layers.3");
  EXPECT_EQ(pickle->integer(pickle->at(frames->items[0]), "line", 0), 17);
  EXPECT_EQ(pickle->integer(pickle->at(events.items[4]), "device_free", 0), 77);

  const PickleValue* segments = pickle->get(pickle->root(), "segments");
  ASSERT_NE(segments, nullptr);
  ASSERT_EQ(segments->items.size(), 1u);
  const PickleValue& segment = pickle->at(segments->items[0]);
  EXPECT_EQ(pickle->integer(segment, "total_size", 0), 2097152);
  EXPECT_EQ(pickle->integer(segment, "allocated_size", 0), 1024);
  EXPECT_EQ(pickle->integer(segment, "active_size", 0), 1536);
  EXPECT_EQ(pickle->text(segment, "segment_type"), "small");
  const PickleValue* blocks = pickle->get(segment, "blocks");
  ASSERT_NE(blocks, nullptr);
  ASSERT_EQ(blocks->items.size(), 3u);
  EXPECT_EQ(pickle->text(pickle->at(blocks->items[0]), "state"), "active_allocated");
  EXPECT_EQ(pickle->text(pickle->at(blocks->items[1]), "state"), "active_pending_free");
  EXPECT_EQ(pickle->text(pickle->at(blocks->items[2]), "state"), "inactive");
}

TEST(SnapshotWriter, OurReaderReadsTheFileBack) {
  const std::string path = testing::temporary_path("snapshot.pickle");
  ASSERT_TRUE(write_memory_snapshot(small_log(), path).has_value());
  const auto opened = open_trace(path);
  ASSERT_TRUE(opened.has_value()) << to_text(opened.error());
  EXPECT_EQ(opened->format, "snapshot");
  EXPECT_EQ(opened->timeline.spans.size(), 2u) << "one a block";
}

TEST(SnapshotWriter, AFolderThatIsNotThereIsNamed) {
  const auto written = write_memory_snapshot(small_log(), "/no/such/folder/snapshot.pickle");
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().file, "/no/such/folder/snapshot.pickle");
}

TEST(PickleWriter, NumbersOfAllSizesComeBack) {
  const std::vector<std::int64_t> numbers{0, 255, 256, -1, -2147483648LL, 2147483648LL, -(Bytes{1} << 60)};
  PickleWriter writer;
  writer.begin_list();
  for (const std::int64_t number : numbers) writer.integer(number);
  writer.end_list();
  const std::string bytes = std::move(writer).finish();
  const auto pickle = Pickle::parse(bytes, "numbers");
  ASSERT_TRUE(pickle.has_value()) << to_text(pickle.error());
  ASSERT_EQ(pickle->root().items.size(), numbers.size());
  for (std::size_t k = 0; k < numbers.size(); ++k) EXPECT_EQ(pickle->at(pickle->root().items[k]).integer, numbers[k]);
}

}  // namespace
}  // namespace foreshard
