// Replays allocator events recorded from PyTorch: the replica must end with the same segments, and choose the same
// addresses up to the position of the address space.
#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/device/allocator/caching_allocator.h"

namespace foreshard {
namespace {

std::vector<nlohmann::json> read_events(const std::string& path) {
  std::vector<nlohmann::json> rows;
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return rows;
  std::array<char, 4096> line{};
  while (gzgets(file, line.data(), line.size()) != nullptr) rows.push_back(nlohmann::json::parse(line.data()));
  gzclose(file);
  return rows;
}

/// Time is the line number. A block whose free completes later waits for an event that is reached on that line.
class Replay {
 public:
  explicit Replay(std::vector<nlohmann::json> rows)
      : rows_(std::move(rows)), allocator_(settings(), driver_, clock_, kStreams) {}

  void run() {
    std::map<std::int64_t, std::size_t> requested;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const std::string action = rows_[i].value("action", "");
      const auto address = rows_[i].value("addr", std::int64_t{0});
      if (action == "free_requested") requested[address] = i;
      if (action == "free_completed") completed_[requested.at(address)] = i;
    }
    for (std::size_t i = 0; i < rows_.size(); ++i) step(i);
  }

  std::vector<SegmentInfo> recorded() const {
    std::vector<SegmentInfo> all;
    for (const auto& row : rows_) {
      if (!row.contains("segment")) continue;
      all.push_back(
          {row["segment"], row["bytes"], row["allocated"], row["active"], row["stream"], row["pool"] == "small"});
    }
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
    return all;
  }
  std::vector<SegmentInfo> replayed() const { return allocator_.segments(); }
  /// The first allocation that went elsewhere; empty if none did.
  const std::string& first_difference() const { return first_; }

 private:
  static constexpr int kStreams = 64, kFirstHelper = 8;
  static AllocatorSettings settings() { return {}; }

  void step(std::size_t i) {
    const auto& row = rows_[i];
    const std::string action = row.value("action", "");
    const auto address = row.value("addr", std::int64_t{0});
    clock_.host_cost(static_cast<SimTime>(i) - clock_.host());
    if (action == "alloc") {
      const BlockHandle block = allocator_.allocate(row["bytes"], row["stream"]);
      ASSERT_GE(block, 0);
      live_[address] = block;
      const Bytes shift = allocator_.address(block) - address;
      if (moved_ == 0) moved_ = shift;
      if (shift != moved_ && first_.empty())
        first_ = "line " + std::to_string(i + 1) + ": " + row.dump() + " at " + std::to_string(shift - moved_);
    } else if (action == "free_requested") {
      const BlockHandle block = live_.at(address);
      const auto done = completed_.find(i);
      // An event on some other stream, reached on the line where the recording saw it done.
      if (done == completed_.end() || done->second > i + 1) {
        const SimTime reached = done == completed_.end() ? 1'000'000'000 : static_cast<SimTime>(done->second);
        int helper = kFirstHelper;
        while (clock_.tail(helper) > reached) ++helper;
        clock_.enqueue(helper, reached - std::max(clock_.tail(helper), clock_.host()));
        allocator_.record_stream(block, helper);
      }
      allocator_.free(block);
      live_.erase(address);
    } else if (action == "segment_free" && !emptied_) {
      emptied_ = true;
      allocator_.empty_cache();
    }
  }

  std::vector<nlohmann::json> rows_;
  DriverMemory driver_{80 * kGiB};
  DeviceClock clock_{ClockMode::Model, kStreams};
  CachingAllocator allocator_;
  std::map<std::int64_t, BlockHandle> live_;
  std::map<std::size_t, std::size_t> completed_;
  Bytes moved_ = 0;
  std::string first_;
  bool emptied_ = false;
};

class AllocatorReplay : public testing::TestWithParam<const char*> {};

TEST_P(AllocatorReplay, EndsWithTheRecordedSegments) {
  const std::string name = std::string(GetParam()) + ".alloc.jsonl.gz";
  std::string path = std::string(FORESHARD_TEST_DATA) + "/sim/" + name;
  if (!std::filesystem::exists(path)) path = std::string(FORESHARD_SHARED) + "/oracle/gpu_memory/logs/" + name;
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no recording " << name;
  Replay replay(read_events(path));
  replay.run();
  EXPECT_EQ(replay.first_difference(), "");
  const auto expected = replay.recorded(), got = replay.replayed();
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].bytes, expected[i].bytes) << i;
    EXPECT_EQ(got[i].allocated, expected[i].allocated) << i;
    EXPECT_EQ(got[i].active, expected[i].active) << i;
    EXPECT_EQ(got[i].stream, expected[i].stream) << i;
    EXPECT_EQ(got[i].small, expected[i].small) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Recordings, AllocatorReplay,
                         testing::Values("m010", "m018", "m020", "m032", "m048", "m098", "m110", "m111"));

}  // namespace
}  // namespace foreshard
