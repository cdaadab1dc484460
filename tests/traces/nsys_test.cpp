#include "traces/formats/nsys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <cstdio>

#include "tests/support/temporary_path.h"
#include "traces/timeline/iterations.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kReport = R"(
  CREATE TABLE StringIds (id INTEGER, value TEXT);
  INSERT INTO StringIds VALUES (1, 'sm90_gemm'), (2, 'ncclDevKernel_AllGather_RING_LL'), (3, 'cudaLaunchKernel'), (4, 'cudaDeviceSynchronize');
  CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
  INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 1500, 0, 7, 11, 1677721600, 1, 1), (1200, 1900, 0, 20, 12, 1677721600, 2, 2), (1600, 1550, 0, 7, 13, 1677721600, 1, 1);
  CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, copyKind INTEGER, bytes INTEGER);
  INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (2000, 2100, 0, 7, 14, 1677721600, 1, 4096);
  CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER);
  INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (900, 950, 1677721700, 11, 3), (960, 990, 1677721700, 12, 3), (2000, 2500, 1677721700, 20, 4);
  CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, globalTid INTEGER, eventType INTEGER, text TEXT, textId INTEGER);
  INSERT INTO NVTX_EVENTS VALUES (890, 955, 1677721700, 59, 'FSDP::pre_forward (layers.1)', NULL);
  CREATE TABLE TARGET_INFO_GPU (name TEXT); INSERT INTO TARGET_INFO_GPU VALUES ('NVIDIA H100');
)";

class Nsys : public ::testing::Test {
 protected:
  Nsys() : path_(testing::temporary_path("rank2_report.sqlite")) {}
  ~Nsys() override { std::remove(path_.c_str()); }

  void write(const char* statements) {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(database, statements, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(database);
    sqlite3_close(database);
  }
  std::string path_;
};

TEST_F(Nsys, KernelsCopiesCallsAndRangesBecomeATimeline) {
  write(kReport);
  const auto opened = open_trace(path_);
  ASSERT_TRUE(opened.has_value()) << to_text(opened.error());
  EXPECT_EQ(opened->format, "nsys");
  const Timeline& t = opened->timeline;
  EXPECT_THAT(ranks_of(t), ElementsAre(2)) << "from the file's name";
  EXPECT_EQ(t.provenance.hardware, "NVIDIA H100");
  ASSERT_EQ(t.spans.size(), 7u);
  EXPECT_EQ(t.flows.size(), 2u);
  int units = 0, waits = 0;
  for (const Span& span : t.spans) {
    if (span.kind == SpanKind::Compute) {
      EXPECT_EQ(t.lanes[span.lane.index()].stream, "D");
    }
    if (span.kind == SpanKind::AllGather) {
      EXPECT_EQ(t.lanes[span.lane.index()].stream, "A");
    }
    if (span.kind == SpanKind::Copy) {
      EXPECT_EQ(span.bytes, 4'096);
    }
    if (span.kind == SpanKind::Compute && span.unit >= 0) ++units;
    waits += span.kind == SpanKind::HostWait;
  }
  EXPECT_EQ(units, 1) << "launched inside the range";
  EXPECT_EQ(waits, 1);
  ASSERT_EQ(opened->warnings.size(), 1u);
  EXPECT_THAT(opened->warnings[0].text, HasSubstr("negative duration"));
}

TEST_F(Nsys, ColumnsAndTablesOfOtherReleasesMayBeAbsent) {
  write(
      "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, streamId INTEGER);"
      "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5, 9, 7);");
  const auto opened = open_trace(path_);
  ASSERT_TRUE(opened.has_value()) << to_text(opened.error());
  ASSERT_EQ(opened->timeline.spans.size(), 1u);
  EXPECT_EQ(opened->timeline.spans[0].duration, 4);
}

TEST_F(Nsys, OtherDatabasesAreAnError) {
  write("CREATE TABLE cats (name TEXT);");
  EXPECT_THAT(open_trace(path_).error().message, HasSubstr("no nsys export"));
}

TEST_F(Nsys, DamagedDatabasesNeverCrash) {
  write(kReport);
  std::FILE* file = std::fopen(path_.c_str(), "rb");
  ASSERT_NE(file, nullptr);
  std::string bytes(1 << 18, '\0');
  bytes.resize(std::fread(bytes.data(), 1, bytes.size(), file));
  std::fclose(file);
  for (std::size_t size = 0; size < bytes.size(); size += 997)
    static_cast<void>(parse_nsys(std::string_view(bytes).substr(0, size), "cut").has_value());
  for (std::size_t at = 100; at < bytes.size(); at += 331) {
    std::string broken = bytes;
    broken[at] ^= 0x55;
    static_cast<void>(parse_nsys(broken, "broken").has_value());
  }
}

}  // namespace
}  // namespace foreshard
