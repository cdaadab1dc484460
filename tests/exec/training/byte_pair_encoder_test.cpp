// Encodings that the tokenizers library (0.23) recorded for two small tokenizers, one of each style.
#include "exec/data/byte_pair_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "exec/data/text_pattern.h"

namespace foreshard::exec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kFolder = std::string(FORESHARD_TEST_DATA) + "/tokenizer/";

std::string content_of(const std::string& name) {
  std::ifstream file(kFolder + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class BytePairEncoderStyles : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!TextPattern::compile("a")) GTEST_SKIP() << "built without PCRE2";
  }
};

TEST_P(BytePairEncoderStyles, GivesTheRecordedIds) {
  const auto encoder = BytePairEncoder::read(kFolder + GetParam() + ".json");
  ASSERT_TRUE(encoder) << to_text(encoder.error());
  const auto rows = nlohmann::json::parse(content_of(std::string(GetParam()) + ".encodings.json"));
  EXPECT_EQ(rows.size(), 15u);
  for (const auto& row : rows) {
    const auto text = row["text"].get<std::string>();
    const auto ids = encoder->encode(text);
    ASSERT_TRUE(ids) << to_text(ids.error());
    EXPECT_EQ(*ids, row["ids"].get<std::vector<std::int64_t>>()) << text;
    EXPECT_EQ(*encoder->encode(text), *ids) << "words seen before: " << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded, BytePairEncoderStyles, ::testing::Values("gpt2_style", "llama3_style"));

class BytePairEncoderErrors : public BytePairEncoderStyles {
 protected:
  static std::string error_of(const nlohmann::json& document) {
    const auto encoder = BytePairEncoder::parse(document.dump(), "tokenizer.json");
    return encoder ? std::string("none") : to_text(encoder.error());
  }
  nlohmann::json document = nlohmann::json::parse(content_of("gpt2_style.json"));
};
INSTANTIATE_TEST_SUITE_P(Once, BytePairEncoderErrors, ::testing::Values("gpt2_style"));

TEST_P(BytePairEncoderErrors, OtherKindsAreNamed) {
  document["model"]["type"] = "WordPiece";
  EXPECT_THAT(error_of(document), HasSubstr("model.type"));
  document = nlohmann::json::parse(content_of("gpt2_style.json"));
  document["normalizer"] = {{"type", "NFC"}};
  EXPECT_THAT(error_of(document), HasSubstr("normalizer"));
  document["normalizer"] = nullptr;
  document["pre_tokenizer"] = {{"type", "Metaspace"}};
  EXPECT_THAT(error_of(document), HasSubstr("pre_tokenizer"));
}

TEST_P(BytePairEncoderErrors, DamagedFilesAreNamedByPlace) {
  EXPECT_NE(error_of("text"), "none");
  EXPECT_NE(error_of(nlohmann::json::object()), "none");
  document["model"]["merges"][3] = "no such pair here";
  EXPECT_THAT(error_of(document), HasSubstr("model.merges[3]"));
  document["model"]["merges"] = nlohmann::json::array();
  document["model"]["vocab"]["a"] = "one";
  EXPECT_THAT(error_of(document), HasSubstr("model.vocab"));
  document["model"]["vocab"]["a"] = 65;
  document["added_tokens"] = {{{"id", -1}, {"content", "x"}}};
  EXPECT_THAT(error_of(document), HasSubstr("added_tokens"));
  EXPECT_FALSE(BytePairEncoder::read("/nowhere/tokenizer.json"));
}

TEST_P(BytePairEncoderErrors, TextThatIsNoUtf8IsAnErrorWithItsPlace) {
  const auto encoder = BytePairEncoder::parse(document.dump(), "tokenizer.json");
  const auto ids = encoder->encode("abc\xff");
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().place, "byte 3");
}

TEST_P(BytePairEncoderErrors, PatternsKeepWhatStandsBetweenMatches) {
  std::vector<std::string> parts;
  const auto split = TextPattern::compile("b+").value().split("aabbcb", [&](auto part) { parts.emplace_back(part); });
  ASSERT_TRUE(split);
  EXPECT_THAT(parts, ElementsAre("aa", "bb", "c", "b"));
  EXPECT_FALSE(TextPattern::compile("(unclosed"));
}

}  // namespace
}  // namespace foreshard::exec
