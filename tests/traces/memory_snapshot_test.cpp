#include "traces/formats/memory_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "traces/encodings/pickle.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string snapshot_bytes() {
  std::ifstream file(FORESHARD_TEST_DATA "/traces/snapshot.pickle", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::int64_t> values(const Timeline& t, const std::string& counter) {
  std::vector<std::int64_t> all;
  for (const CounterSample& s : t.samples) {
    if (t.counters[s.counter.index()].name == counter) all.push_back(s.value);
  }
  return all;
}

TEST(MemorySnapshot, CountersEndWhereTheSegmentsSay) {
  const auto opened = open_trace(FORESHARD_TEST_DATA "/traces/snapshot.pickle");
  ASSERT_TRUE(opened.has_value()) << to_text(opened.error());
  EXPECT_EQ(opened->format, "snapshot");
  EXPECT_THAT(opened->warnings, ::testing::IsEmpty());
  const Timeline& t = opened->timeline;
  EXPECT_THAT(values(t, "allocated"), ElementsAre(1'200, 1'700, 700)) << "200 bytes are older than the history";
  EXPECT_THAT(values(t, "active"), ElementsAre(1'200, 1'700, 700));
  EXPECT_THAT(values(t, "reserved"), ElementsAre(4'096));
  EXPECT_EQ(opened->origin_ns, 1'700'000'000'000'000'000);
}

TEST(MemorySnapshot, AllocationsAreRangesWithTheirBytesAndFrame) {
  const auto opened = parse_memory_snapshot(snapshot_bytes(), "snapshot.pickle");
  ASSERT_TRUE(opened.has_value());
  const Timeline& t = opened->timeline;
  ASSERT_EQ(t.spans.size(), 2u);
  EXPECT_EQ(t.name_of(t.spans[0].name), "model.py:12 forward") << "the innermost Python frame";
  EXPECT_EQ(t.spans[0].bytes, 1'000);
  EXPECT_EQ(t.spans[0].start, 10'000);
  EXPECT_EQ(t.spans[0].duration, 30'000);
  EXPECT_EQ(t.name_of(t.spans[1].name), "??:0 c10::cuda::malloc");
  EXPECT_EQ(t.spans[1].duration, 20'000) << "to the end of the history";
  ASSERT_EQ(t.marks.size(), 1u);
  EXPECT_EQ(t.name_of(t.marks[0].name), "oom");
}

TEST(MemorySnapshot, CutOffAnywhereItIsAnErrorWithItsPlace) {
  const std::string bytes = snapshot_bytes();
  ASSERT_GT(bytes.size(), 500u);
  for (std::size_t size = 1; size < bytes.size(); ++size) {
    const auto opened = parse_memory_snapshot(std::string_view(bytes).substr(0, size), "cut.pickle");
    ASSERT_FALSE(opened.has_value()) << size;
    EXPECT_EQ(opened.error().file, "cut.pickle");
    EXPECT_THAT(opened.error().place, HasSubstr("offset"));
  }
}

TEST(Pickle, NothingIsEverExecuted) {
  // What pickle.dumps makes of an object whose __reduce__ calls os.system, protocols 0 and 2.
  for (const std::string_view evil :
       {std::string_view("cposix\nsystem\n(S'true'\ntR."),
        std::string_view("\x80\x02"
                         "cposix\nsystem\nq\x00X\x04\x00\x00\x00trueq\x01\x85q\x02Rq\x03.",
                         36),
        std::string_view("\x80\x04\x8c\x02os\x8c\x06system\x93.")}) {
    const auto pickle = Pickle::parse(evil, "evil.pickle");
    ASSERT_FALSE(pickle.has_value());
    EXPECT_EQ(pickle.error().code, ErrorCode::Refused);
    EXPECT_THAT(pickle.error().message, HasSubstr("only plain data is read"));
  }
}

TEST(Pickle, ReadsWhatThePythonPicklerWritesOfPlainData) {
  // pickle.dumps({"a": [1, -2, 300, 2**40, None, True, 1.5], "t": (1, 2, 3, 4), "b": b"xy"}, protocol=2)
  const std::string_view bytes(
      "\x80\x02}q\x00(X\x01\x00\x00\x00"
      "aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM,\x01\x8a\x06\x00\x00\x00\x00\x00\x01N\x88G?\xf8"
      "\x00\x00\x00\x00\x00\x00"
      "eX\x01\x00\x00\x00tq\x03(K\x01K\x02K\x03K\x04tq\x04X\x01\x00\x00\x00"
      "bq\x05h\x01u.",
      80);
  const auto pickle = Pickle::parse(bytes.substr(0, bytes.find("u.") + 2), "p");
  ASSERT_TRUE(pickle.has_value()) << to_text(pickle.error());
  const PickleValue* list = pickle->get(pickle->root(), "a");
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(list->items.size(), 7u);
  EXPECT_EQ(pickle->at(list->items[1]).integer, -2);
  EXPECT_EQ(pickle->at(list->items[2]).integer, 300);
  EXPECT_EQ(pickle->at(list->items[3]).integer, std::int64_t{1} << 40);
  EXPECT_EQ(pickle->at(list->items[6]).number, 1.5);
  EXPECT_EQ(pickle->get(pickle->root(), "t")->items.size(), 4u);
  EXPECT_EQ(pickle->text(pickle->root(), "b"), "a") << "recalled from the memo";
}

TEST(Pickle, OpcodesThatFindTooLittleAreErrors) {
  for (const char* bytes : {".", "0", "a", "s", "e", "u", "t", "1", "2", "]K\x01s.",
                            "}K\x01"
                            "a.",
                            "h\x07.", "\x85.", "}(K\x01u.", "\xff",
                            "X\xff\xff\xff\xff"
                            "a"})
    EXPECT_FALSE(Pickle::parse(bytes, "p").has_value()) << bytes;
}

}  // namespace
}  // namespace foreshard
