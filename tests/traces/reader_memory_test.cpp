// What a reader holds while it reads: at most half as much again as the timeline that it returns, or as the file where
// that is larger; and never more than the file of a recording is worth, whatever it unpacks to.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/units.h"
#include "tests/support/temporary_path.h"
#include "traces/formats/chrome_trace.h"
#include "traces/formats/fst.h"
#include "traces/formats/open_trace.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

/// Of this process, in bytes: "VmHWM", "VmRSS".
Bytes status_of(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word != key + ":") continue;
    Bytes kibibytes = 0;
    status >> kibibytes;
    return kibibytes * kKiB;
  }
  return 0;
}

struct Reading {
  bool read = false;
  Bytes returned = 0;  // what the process holds more than before, once the reader is done
  Bytes peak = 0;      // ... and while it was at work
};

/// In a process of its own: memory that other tests have left in the C library's lists would hide what is taken.
Reading reading_of(const std::string& path) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
    const Bytes before = status_of("VmRSS");
    const auto trace = open_trace(path);
    const Reading reading{trace.has_value(), status_of("VmRSS") - before, status_of("VmHWM") - before};
    ::_exit(::write(ends[1], &reading, sizeof reading) == sizeof reading ? 0 : 1);
  }
  ::close(ends[1]);
  Reading reading;
  EXPECT_EQ(::read(ends[0], &reading, sizeof reading), ssize_t{sizeof reading});
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return reading;
}

Timeline large_timeline(int spans) {
  Timeline t;
  t.lanes = {{0, "D", 0}, {0, "host", 0}};
  for (int n = 0; n < 200; ++n) t.names.push_back(fmt::format("kernel number {} of a model", n));
  const auto half = spans / 2;
  for (int s = 0; s < spans; ++s) {
    Span span;
    span.lane = LaneId(s / half);
    span.kind = s < half ? SpanKind::Compute : SpanKind::HostIssue;
    span.start = 1000LL * (s % half) + s * 7919LL % 500;
    span.duration = 100 + s * 104729LL % 400;
    span.name = NameId(s % 200);
    t.spans.push_back(span);
  }
  t.provenance.source = "simulated";
  return t;
}

class ReaderMemory : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a process under a sanitizer takes the sanitizer's memory";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    GTEST_SKIP() << "a process under a sanitizer takes the sanitizer's memory";
#endif
#endif
    fs::create_directories(folder_);
  }
  ~ReaderMemory() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return folder_ / name; }

  fs::path folder_ = testing::temporary_path("reader_memory");
};

constexpr Bytes kBuffers = 24 * kMiB;  // of decompressors, chunks and threads: whatever the size

TEST_F(ReaderMemory, IsAtMostHalfAsMuchAgainAsWhatItReturns) {
  const Timeline timeline = large_timeline(1'000'000);
  for (const std::string name : {"x.fst", "x.json", "x.json.gz"}) {
    const std::string path = at(name);
    const auto written = name == "x.fst" ? write_fst(timeline, path) : write_chrome_trace(timeline, path);
    ASSERT_TRUE(written) << to_text(written.error());
    const Reading reading = reading_of(path);
    EXPECT_TRUE(reading.read) << name;
    const Bytes whole = std::max(reading.returned, static_cast<Bytes>(fs::file_size(path)));
    EXPECT_LE(reading.peak, whole / 2 * 3 + kBuffers)
        << name << ": " << reading.returned << " bytes returned, " << fs::file_size(path) << " in the file";
    EXPECT_GE(reading.returned, Bytes{1'000'000} * static_cast<Bytes>(sizeof(Span)) / 2)
        << name << ": measured nothing";
  }
}

/// Members of a packed file: `head`, then `body` as often as said. The same bytes each time, so that twenty gigabytes
/// are written in a second.
std::uintmax_t write_members(const std::string& path, const std::string& head, const std::string& body, int times) {
  const auto packed = [](const std::string& text) {
    z_stream stream{};
    EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    std::string out(deflateBound(&stream, text.size()), '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream.avail_in = static_cast<unsigned>(text.size());
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<unsigned>(out.size());
    EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
    out.resize(stream.total_out);
    deflateEnd(&stream);
    return out;
  };
  std::ofstream file(path, std::ios::binary);
  file << packed(head);
  const std::string member = packed(body);
  for (int k = 0; k < times; ++k) file << member;
  file.close();
  return fs::file_size(path);
}

const std::string kHead = R"({"traceEvents":[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2})";

TEST_F(ReaderMemory, TwentyGigabytesOfSpacesEndWhereNoRecordingWouldGoOn) {
  const std::string path = at("bomb.json.gz");
  const std::uintmax_t packed = write_members(path, kHead, std::string(4 << 20, ' '), 5000);
  EXPECT_LT(packed, 40'000'000U);
  const Reading reading = reading_of(path);
  EXPECT_TRUE(reading.read) << "what came before is shown";
  EXPECT_GT(reading.peak, 0);
  EXPECT_LE(reading.peak, 96 * kMiB);
}

TEST_F(ReaderMemory, WhatUnpacksJustSoIsReadInBuffers) {
  // A hundredfold, within what recordings do: a gigabyte of it, of which nothing is kept.
  std::string body;
  for (int k = 0; body.size() < (1U << 20U); ++k) {
    body += std::string(1400, ' ');
    body += fmt::format(",{}", k * 7919 % 1000003);
  }
  const std::string path = at("dense.json.gz");
  const std::uintmax_t packed = write_members(path, kHead, body, 1000);
  EXPECT_GT(packed * 200, std::uintmax_t{1000} << 20U) << "the trap's own rule would end it";
  const Reading reading = reading_of(path);
  EXPECT_TRUE(reading.read);
  EXPECT_LE(reading.peak, 96 * kMiB);
}

}  // namespace
}  // namespace foreshard
