#include "traces/formats/fst.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdio>
#include <limits>

#include "tests/support/temporary_path.h"
#include "tests/traces/sample_timeline.h"

namespace foreshard {
namespace {

Timeline long_timeline(int spans) {
  Timeline t = sample_timeline();
  for (int i = 0; i < spans; ++i) {
    Span s = t.spans[0];
    s.start = 100'000 + 1'000LL * i;
    s.duration = 900 + i % 7;
    s.instruction = InstructionId(i);
    t.spans.push_back(s);
  }
  return t;
}

TEST(Fst, ReadsBackAnEqualTimeline) {
  const auto back = parse_fst(fst_bytes(sample_timeline()));
  ASSERT_TRUE(back.has_value()) << to_text(back.error());
  EXPECT_EQ(*back, sample_timeline());
}

TEST(Fst, ReadsBackAnEmptyTimeline) {
  const auto back = parse_fst(fst_bytes(Timeline{}));
  ASSERT_TRUE(back.has_value()) << to_text(back.error());
  EXPECT_EQ(*back, Timeline{});
}

TEST(Fst, ReadsBackMoreRowsThanOneBlockHolds) {
  const Timeline t = long_timeline(150'000);
  const std::string bytes = fst_bytes(t);
  const auto back = parse_fst(bytes);
  ASSERT_TRUE(back.has_value()) << to_text(back.error());
  EXPECT_EQ(*back, t);
  EXPECT_LT(bytes.size(), 150'000u) << "less than a byte a span, because the columns repeat themselves";
}

TEST(Fst, KeepsTheExtremesOfEveryNumber) {
  Timeline t = sample_timeline();
  t.spans[1].start = std::numeric_limits<std::int64_t>::max();
  t.spans[2].start = std::numeric_limits<std::int64_t>::min();
  t.spans[2].bytes = std::numeric_limits<std::int64_t>::min();
  t.spans[3].op = std::numeric_limits<std::int32_t>::max();
  const auto back = parse_fst(fst_bytes(t));
  ASSERT_TRUE(back.has_value()) << to_text(back.error());
  EXPECT_EQ(*back, t);
}

TEST(Fst, KeepsWhatForeignRecordingsCallTheirLanes) {
  Timeline t = sample_timeline();
  t.lanes[2].label = "stream 20";
  t.spans[5].kind = kLastSpanKind;
  const auto back = parse_fst(fst_bytes(t));
  ASSERT_TRUE(back.has_value()) << to_text(back.error());
  EXPECT_EQ(*back, t);
}

TEST(Fst, EqualTimelinesGiveEqualBytes) { EXPECT_EQ(fst_bytes(sample_timeline()), fst_bytes(sample_timeline())); }

TEST(Fst, AFileCutOffAnywhereIsAnErrorWithItsPlace) {
  const std::string bytes = fst_bytes(long_timeline(3'000));
  ASSERT_GT(bytes.size(), 1'000u);
  for (std::size_t size = 0; size < bytes.size(); size += 97) {
    const auto back = parse_fst(std::string_view(bytes).substr(0, size), "cut.fst");
    ASSERT_FALSE(back.has_value()) << size;
    EXPECT_EQ(back.error().file, "cut.fst");
    EXPECT_FALSE(back.error().place.empty());
    EXPECT_FALSE(back.error().expected.empty());
  }
}

TEST(Fst, EveryFlippedBitIsNoticed) {
  const std::string bytes = fst_bytes(sample_timeline());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string broken = bytes;
      broken[at] = static_cast<char>(broken[at] ^ (1 << bit));
      ASSERT_FALSE(parse_fst(broken).has_value()) << "byte " << at << ", bit " << bit;
    }
  }
}

// What checksums cannot catch: a file that is wrong and says that it is right.
TEST(Fst, WrongContentUnderRightChecksumsNeverCrashes) {
  const auto get32 = [](const std::string& s, std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i)
      value |= static_cast<std::uint32_t>(static_cast<unsigned char>(s[at + i])) << (8 * i);
    return value;
  };
  const std::string bytes = fst_bytes(sample_timeline());
  int accepted = 0, refused = 0;
  for (std::size_t block = 32; block < bytes.size(); block += 20 + get32(bytes, block + 12)) {
    const std::size_t stored = get32(bytes, block + 12);
    for (std::size_t at = block; at < block + 20 + stored; ++at) {
      if (at >= block + 12 && at < block + 20) continue;  // stored size, checksum
      for (const int flip : {0x01, 0x80, 0xff}) {
        std::string wrong = bytes;
        wrong[at] = static_cast<char>(wrong[at] ^ flip);
        const auto* data = reinterpret_cast<const Bytef*>(wrong.data());
        uLong crc = crc32(0, data + block, 16);
        crc = crc32(crc, data + block + 20, static_cast<uInt>(stored));
        for (int i = 0; i < 4; ++i) wrong[block + 16 + i] = static_cast<char>(crc >> (8 * i));
        (parse_fst(wrong).has_value() ? accepted : refused) += 1;
      }
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 100);
}

TEST(Fst, BytesOfAnotherKindAreAnError) {
  for (const std::string& text :
       {std::string(), std::string("{}"), std::string(1'000, '\0'), std::string(100'000, '\xff')}) {
    const auto back = parse_fst(text);
    ASSERT_FALSE(back.has_value());
    EXPECT_EQ(back.error().code, ErrorCode::BadSyntax);
  }
}

TEST(Fst, AReferenceToNothingIsAnError) {
  Timeline t = sample_timeline();
  t.spans[0].lane = LaneId(4);  // one behind the last lane
  EXPECT_FALSE(parse_fst(fst_bytes(t)).has_value());
  t = sample_timeline();
  t.marks[0].name = NameId(static_cast<std::int32_t>(t.names.size()));  // one behind the last name
  EXPECT_FALSE(parse_fst(fst_bytes(t)).has_value());
  t = sample_timeline();
  t.flows[0].to = SpanId(6);
  EXPECT_FALSE(parse_fst(fst_bytes(t)).has_value());
}

TEST(Fst, AnotherMajorVersionIsUnsupportedAndSaysSo) {
  std::string bytes = fst_bytes(Timeline{});
  bytes[8] = 2;
  const uLong crc = crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), 28);  // as a later release would write it
  for (int i = 0; i < 4; ++i) bytes[28 + i] = static_cast<char>(crc >> (8 * i));
  const auto back = parse_fst(bytes);
  ASSERT_FALSE(back.has_value());
  EXPECT_EQ(back.error().code, ErrorCode::Unsupported);
  EXPECT_EQ(back.error().got, "version 2");
}

TEST(Fst, WritesAndReadsAFile) {
  const std::string path = testing::temporary_path("x.fst");
  ASSERT_TRUE(write_fst(sample_timeline(), path).has_value());
  const auto back = read_fst(path);
  std::remove(path.c_str());
  ASSERT_TRUE(back.has_value()) << to_text(back.error());
  EXPECT_EQ(*back, sample_timeline());
}

TEST(Fst, AFolderThatIsNotThereIsAnError) {
  const auto written = write_fst(Timeline{}, "/nowhere/at/all.fst");
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().file, "/nowhere/at/all.fst");
  EXPECT_FALSE(read_fst("/nowhere/at/all.fst").has_value());
  EXPECT_FALSE(read_fst("/").has_value());
}

}  // namespace
}  // namespace foreshard
