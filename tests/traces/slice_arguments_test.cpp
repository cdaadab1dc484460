// What a recording says of its slices beside time and name: kept by the readers, and by what is written from them.
#include "traces/timeline/slice_arguments.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "tests/support/temporary_path.h"
#include "tests/traces/trace_files.h"
#include "traces/encodings/byte_file.h"
#include "traces/formats/argument_reader.h"
#include "traces/formats/chrome_trace.h"
#include "traces/formats/fst.h"
#include "traces/formats/fst_layout.h"
#include "traces/formats/kineto.h"
#include "traces/formats/open_trace.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

OpenedTrace read_events(const std::string& events) {
  const std::string text = R"({"traceEvents": [)" + events + "]}";
  const auto source = memory_source(text);
  auto opened = read_chrome_json(*source, "trace.json");
  EXPECT_TRUE(opened.has_value()) << to_text(opened.error());
  return opened ? std::move(*opened) : OpenedTrace{};
}

const std::string kEvents = R"(
  {"ph":"X","cat":"kernel","name":"late","pid":0,"tid":7,"ts":90,"dur":5,
   "args":{"grid":[54, 1, 1],"registers per thread":32,"blocks per SM":0.5,"correlation":2}},
  {"ph":"X","cat":"kernel","name":"early","pid":0,"tid":7,"ts":10,"dur":5,"args":{"grid":[8,1,1],"correlation":1}},
  {"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":5,"dur":3,
   "args":{"Input Dims":[[8, 2048], [2048, 8]],"External id":-3,"big":12345678901234567890,"zero":007,"a \"q\"":"x\ny"}},
  {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":6,"dur":1,"args":{"correlation":1}},
  {"ph":"X","cat":"python_function","name":"f.py(3): f","pid":1,"tid":1,"ts":1,"dur":9,"args":{}})";

/// "name: key=value, ..." of every slice, sorted.
std::vector<std::string> lines(const Timeline& t, const SliceArguments& arguments) {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < t.spans.size(); ++i) {
    std::string line = std::string(t.name_of(t.spans[i].name)) + ":";
    std::vector<std::string> parts;
    for (const SliceArgument& a : arguments.of(SpanId(i)))
      parts.push_back(fmt::format(" {}={}", a.key, a.number ? std::to_string(*a.number) : std::string(a.json)));
    std::sort(parts.begin(), parts.end());
    for (const std::string& part : parts) line += part;
    all.push_back(line);
  }
  std::sort(all.begin(), all.end());
  return all;
}

TEST(SliceArguments, StayWithTheirSliceAsItStoodInTheFile) {
  const OpenedTrace opened = read_events(kEvents);
  EXPECT_THAT(
      lines(opened.timeline, opened.arguments),
      ElementsAre(
          R"(aten::mm: External id=-3 Input Dims=[[8, 2048], [2048, 8]] a \"q\"="x\ny" big=12345678901234567890 zero=007)",
          "cudaLaunchKernel: correlation=1", "early: correlation=1 grid=[8,1,1]",
          "f.py(3): f:", "late: blocks per SM=0.5 correlation=2 grid=[54, 1, 1] registers per thread=32"));
}

TEST(SliceArguments, OfOneKeyAreWordsAndNumbers) {
  const OpenedTrace opened = read_events(kEvents);
  const Timeline& t = opened.timeline;
  for (std::size_t i = 0; i < t.spans.size(); ++i) {
    const auto number = opened.arguments.of(SpanId(i), "registers per thread");
    EXPECT_EQ(number.has_value(), t.name_of(t.spans[i].name) == "late");
    if (number) {
      EXPECT_EQ(number->words(), "32");
    }
    if (const auto text = opened.arguments.of(SpanId(i), R"(a \"q\")")) {
      EXPECT_EQ(text->words(), "x\ny");
    }
  }
}

TEST(SliceArguments, AFileOfOurOwnKeepsThemAllOfThem) {
  const OpenedTrace opened = read_events(kEvents);
  SliceArguments back;
  const auto timeline = parse_fst(fst_bytes(opened.timeline, opened.arguments), "x.fst", &back);
  ASSERT_TRUE(timeline) << to_text(timeline.error());
  EXPECT_EQ(*timeline, opened.timeline);
  EXPECT_EQ(lines(*timeline, back), lines(opened.timeline, opened.arguments));
}

TEST(SliceArguments, AReaderThatDoesNotWantThemGetsTheTimeline) {
  const OpenedTrace opened = read_events(kEvents);
  const auto timeline = parse_fst(fst_bytes(opened.timeline, opened.arguments));
  ASSERT_TRUE(timeline) << to_text(timeline.error());
  EXPECT_EQ(*timeline, opened.timeline);
}

TEST(SliceArguments, ChromeJsonKeepsWhatIsJson) {
  const OpenedTrace opened = read_events(kEvents);
  const std::string path = testing::temporary_path("arguments.json");
  ASSERT_TRUE(write_chrome_trace(opened.timeline, path, opened.arguments));
  const auto back = open_trace(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(back) << to_text(back.error());
  EXPECT_THAT(back->warnings, IsEmpty());
  std::vector<std::string> wanted = lines(opened.timeline, opened.arguments);
  for (std::string& line : wanted) {
    if (const std::size_t at = line.find(" zero=007"); at != std::string::npos) line.erase(at);  // no JSON
  }
  EXPECT_EQ(lines(back->timeline, back->arguments), wanted);
}

TEST(SliceArguments, OfSeveralRanksStandBehindEachOther) {
  const OpenedTrace opened = read_events(kEvents);
  SliceArguments both = opened.arguments;
  const std::size_t spans = opened.timeline.spans.size();
  both.append(opened.arguments, spans, spans);
  for (std::size_t i = 0; i < spans; ++i) {
    const auto first = both.of(SpanId(i)), second = both.of(SpanId(i + spans)), was = opened.arguments.of(SpanId(i));
    ASSERT_EQ(first.size(), was.size());
    ASSERT_EQ(second.size(), was.size());
    for (std::size_t k = 0; k < was.size(); ++k) {
      EXPECT_EQ(second[k].key, was[k].key);
      EXPECT_EQ(second[k].number, was[k].number);
      EXPECT_EQ(second[k].json, was[k].json);
    }
  }
}

/// Slices of one lane, nothing but their arguments to tell them apart.
Timeline slices(std::size_t count) {
  Timeline t;
  t.names = {"s"};
  t.lanes = {{0, "D"}};
  for (std::size_t i = 0; i < count; ++i) {
    Span span;
    span.lane = LaneId(0), span.kind = SpanKind::Compute, span.start = 10 * static_cast<SimTime>(i), span.duration = 5;
    span.name = NameId(0);
    t.spans.push_back(span);
  }
  return t;
}

std::optional<std::int64_t> number(const SliceArguments& arguments, std::size_t span) {
  const auto found = arguments.of(SpanId(span), "k");
  return found ? found->number : std::nullopt;
}

TEST(SliceArguments, OfRowsOfAnyNumberStayWithTheirSlice) {
  constexpr std::uint32_t kLast = SliceArguments::kNone - 1;
  SliceArguments arguments;
  arguments.columns.push_back({"k", {5, 9, kLast}, {42, 1, 43}, {}, {}});
  arguments.row_of_span = {kLast, SliceArguments::kNone, 5};
  SliceArguments back;
  ASSERT_TRUE(parse_fst(fst_bytes(slices(3), arguments), "x.fst", &back));
  for (const std::uint32_t row : back.row_of_span) EXPECT_TRUE(row < 3 || row == SliceArguments::kNone);
  SliceArguments both = back;
  both.append(back, 3, 3);
  for (const std::size_t first : {0, 3}) {
    EXPECT_EQ(number(both, first), 43);
    EXPECT_EQ(number(both, first + 1), std::nullopt);
    EXPECT_EQ(number(both, first + 2), 42);
  }
}

TEST(SliceArguments, OfSlicesThatWereLeftOutAreNobodys) {
  SliceArguments arguments;
  arguments.columns.push_back({"k", {0, 1}, {42, 1}, {}, {}});
  arguments.row_of_span = {0};
  SliceArguments back;
  ASSERT_TRUE(parse_fst(fst_bytes(slices(1), arguments), "x.fst", &back));
  EXPECT_THAT(back.columns[0].numbers, ElementsAre(42));
  arguments.append(back, 1, 1);
  EXPECT_EQ(number(arguments, 0), 42);
  EXPECT_EQ(number(arguments, 1), 42);
}

std::uint32_t get32(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i)
    value |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return value;
}

void set32(std::string& bytes, std::size_t at, std::uint64_t value) {
  for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<char>(value >> (8 * i));
}

/// The same file whose keys of arguments, all equal, stand in blocks of one row each.
std::string with_blocks_of_one_key(const std::string& bytes) {
  std::string made = bytes.substr(0, fst::kHeaderBytes);
  std::uint32_t blocks = 0;
  for (std::size_t at = fst::kHeaderBytes, end = 0; at < bytes.size(); at = end) {
    end = at + fst::kBlockHeaderBytes + get32(bytes, at + 12);
    std::string block = bytes.substr(at, end - at);
    const bool keys = block[0] == static_cast<char>(fst::Table::Arguments) && block[1] == 0;
    std::uint32_t copies = 1;
    if (keys) {
      EXPECT_EQ(block[2], static_cast<char>(fst::Encoding::Constant));
      copies = get32(block, 4);
      set32(block, 4, 1);
      set32(block, 16, fst::checksum(block.substr(0, 16), block.substr(fst::kBlockHeaderBytes)));
    }
    for (std::uint32_t i = 0; i < copies; ++i) made += block;
    blocks += copies;
  }
  set32(made, 12, blocks);
  set32(made, 16, made.size());
  set32(made, 28, fst::checksum(made.substr(0, 28)));
  return made;
}

TEST(SliceArguments, OfBlocksOfAnyLengthAreReadOnce) {
  constexpr std::uint32_t kSlices = 60'000;
  SliceArguments arguments;
  auto& column = arguments.columns.emplace_back();
  column.key = "k";
  for (std::uint32_t i = 0; i < kSlices; ++i) {
    column.number_rows.push_back(i);
    column.numbers.push_back(3 * i);
    arguments.row_of_span.push_back(i);
  }
  SliceArguments back;
  const auto timeline = parse_fst(with_blocks_of_one_key(fst_bytes(slices(kSlices), arguments)), "x.fst", &back);
  ASSERT_TRUE(timeline) << to_text(timeline.error());
  ASSERT_EQ(back.columns.size(), 1u);
  EXPECT_EQ(back.columns[0].number_rows, column.number_rows);
  EXPECT_EQ(back.columns[0].numbers, column.numbers);
}

TEST(SliceArguments, ChromeJsonKeepsNumbersBesideAnEmptyText) {
  SliceArguments arguments;
  for (const char* text : {"", "\"v\""}) arguments.texts.add(text);
  arguments.columns.push_back({"k", {0, 1}, {42, 43}, {}, {}});
  arguments.columns.push_back({"text", {}, {}, {0, 1}, {1, 0}});
  arguments.row_of_span = {0, 1};
  const std::string path = testing::temporary_path("empty_text.json");
  ASSERT_TRUE(write_chrome_trace(slices(2), path, arguments));
  const auto back = open_trace(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(back) << to_text(back.error());
  EXPECT_THAT(lines(back->timeline, back->arguments), ElementsAre("s: k=42 text=\"v\"", "s: k=43"));
}

TEST(SliceArguments, AThreadOfItsOwnGathersThoseOfLargeFiles) {
  ArgumentReader reader;
  for (int i = 0; i < 200'000; ++i)
    EXPECT_EQ(reader.take(fmt::format(R"({{"n":{},"shape":[{}, 4],"instruction":5}})", i, i % 300), i % 2 == 0),
              static_cast<std::uint32_t>(i));
  const SliceArguments all = reader.finish();
  ASSERT_EQ(all.columns.size(), 3u);
  EXPECT_EQ(all.columns[0].numbers.size(), 200'000u);
  EXPECT_EQ(all.columns[0].numbers[123'456], 123'456);
  EXPECT_EQ(all.texts.size(), 300u) << "each text is there once";
  EXPECT_EQ(all.columns[2].key, "instruction");
  EXPECT_EQ(all.columns[2].numbers.size(), 100'000u) << "of our own slices it is a field of the span";
}

TEST(SliceArguments, DamageGivesWhatStandsBeforeIt) {
  ArgumentColumns columns;
  for (const std::string text : {R"({"a":1,"b")", R"({"a":2,)", R"({"a":[1,2)", "[1,2]", R"({"a":3,"a":4})", "{"})
    columns.add(text, false);
  const SliceArguments all = columns.finish();
  ASSERT_EQ(all.columns.size(), 1u);
  EXPECT_THAT(all.columns[0].number_rows, ElementsAre(0, 1, 4));
  EXPECT_THAT(all.columns[0].numbers, ElementsAre(1, 2, 3));
}

TEST(SliceArguments, AFileWithATableOutOfOrderIsRefused) {
  OpenedTrace opened = read_events(kEvents);
  for (auto& column : opened.arguments.columns) std::reverse(column.number_rows.begin(), column.number_rows.end());
  SliceArguments back;
  const auto timeline = parse_fst(fst_bytes(opened.timeline, opened.arguments), "x.fst", &back);
  ASSERT_FALSE(timeline);
  EXPECT_EQ(timeline.error().code, ErrorCode::BadSyntax);
}

TEST(SliceArguments, EveryDamagedByteOfTheirTablesIsNoticed) {
  const OpenedTrace opened = read_events(kEvents);
  const std::string bytes = fst_bytes(opened.timeline, opened.arguments);
  for (std::size_t i = 0; i < bytes.size(); i += 7) {
    std::string broken = bytes;
    broken[i] = static_cast<char>(broken[i] ^ 0x21);
    SliceArguments back;
    EXPECT_FALSE(parse_fst(broken, "x.fst", &back)) << i;
  }
}

}  // namespace
}  // namespace foreshard
