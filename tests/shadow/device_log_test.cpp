#include "shadow/device_log.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary_path.h"

namespace foreshard::shadow {
namespace {

// Two steps; in the second the root is gathered within a unit's mark, and the file ends in the middle of a line.
constexpr const char* kLog =
    R"log({"i":0,"host_ns":10,"api":"cudaMalloc","bytes":2097152,"ptr":1,"used":2097152}
{"i":1,"host_ns":20,"api":"mark","name":"gather layers.0"}
{"i":2,"host_ns":30,"api":"ncclAllGather","stream":9,"comm":0,"ranks":4,"bytes":4096,"elem":2,"start_ns":30,"end_ns":80}
{"i":3,"host_ns":40,"api":"mark","name":"end gather layers.0"}
{"i":4,"host_ns":50,"api":"cudaLaunchKernel","stream":0,"name":"add","start_ns":80,"end_ns":90}
{"i":5,"host_ns":60,"api":"ncclAllReduce","stream":0,"comm":0,"ranks":4,"bytes":4,"elem":4,"start_ns":90,"end_ns":95}
{"i":6,"host_ns":70,"api":"mark","name":"step 1 ends"}
{"i":7,"host_ns":80,"api":"mark","name":"reduce (root)"}
{"i":8,"host_ns":90,"api":"ncclReduceScatter","stream":11,"comm":0,"ranks":4,"bytes":64,"elem":4,"start_ns":95,"end_ns":99}
{"i":9,"host_ns":95,"api":"mark","name":"end reduce (root)"}
{"i":10,"host_ns":99,"api":"mark","name":"step 2 ends"}
{"i":11,"host_ns":10)log";

Result<DeviceLog> read(const std::string& text, LogOptions options = {}) {
  const std::string path = testing::temporary_path("device_log.jsonl");
  std::ofstream(path) << text;
  return read_device_log(path, options);
}

TEST(DeviceLog, GivesEachStepItsCollectivesWithTheirUnits) {
  const auto log = read(kLog);
  ASSERT_TRUE(log) << to_text(log.error());
  ASSERT_EQ(log->steps.size(), 2u);
  ASSERT_EQ(log->steps[0].size(), 2u);
  EXPECT_EQ(log->steps[0][0].unit, "layers.0");
  EXPECT_EQ(log->steps[0][0].kind, CollectiveKind::Gather);
  EXPECT_EQ(log->steps[0][0].element, 2);
  EXPECT_EQ(log->steps[0][1].unit, "");
  ASSERT_EQ(log->steps[1].size(), 1u);
  EXPECT_EQ(log->steps[1][0].unit, "(root)");
  EXPECT_EQ(log->steps[1][0].ranks, 4);
  EXPECT_TRUE(log->timeline.spans.empty());
}

TEST(DeviceLog, DrawsWorkByStream) {
  const auto log = read(kLog, {.rank = 3, .timeline = true, .hardware = "h100-sxm-80"});
  ASSERT_TRUE(log) << to_text(log.error());
  const Timeline& timeline = log->timeline;
  ASSERT_EQ(timeline.spans.size(), 4u);
  EXPECT_EQ(timeline.lanes.size(), 4u);  // the host and three streams
  EXPECT_EQ(timeline.lanes[1].rank, 3);
  ASSERT_EQ(timeline.samples.size(), 1u);
  EXPECT_EQ(timeline.samples[0].value, 2 * kMiB);
  EXPECT_EQ(timeline.marks.size(), 3u);
  EXPECT_EQ(timeline.provenance.hardware, "h100-sxm-80");
}

TEST(DeviceLog, RefusesALineThatIsNoJson) {
  const auto log = read("{\"i\":0,\"api\":\"mark\"}\nnonsense\n{\"i\":1,\"api\":\"mark\"}\n");
  ASSERT_FALSE(log);
  EXPECT_EQ(log.error().place, "line 2");
  EXPECT_EQ(read_device_log("/no/such/log", {}).error().code, ErrorCode::NotFound);
}

}  // namespace
}  // namespace foreshard::shadow
