// Readers of recordings and questions about them: bytes a second from page cache, memory beside the file's size.
//
// The file is made here (Kineto's layout, a million events) or named in FORESHARD_TRACE, for example the inflated
// hta_df_index_resolver.json. "rss_of_file": growth of the peak resident memory while reading, in file sizes.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "traces/analysis/analysis.h"
#include "traces/analysis/range_statistics.h"
#include "traces/formats/fst.h"
#include "traces/formats/open_trace.h"
#include "traces/query/trace_query.h"

namespace {

using namespace foreshard;

std::string kineto_event(int i) {
  const int correlation = i / 3;
  const double at = 1'000.0 * correlation / 50;
  switch (i % 3) {
    case 0:
      return fmt::format(
          "  {{\n    \"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"aten::op_{}\", \"pid\": 100, \"tid\": 100,\n    "
          "\"ts\": "
          "{:.3f}, \"dur\": 15.250,\n    \"args\": {{\n      \"External id\": {},\"Record function id\": 0, \"Sequence "
          "number\": 7, \"Fwd thread id\": 0, \"Input Dims\": [[8, 2048, 4096], [4096, 4096], []], \"Ev Idx\": {}\n    "
          "}}\n  }}",
          correlation % 180, at, correlation, i);
    case 1:
      return fmt::format(
          "  {{\n    \"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"cudaLaunchKernel\", \"pid\": 100, \"tid\": "
          "100,\n    "
          "\"ts\": {:.3f}, \"dur\": 4.125,\n    \"args\": {{\n      \"External id\": {},\"cbid\": 211, "
          "\"correlation\": {}\n    "
          "}}\n  }}",
          at + 5, correlation, correlation);
    default:
      return fmt::format(
          "  {{\n    \"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"void at::native::kernel_{}<float>(float*, float "
          "const*)\", "
          "\"pid\": 0, \"tid\": {},\n    \"ts\": {:.3f}, \"dur\": 11.500,\n    \"args\": {{\n      \"External id\": "
          "{},\"queued\": "
          "0, \"device\": 0, \"context\": 1,\n      \"stream\": 7, \"correlation\": {},\n      \"registers per "
          "thread\": 32, "
          "\"shared memory\": 0, \"blocks per SM\": 0.5, \"warps per SM\": 2.0, \"grid\": [54, 1, 1], \"block\": [128, "
          "1, 1], "
          "\"est. achieved occupancy %\": 3\n    }}\n  }}",
          correlation % 97, 7 + correlation % 3, at + 20, correlation, correlation);
  }
}

/// Made once; named by FORESHARD_TRACE instead if that is set.
const std::string& trace_file() {
  static const std::string path = [] {
    if (const char* named = std::getenv("FORESHARD_TRACE")) return std::string(named);
    std::string made = std::filesystem::temp_directory_path() / fmt::format("foreshard_bench_{}.json", getpid());
    std::ofstream file(made);
    file << "{\n  \"schemaVersion\": 1,\n  \"traceEvents\": [\n";
    for (int i = 0; i < 999'999; ++i) file << (i > 0 ? ",\n" : "") << kineto_event(i);
    file << "\n  ],\n  \"traceName\": \"made\"\n}\n";
    return made;
  }();
  return path;
}

std::string packed_trace() {
  static const std::string path = [] {
    std::string packed = std::filesystem::temp_directory_path() / fmt::format("foreshard_bench_{}.json.gz", getpid());
    std::ifstream in(trace_file(), std::ios::binary);
    const gzFile out = gzopen(packed.c_str(), "wb6");
    std::string part(1 << 20, '\0');
    while (in.read(part.data(), static_cast<std::streamsize>(part.size())) || in.gcount() > 0)
      gzwrite(out, part.data(), static_cast<unsigned>(in.gcount()));
    gzclose(out);
    return packed;
  }();
  return path;
}

double peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

void read(benchmark::State& state, const std::string& path) {
  const auto bytes = static_cast<double>(std::filesystem::file_size(trace_file()));
  const double before = peak_rss_bytes();
  std::size_t spans = 0;
  for (auto _ : state) {
    auto opened = open_trace(path);
    if (!opened) return state.SkipWithError(to_text(opened.error()).c_str());
    spans = opened->timeline.spans.size();
    benchmark::DoNotOptimize(opened);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * static_cast<std::int64_t>(state.iterations()));
  state.counters["spans"] = static_cast<double>(spans);
  state.counters["file_MB"] = bytes / 1e6;
  state.counters["rss_of_file"] = (peak_rss_bytes() - before) / bytes;
}

void kineto_plain(benchmark::State& state) { read(state, trace_file()); }
void kineto_gz(benchmark::State& state) { read(state, packed_trace()); }

const Timeline& timeline() {
  static const Timeline t = [] {
    auto opened = open_trace(trace_file());
    return opened ? std::move(opened->timeline) : Timeline{};
  }();
  return t;
}

void fst_read(benchmark::State& state) {
  const std::string bytes = fst_bytes(timeline());
  for (auto _ : state) benchmark::DoNotOptimize(parse_fst(bytes));
  state.counters["fst_MB"] = static_cast<double>(bytes.size()) / 1e6;
}

void index_statistics(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(RangeStatistics(timeline()));
}

void ask_statistics(benchmark::State& state) {
  const RangeStatistics statistics(timeline());
  std::mt19937_64 random(1);
  const auto length = static_cast<std::uint64_t>(statistics.end() - statistics.begin() + 1);
  for (auto _ : state) {
    const SimTime begin = statistics.begin() + static_cast<SimTime>(random() % length);
    const SimTime end = begin + static_cast<SimTime>(random() % length);
    benchmark::DoNotOptimize(statistics.rank(statistics.ranks().front(), begin, end));
    for (std::size_t lane = 0; lane < statistics.lanes(); ++lane)
      benchmark::DoNotOptimize(statistics.lane(LaneId(lane), begin, end));
    for (std::size_t c = 0; c < statistics.counters(); ++c)
      benchmark::DoNotOptimize(statistics.counter(CounterId(c), begin, end));
  }
}

void analyse(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(analyse_timeline(timeline()));
}

/// Ten million slices of 300 names on 8 ranks.
const Timeline& large() {
  static const Timeline t = [] {
    Timeline made;
    for (int rank = 0; rank < 8; ++rank)
      for (const char* stream : {"host", "D"}) made.lanes.push_back({rank, stream, 0});
    for (int n = 0; n < 300; ++n) made.names.push_back(fmt::format("kernel number {} of a model", n * 7919 % 300));
    std::mt19937 random(3);
    constexpr int kSpans = 10'000'000;
    for (int i = 0; i < kSpans; ++i) {
      Span span;
      span.lane = LaneId(static_cast<std::size_t>(i) * made.lanes.size() / kSpans);
      span.kind = span.lane.index() % 2 == 0 ? SpanKind::HostIssue : SpanKind::Compute;
      span.start = 700LL * (i % (kSpans / 16)), span.duration = 100 + random() % 500;
      span.name = NameId(static_cast<std::size_t>(random() % 300));
      made.spans.push_back(span);
    }
    return made;
  }();
  return t;
}

void ask_sql(benchmark::State& state, const char* question) {
  large();
  std::size_t rows = 0;
  QueryReceiver receiver;
  receiver.row = [&](const std::vector<QueryValue>&) { return ++rows, true; };
  for (auto _ : state) {
    const auto done = query_timeline(large(), question, receiver);
    if (!done) state.SkipWithError(to_text(done.error()).c_str());
  }
  state.counters["rows"] = static_cast<double>(rows) / static_cast<double>(state.iterations());
}

BENCHMARK_CAPTURE(ask_sql, count, "select count(*) from spans")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(ask_sql, count_of_kind, "select count(*) from spans where kind = 'compute'")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(ask_sql, group_by_name,
                  "select name, count(*), sum(duration_ns) from spans group by name order by 3 desc")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(
    ask_sql, group_by_name_of_a_kind,
    "select name, count(*), sum(duration_ns) from spans where kind = 'compute' group by name order by 3 desc")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(ask_sql, group_by_rank, "select rank, sum(duration_ns) from spans group by rank")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(ask_sql, longest, "select id, name, duration_ns from spans order by duration_ns desc limit 10")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(ask_sql, in_a_window, "select count(*) from spans where start_ns between 1000000 and 2000000")
    ->Unit(benchmark::kMillisecond);
BENCHMARK(kineto_plain)->Unit(benchmark::kMillisecond);
BENCHMARK(kineto_gz)->Unit(benchmark::kMillisecond);
BENCHMARK(fst_read)->Unit(benchmark::kMillisecond);
BENCHMARK(index_statistics)->Unit(benchmark::kMillisecond);
BENCHMARK(ask_statistics)->Unit(benchmark::kMicrosecond);
BENCHMARK(analyse)->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  if (std::getenv("FORESHARD_TRACE") == nullptr) std::remove(trace_file().c_str());
  std::remove(packed_trace().c_str());
  return 0;
}
