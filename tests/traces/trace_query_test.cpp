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

/// The same question asked of a copy of the table, which SQLite sorts and compares by itself.
TEST(TraceQuery, GroupsOrdersAndTextsAreWhatSqliteWouldMakeOfThem) {
  Timeline t = small();
  t.names = {"b", "a", "", "b", "Z"};  // the same text twice, an empty one, an upper case
  t.lanes = {{0, "D"}, {0, "host"}, {1, "D"}};
  t.units = {"", "layers.0", "layers.1"};
  t.spans.clear();
  for (int i = 0; i < 400; ++i) {
    Span s;
    s.lane = LaneId(i % 7 == 0 ? -1 : i % 3), s.kind = static_cast<SpanKind>(i * 5 % 9), s.name = NameId(i % 6 - 1);
    s.start = i, s.duration = i * 31 % 17, s.unit = i % 5 - 1, s.phase = i % 4;
    t.spans.push_back(s);
  }
  t.spans[77].duration = 900'000'000'000;
  const std::string all = "(select *, id + 0 as copied from spans limit -1 offset 0)";
  for (const std::string question :
       {"name, count(*), sum(duration_ns) from SPANS group by name order by 1, 2",
        "distinct kind, unit from SPANS order by 1, 2",
        "name, kind, id from SPANS order by name, kind, id",
        "name, id from SPANS order by name desc, id",
        "id from SPANS where name = 'b' order by id",
        "count(*) from SPANS where kind = 'compute' and unit = 'root'",
        "stream, phase, max(duration_ns) from SPANS where start_ns > 33 group by stream, phase order by 1, 2",
        "id from SPANS where name = 'A' collate nocase order by id",
        "id from SPANS where name = 5",
        "count(*) from SPANS where name is null",
        "id from SPANS where unit = null",
        "id from SPANS where kind = x'41'",
        "kind, rank, count(*) from SPANS group by kind, rank order by 1, 2",
        "name from SPANS where kind = 'copy' group by name having count(*) > 3 order by name",
        "name as n, sum(duration_ns) / count(*) as mean, MIN(start_ns), max(start_ns) from SPANS where start_ns >= 7 "
        "and "
        "duration_ns < 12 and kind = 'compute' group by name order by mean desc, n limit 3 offset 1",
        "unit, kind, count(unit), count(op), sum(op), sum(bytes) + 1 from SPANS group by kind, unit order by 2, 1",
        "rank, sum(duration_ns), count(*) from SPANS group by rank order by rank desc",
        "rank + 1, kind, count(*) from SPANS where rank = 1 group by kind, rank order by 1, 2",
        "phase, count(*) from SPANS where stream = 'it''s' group by phase",
        "count(*) from SPANS group by stream order by 1",
        "name, start_ns from SPANS where name is null group by name",
        "upper(name), count(*) from SPANS group by name",
        "name, count(*) filter (where id > 3) from SPANS group by name order by 1",
        "name, count(*) from SPANS where name > 'A' group by name order by 1",
        "name, avg(duration_ns) from SPANS group by name order by name desc",
        "name, avg(duration_ns) from SPANS group by name order by name desc limit 1",
        "kind, name, avg(duration_ns) from SPANS group by kind, name order by kind desc, name desc",
        "distinct kind from SPANS order by kind desc limit 2",
        "name, count(*) from SPANS group by name having count(*) > '5' order by name",
        "name, count(*) as n from SPANS group by name having n < '5' order by name",
        "kind, max(start_ns) from SPANS group by kind having max(start_ns) >= '399' order by -max(start_ns)",
        "rank, count(*) from SPANS group by rank having rank = '1' order by 1"}) {
    std::string direct = "select " + question, copied = direct;
    direct.replace(direct.find("SPANS"), 5, "spans");
    copied.replace(copied.find("SPANS"), 5, all);
    EXPECT_EQ(asked(t, direct), asked(t, copied)) << question;
  }
}

TEST(TraceQuery, ColumnsOfGroupsAreCalledAsSqliteCallsThem) {
  std::vector<std::string> columns;
  QueryReceiver receiver;
  receiver.columns = [&](const std::vector<std::string>& names) { columns = names; };
  ASSERT_TRUE(query_timeline(
      small(), "select Name, count( * ), sum(duration_ns)/1e3 x, 2*max(start_ns) from spans group by name", receiver));
  EXPECT_THAT(columns, ElementsAre("name", "count( * )", "x", "2*max(start_ns)"));
  ASSERT_TRUE(
      query_timeline(small(), "select name, count( * ), 2 *max(start_ns) as y from spans group by name", receiver));
  EXPECT_THAT(columns, ElementsAre("name", "count( * )", "y"));
  EXPECT_THAT(asked(small(), "select name, sum(unheard) from spans group by name"),
              ElementsAre(HasSubstr("no such column: unheard")));
  EXPECT_THAT(asked(small(), "select unheard + 1, sum(bytes) from spans group by name"),
              ElementsAre(HasSubstr("no such column: unheard")));
}

TEST(TraceQuery, OfGroupsOnlyWhatTheTableHasIsAnswered) {
  EXPECT_THAT(asked(small(), "select name, count(*) from spans where rank = 3 and group by name"),
              ElementsAre(HasSubstr("syntax error")));
  EXPECT_THAT(asked(small(), "select name, sum_0 + 1 as x, count(*) from spans group by name"),
              ElementsAre(HasSubstr("no such column: sum_0")));
  for (const std::string row : {"rowid", "oid", "_rowid_"})
    EXPECT_THAT(
        asked(small(), "select name, " + row + " + 0 as r, count(*) from spans where start_ns = 40 group by name"),
        ElementsAre("cudaLaunchKernel|3|1"));
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

TEST(TraceQuery, AQuestionWithoutEndCanBeStopped) {
  int looks = 0, rows = 0;
  QueryReceiver receiver;
  receiver.stopped = [&] { return ++looks > 1'000; };
  receiver.row = [&](const std::vector<QueryValue>&) { return ++rows > 0; };
  EXPECT_TRUE(query_timeline(
      small(), "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n", receiver));
  EXPECT_EQ(rows, 0);
  EXPECT_EQ(looks, 1'001);
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
