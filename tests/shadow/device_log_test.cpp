#include "shadow/device_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string_view>

#include "core/plan.h"
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

// Two steps as the device logs them for a timeline: ranges by thread, calls from `call_ns` to `host_ns` (`back_ns`
// where they wait), the allocator's changes. The mark of a step's end stands inside of the optimizer's range.
constexpr const char* kRanges =
    R"log({"i":0,"host_ns":1000,"api":"nvtxRangePush","name":"FSDP::pre_forward (layers.0)"}
{"i":1,"host_ns":1000,"api":"mark","name":"gather layers.0"}
{"i":2,"host_ns":9000,"api":"ncclAllGather","call_ns":1000,"stream":9,"comm":0,"ranks":4,"bytes":4096,"elem":2,"start_ns":9000,"end_ns":29000}
{"i":3,"host_ns":9000,"api":"mark","name":"end gather layers.0"}
{"i":4,"host_ns":9000,"api":"nvtxRangePop"}
{"i":5,"host_ns":9000,"api":"nvtxRangePush","name":"aten::mm, seq = 7, op_id = 12"}
{"i":6,"host_ns":9000,"api":"allocator","bytes":512,"allocated":2048,"reserved":4096}
{"i":7,"host_ns":17000,"api":"cublasGemmEx","call_ns":9000,"stream":0,"name":"gemm","dtype":"bf16","mnk":[4,8,16],"start_ns":29000,"end_ns":49000}
{"i":8,"host_ns":17000,"api":"nvtxRangePop"}
{"i":8,"host_ns":17000,"api":"nvtxRangePush","name":"FSDP::post_forward (layers.0)"}
{"i":8,"host_ns":17000,"api":"nvtxRangePop"}
{"i":9,"host_ns":25000,"api":"cudaMemcpyAsync","call_ns":17000,"stream":0,"name":"DtoH","bytes":2,"pinned":0,"start_ns":49000,"end_ns":50000,"back_ns":50000}
{"i":10,"host_ns":51000,"api":"cudaStreamSynchronize","call_ns":50000,"stream":0}
{"i":11,"host_ns":51000,"api":"nvtxRangePush","thread":1,"name":"MmBackward0, seq = 7, op_id = 13"}
{"i":12,"host_ns":51000,"api":"nvtxRangePop","thread":1}
{"i":13,"host_ns":51000,"api":"nvtxRangePush","name":"Optimizer.step#AdamW.step"}
{"i":14,"host_ns":59000,"api":"cudaLaunchKernel","call_ns":51000,"stream":0,"name":"adam","start_ns":59000,"end_ns":70000}
{"i":15,"host_ns":59000,"api":"mark","name":"step 1 ends"}
{"i":16,"host_ns":59000,"api":"nvtxRangePop"}
{"i":17,"host_ns":60000,"api":"cudaMalloc","call_ns":59000,"bytes":2097152,"ptr":1,"used":2097152}
{"i":18,"host_ns":67000,"api":"cudaLaunchKernel","call_ns":60000,"stream":0,"name":"add","start_ns":70000,"end_ns":80000}
{"i":18,"host_ns":67000,"api":"mark","name":"step 2 ends"}
{"i":19,"host_ns":75000,"api":"cudaLaunchKernel","call_ns":67000,"stream":0,"name":"beyond","start_ns":80000,"end_ns":90000}
)log";

class DrawnLog : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto log = read(kRanges, {.rank = 3, .timeline = true, .hardware = "h100-sxm-80"});
    ASSERT_TRUE(log) << to_text(log.error());
    t = log->timeline;
  }
  std::int32_t find(std::string_view name) const {
    for (std::size_t i = 0; i < t.spans.size(); ++i) {
      if (t.name_of(t.spans[i].name) == name) return static_cast<std::int32_t>(i);
    }
    return -1;
  }
  const Span& named(std::string_view name) const {
    static const Span kNone;
    EXPECT_GE(find(name), 0) << name;
    return find(name) < 0 ? kNone : t.spans[static_cast<std::size_t>(find(name))];
  }
  const Lane& lane_of(const Span& span) const { return t.lanes[span.lane.index()]; }
  Timeline t;
};

TEST_F(DrawnLog, CallsStandOnTheirThreadAndLeadToTheirWork) {
  const Span& gemm = named("gemm_bf16bf16_4x8x16");
  EXPECT_EQ(gemm.kind, SpanKind::Compute);
  EXPECT_EQ(lane_of(gemm).stream, "D");
  EXPECT_EQ(lane_of(gemm).rank, 3);
  const auto flow = std::find_if(t.flows.begin(), t.flows.end(),
                                 [&](const Flow& f) { return f.to == SpanId(find("gemm_bf16bf16_4x8x16")); });
  ASSERT_NE(flow, t.flows.end());
  const Span& call = t.spans[flow->from.index()];
  EXPECT_EQ(t.name_of(call.name), "cublasGemmEx");
  EXPECT_EQ(lane_of(call).stream, "host");
  EXPECT_NEAR(static_cast<double>(call.duration), 8000, 10);
  EXPECT_EQ(t.provenance.hardware, "h100-sxm-80");
}

TEST_F(DrawnLog, UnitsAndPhasesAreThoseOfTheRanges) {
  const auto gather =
      std::find_if(t.spans.begin(), t.spans.end(), [](const Span& s) { return s.kind == SpanKind::AllGather; });
  ASSERT_NE(gather, t.spans.end());
  EXPECT_EQ(t.units[static_cast<std::size_t>(gather->unit)], "layers.0");
  EXPECT_EQ(gather->phase, static_cast<std::int32_t>(Phase::PreForward));
  EXPECT_EQ(gather->bytes, 4096);
  EXPECT_EQ(named("adam").phase, static_cast<std::int32_t>(Phase::Optimizer));
  EXPECT_EQ(named("add").phase, static_cast<std::int32_t>(Phase::None));
}

TEST_F(DrawnLog, AHostThatWaitsIsSeenWaiting) {
  EXPECT_EQ(named("cudaStreamSynchronize").kind, SpanKind::HostWait);
  const Span& copy = named("Memcpy DtoH (Device -> Pageable)");
  EXPECT_EQ(copy.kind, SpanKind::Copy);
  EXPECT_NEAR(static_cast<double>(named("cudaMemcpyAsync").duration), 33000, 10);  // until the copy is done
}

TEST_F(DrawnLog, AStepEndsWithTheOptimizersRange) {
  const Span& second = named("ProfilerStep#1");
  EXPECT_GT(second.start, named("Optimizer.step#AdamW.step").start + named("Optimizer.step#AdamW.step").duration - 10);
  EXPECT_EQ(second.phase, static_cast<std::int32_t>(Phase::None));
  EXPECT_EQ(find("beyond"), -1);  // of a step that did not end
  EXPECT_EQ(find("ProfilerStep#2"), -1);
}

TEST_F(DrawnLog, TheAllocatorIsACounter) {
  ASSERT_EQ(t.counters.size(), 2u);
  EXPECT_EQ(t.counters[1].name, "allocated");
  ASSERT_EQ(t.samples.size(), 2u);
  EXPECT_EQ(t.samples[0].value, 2 * kMiB);
  EXPECT_EQ(t.samples[1].value, 2048);
  EXPECT_NEAR(static_cast<double>(named("cudaMalloc").duration), 1000, 10);
}

TEST_F(DrawnLog, ABackwardIsJoinedToItsOperator) {
  EXPECT_EQ(named("aten::mm").kind, SpanKind::HostIssue);
  EXPECT_EQ(lane_of(named("MmBackward0")).stream, "host 1");
  const Flow wanted{SpanId(find("aten::mm")), SpanId(find("MmBackward0"))};
  EXPECT_NE(std::find(t.flows.begin(), t.flows.end(), wanted), t.flows.end());
}

TEST(DeviceLog, WithoutRangesDrawsWorkByStream) {
  const auto log = read(kLog, {.rank = 3, .timeline = true, .hardware = "h100-sxm-80"});
  ASSERT_TRUE(log) << to_text(log.error());
  const Timeline& timeline = log->timeline;
  EXPECT_EQ(timeline.lanes.size(), 4u);  // the host and three streams
  EXPECT_EQ(timeline.lanes[1].rank, 3);
  ASSERT_EQ(timeline.samples.size(), 1u);
  EXPECT_EQ(timeline.samples[0].value, 2 * kMiB);
  EXPECT_EQ(timeline.flows.size(), 4u);
}

TEST(DeviceLog, RefusesALineThatIsNoJson) {
  const auto log = read("{\"i\":0,\"api\":\"mark\"}\nnonsense\n{\"i\":1,\"api\":\"mark\"}\n");
  ASSERT_FALSE(log);
  EXPECT_EQ(log.error().place, "line 2");
  EXPECT_EQ(read_device_log("/no/such/log", {}).error().code, ErrorCode::NotFound);
}

}  // namespace
}  // namespace foreshard::shadow
