// Records as CUPTI writes them, made by hand: no card is needed.
#include "exec/record/device_record_reader.h"

#include <gtest/gtest.h>

#include <string_view>

namespace foreshard::exec {
namespace {

constexpr std::uint32_t kStream = 7, kOther = 9, kForeign = 31;

template <class Record>
Record blank(CUpti_ActivityKind kind) {
  Record record{};
  record.kind = kind;
  return record;
}

template <class Record>
const CUpti_Activity& any(const Record& record) {
  return reinterpret_cast<const CUpti_Activity&>(record);
}

class Reader : public testing::Test {
 protected:
  void kernel(std::uint32_t correlation, std::uint64_t start, std::uint64_t end, std::uint32_t stream = kStream) {
    auto record = blank<CUpti_ActivityKernel10>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    record.correlationId = correlation;
    record.streamId = stream;
    record.start = start;
    record.end = end;
    reader_.read(any(record));
  }

  void api(std::uint32_t correlation, std::uint64_t start, std::uint64_t end) {
    auto record = blank<CUpti_ActivityAPI>(CUPTI_ACTIVITY_KIND_RUNTIME);
    record.correlationId = correlation;
    record.start = start;
    record.end = end;
    reader_.read(any(record));
  }

  void pushed(std::uint32_t correlation, IssuedAt place) {
    auto record = blank<CUpti_ActivityExternalCorrelation>(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
    record.externalKind = kIssuersCorrelation;
    record.correlationId = correlation;
    record.externalId = place.packed();
    reader_.read(any(record));
  }

  DeviceRecordCounts flush(const std::vector<Turn>& turns = {}, bool last = false) {
    return reader_.end_flush(turns, {{kStream, &lane_}, {kOther, &other_}}, &calls_, last);
  }

  DeviceRecordReader reader_;
  RecordedLane lane_{"default", 0, 1000}, other_{"gather", 0, 1000};
  DriverCalls calls_{1000};
};

TEST_F(Reader, WorkBelongsToTheInstructionThatWasPushedOrToTheTurnOfItsLaunch) {
  kernel(1, 100, 200);  // before its launch's record, in the same flush
  kernel(2, 300, 400);
  pushed(1, {3, 11});
  api(2, 55, 58);
  const auto counts =
      flush({{10, IssuedAt{3, 4}.packed()}, {50, IssuedAt{3, 5}.packed()}, {60, IssuedAt{3, 6}.packed()}});
  EXPECT_EQ(counts.records, 4);
  EXPECT_EQ(counts.unattributed, 0);
  ASSERT_EQ(lane_.size(), 2);
  EXPECT_EQ(lane_[0].instruction, 11);
  EXPECT_EQ(lane_[0].start, 100);
  EXPECT_EQ(lane_[0].end, 200);
  EXPECT_EQ(lane_[1].instruction, 5) << "begun between the turns at 50 and 60";
  EXPECT_EQ(lane_[1].step, 3);
}

TEST_F(Reader, ALaunchIsKnownSomeFlushesLater) {
  pushed(1, {0, 8});
  api(2, 15, 16);
  flush({{10, IssuedAt{0, 7}.packed()}});
  for (std::size_t k = 1; k + 1 < DeviceRecordReader::kKeptFlushes; ++k) {
    api(static_cast<std::uint32_t>(100 + k), 1000 * k, 1000 * k + 1);
    flush({{static_cast<std::int64_t>(1000 * k), IssuedAt{static_cast<std::int32_t>(k), 1}.packed()}});
  }
  kernel(1, 5000, 5001);
  kernel(2, 5002, 5003);
  EXPECT_EQ(flush().unattributed, 0);
  ASSERT_EQ(lane_.size(), 2);
  EXPECT_EQ(lane_[0].instruction, 8);
  EXPECT_EQ(lane_[1].instruction, 7);
  // One flush more, and both are forgotten.
  kernel(1, 6000, 6001);
  flush();
  EXPECT_EQ(lane_.size(), 2);
}

TEST_F(Reader, WorkWaitsForTheRecordOfItsLaunch) {
  kernel(1, 100, 200);
  EXPECT_EQ(flush({{10, IssuedAt{0, 7}.packed()}}).unattributed, 0);
  EXPECT_EQ(flush().unattributed, 0) << "a flush that brings nothing makes nothing old";
  EXPECT_EQ(lane_.size(), 0);
  pushed(1, {0, 9});
  flush();
  ASSERT_EQ(lane_.size(), 1);
  EXPECT_EQ(lane_[0].instruction, 9);
}

TEST_F(Reader, WhatNeverGetsALaunchIsCounted) {
  kernel(1, 100, 200);
  kernel(2, 100, 200, kForeign);
  EXPECT_EQ(flush().unattributed, 1) << "a library's own stream";
  EXPECT_EQ(flush({}, /*last=*/true).unattributed, 1);
  EXPECT_EQ(lane_.size(), 0);
}

TEST_F(Reader, WorkBeforeTheFirstInstructionIsNobodys) {
  kernel(1, 100, 200);
  api(1, 5, 6);
  EXPECT_EQ(flush({{10, IssuedAt{0, 7}.packed()}}).unattributed, 1);
}

TEST_F(Reader, RecordsWithoutATimeAreLeftOutAndCounted) {
  kernel(1, 0, 0);
  kernel(2, 200, 100);
  pushed(1, {0, 1});
  pushed(2, {0, 1});
  const auto counts = flush();
  EXPECT_EQ(counts.untimed, 2);
  EXPECT_EQ(counts.unattributed, 0);
  EXPECT_EQ(lane_.size(), 0);
}

TEST_F(Reader, AWaitNamesBothStreams) {
  auto event = blank<CUpti_ActivityCudaEvent2>(CUPTI_ACTIVITY_KIND_CUDA_EVENT);
  event.cudaEventSyncId = 77;
  event.streamId = kOther;
  reader_.read(any(event));
  auto wait = blank<CUpti_ActivitySynchronization2>(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
  wait.type = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT;
  wait.start = 40;
  wait.end = 90;
  wait.streamId = kStream;
  wait.cudaEventSyncId = 77;
  wait.correlationId = 5;
  reader_.read(any(wait));
  const auto counts = flush({{10, IssuedAt{1, 2}.packed()}});
  EXPECT_EQ(counts.waits, 1);
  EXPECT_EQ(counts.events, 1);
  ASSERT_EQ(calls_.all().size(), 1U);
  const DriverCall& call = calls_.all()[0];
  EXPECT_EQ(std::string_view(call.name), "Stream Wait Event");
  EXPECT_EQ(call.lane, &lane_);
  EXPECT_EQ(call.awaited, &other_);
  EXPECT_EQ(call.step, 1);
  EXPECT_EQ(call.instruction, 2);
}

TEST_F(Reader, MemoryOfTheDriverTakesTheTimesOfItsCall) {
  auto memory = blank<CUpti_ActivityMemory4>(CUPTI_ACTIVITY_KIND_MEMORY2);
  memory.memoryOperationType = CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION;
  memory.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  memory.timestamp = 30;
  memory.bytes = 2 << 20;
  memory.correlationId = 6;
  reader_.read(any(memory));
  api(6, 25, 45);
  EXPECT_EQ(flush({{10, IssuedAt{0, 3}.packed()}}).memory_calls, 1);
  ASSERT_EQ(calls_.all().size(), 1U);
  const DriverCall& call = calls_.all()[0];
  EXPECT_EQ(std::string_view(call.name), "cudaMalloc");
  EXPECT_EQ(call.start, 25);
  EXPECT_EQ(call.end, 45);
  EXPECT_EQ(call.bytes, 2 << 20);
  EXPECT_EQ(call.instruction, 3);
}

TEST_F(Reader, CountsAreThoseOfOneFlush) {
  auto overhead = blank<CUpti_ActivityOverhead3>(CUPTI_ACTIVITY_KIND_OVERHEAD);
  overhead.start = 10;
  overhead.end = 35;
  reader_.read(any(overhead));
  EXPECT_EQ(flush().overhead_ns, 25);
  EXPECT_EQ(flush().overhead_ns, 0);
}

}  // namespace
}  // namespace foreshard::exec
