#include "traces/query/trace_query.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/traces/planted_run.h"
#include "traces/analysis/kernel_table.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string text_of(const QueryValue& value) {
  if (const auto* number = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *number);
  if (const auto* real = std::get_if<double>(&value)) return fmt::format("{}", *real);
  if (const auto* text = std::get_if<std::string_view>(&value)) return std::string(*text);
  return "NULL";
}

/// Rows as "a|b|c"; of an error its text.
std::vector<std::string> asked(const Timeline& timeline, const std::string& sql) {
  std::vector<std::string> rows;
  QueryReceiver receiver;
  receiver.row = [&](const std::vector<QueryValue>& row) {
    std::string text;
    for (const QueryValue& value : row) text += (text.empty() ? "" : "|") + text_of(value);
    rows.push_back(text);
    return true;
  };
  const auto done = query_timeline(timeline, sql, receiver);
  return done ? rows : std::vector<std::string>{"error: " + done.error().message};
}

Timeline small() {
  Timeline t;
  t.names = {"gemm", "cudaLaunchKernel"};
  t.units = {"", "layers.0"};
  t.lanes = {{3, "D"}, {3, "host"}};
  const auto span = [](int lane, SpanKind kind, SimTime start, SimDuration duration, int name, int unit) {
    Span s;
    s.lane = LaneId(lane), s.kind = kind, s.start = start, s.duration = duration, s.name = NameId(name), s.unit = unit;
    return s;
  };
  t.spans = {span(0, SpanKind::Compute, 10, 30, 0, 0), span(0, SpanKind::Compute, 50, 5, 0, 1),
             span(1, SpanKind::HostIssue, 2, 4, 1, -1), span(1, SpanKind::HostIssue, 40, 4, 1, -1)};
  t.flows = {{SpanId(2), SpanId(0)}, {SpanId(3), SpanId(1)}};
  t.counters = {{3, "allocated", "bytes"}};
  t.samples = {{CounterId(0), 5, 100}, {CounterId(0), 45, 70}};
  return t;
}

TEST(TraceQuery, SpansAreRowsWithTheirNamesUnitsAndTimes) {
  EXPECT_THAT(asked(small(), "select id, rank, stream, kind, name, start_ns, end_ns, unit, instruction from spans"),
              ElementsAre("0|3|D|compute|gemm|10|40|root|NULL", "1|3|D|compute|gemm|50|55|layers.0|NULL",
                          "2|3|host|host_issue|cudaLaunchKernel|2|6|NULL|NULL",
                          "3|3|host|host_issue|cudaLaunchKernel|40|44|NULL|NULL"));
}

TEST(TraceQuery, ComparisonsAndJoinsGiveWhatSqlSays) {
  EXPECT_THAT(asked(small(), "select id from spans where start_ns > 10 and start_ns <= 50 and duration_ns = 5"),
              ElementsAre("1"));
  EXPECT_THAT(asked(small(), "select id from spans where start_ns >= 10.5 and start_ns < 50"), ElementsAre("3"));
  EXPECT_THAT(asked(small(), "select id from spans where instruction < 7"), IsEmpty()) << "NULL is less than nothing";
  EXPECT_THAT(asked(small(),
                    "select w.id, w.start_ns - c.start_ns from flows join spans c on c.id = from_span "
                    "join spans w on w.id = to_span order by 1"),
              ElementsAre("0|8", "1|10"));
  EXPECT_THAT(asked(small(), "select id from spans where id = 9"), IsEmpty());
  EXPECT_THAT(asked(small(), "select name, max(value) from samples join counters on counters.id = counter"),
              ElementsAre("allocated|100"));
}

TEST(TraceQuery, SumsEqualThoseOfTheKernelTable) {
  const OpenedTrace trace = testing::opened({});
  const std::vector<KernelRow> table = kernel_table(trace.timeline);
  std::vector<std::string> rows;
  for (const KernelRow& row : table) rows.push_back(fmt::format("{}|{}|{}", row.name, row.count, row.total));
  EXPECT_EQ(asked(trace.timeline,
                  "select name, count(*), sum(duration_ns) as total from spans where kind not in "
                  "('host_issue', 'host_wait', 'wait', 'annotation') group by name order by total desc, name"),
            rows);
}

TEST(TraceQuery, WhatDoesMoreThanReadIsRefused) {
  for (const char* sql : {"create table a(b)", "attach '/tmp/x' as y", "pragma journal_mode", "delete from spans",
                          "select 1; select 2", "", "select load_extension('x')"}) {
    EXPECT_THAT(asked(small(), sql), ElementsAre(HasSubstr("error: "))) << sql;
  }
  EXPECT_THAT(asked(small(), "select nowhere from spans"), ElementsAre("error: no such column: nowhere"));
}

TEST(TraceQuery, ThePageHasTheTablesAsTheyAre) {
  std::ifstream file(FORESHARD_SOURCE_DIR "/docs/formats/sql.md");
  std::stringstream page;
  page << file.rdbuf();
  for (const std::string& table : timeline_schema()) EXPECT_THAT(page.str(), HasSubstr(table + "\n"));
}

TEST(KernelTable, CountsSumsAndSpreadsByNameOperatorAndLayer) {
  testing::PlantedRun run;
  run.steps = 2, run.blocks = 3;
  const OpenedTrace trace = testing::opened(run);
  const auto row = [](const std::vector<KernelRow>& rows, std::string_view name) {
    for (const KernelRow& r : rows)
      if (r.name.find(name) != std::string::npos) return r;
    return KernelRow{};
  };
  const KernelRow gathers = row(kernel_table(trace.timeline), "AllGather");
  EXPECT_EQ(gathers.count, 2 * (1 + 3 + 2));
  EXPECT_EQ(gathers.kind, SpanKind::AllGather);
  EXPECT_EQ(gathers.least, 700'000);
  EXPECT_EQ(gathers.p50, 900'000);
  EXPECT_EQ(gathers.most, 900'000);
  EXPECT_EQ(gathers.total, 2 * (700'000 + 5 * 900'000));
  KernelTableOptions options;
  options.by = KernelKey::Operator;
  EXPECT_EQ(row(kernel_table(trace.timeline, options), "aten::mm").total, 2 * 3 * 2'000'000);
  options.by = KernelKey::Layer;
  EXPECT_GT(row(kernel_table(trace.timeline, options), "layers.2").total, 2 * 6'000'000);
  double share = 0;
  for (const KernelRow& r : kernel_table(trace.timeline, options)) share += r.share;
  EXPECT_NEAR(share, 1, 1e-9);
}

TEST(KernelTable, DifferencesAddUpToTheDifferenceOfTheTables) {
  testing::PlantedRun slow;
  slow.casts = 400;
  const auto a = kernel_table(testing::opened(slow).timeline), b = kernel_table(testing::opened({}).timeline);
  const auto rows = kernel_differences(a, b);
  ASSERT_THAT(rows, Not(IsEmpty()));
  EXPECT_THAT(rows.front().a.name, HasSubstr("LoadWithCast"));
  EXPECT_EQ(rows.front().b.count, 0);
  EXPECT_EQ(rows.front().difference(), 4 * 6 * 400'000);
}

TEST(KernelTable, NamesAreFoldedToWhatTellsThemApart) {
  EXPECT_EQ(folded_kernel_name("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
                               "at::detail::Array<char*, 3> >(int, float)"),
            "at::native::vectorized_elementwise_kernel<>");
  EXPECT_EQ(folded_kernel_name("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 1>(float*)"),
            "at::native::CatArrayBatchedCopy<>");
  EXPECT_EQ(folded_kernel_name("ampere_sgemm_128x64_tn"), "ampere_sgemm_128x64_tn");
}

}  // namespace
}  // namespace foreshard
