#include "core/model/json_input.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace foreshard {
namespace {

Error error_of(std::string_view text) {
  const auto value = parse_json(text, "x.json");
  EXPECT_FALSE(value.has_value()) << text;
  return value ? Error{} : value.error();
}

TEST(JsonInput, ReadsAValue) {
  const auto value = parse_json(R"({"a": [1, -2, 3.5, true, null, "t"], "b": {"c": {}}})", "x.json");
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(value->dump(), R"({"a":[1,-2,3.5,true,null,"t"],"b":{"c":{}}})");
}

TEST(JsonInput, EmptyTextIsAnErrorWithALine) {
  for (const char* text : {"", "  \n\t "}) {
    const Error error = error_of(text);
    EXPECT_EQ(error.code, ErrorCode::BadSyntax);
    EXPECT_EQ(error.place, "line 1, column 1");
  }
}

TEST(JsonInput, SyntaxErrorsNameLineAndColumn) {
  const Error error = error_of("{\n \"a\": 1,\n \"b\": NaN\n}");
  EXPECT_EQ(error.code, ErrorCode::BadSyntax);
  EXPECT_EQ(error.file, "x.json");
  EXPECT_EQ(error.place.substr(0, 6), "line 3");
  EXPECT_EQ(error_of("{} {}").code, ErrorCode::BadSyntax);
  EXPECT_EQ(error_of("{\"a\": Infinity}").code, ErrorCode::BadSyntax);
  EXPECT_EQ(error_of("[1e999]").code, ErrorCode::BadSyntax);
  EXPECT_EQ(error_of("{\"a\": \"\xff\"}").code, ErrorCode::BadSyntax);
  EXPECT_EQ(error_of(std::string_view("{}\0{}", 5)).place, "offset 2");
}

TEST(JsonInput, DuplicateKeysAreErrorsThatNameTheKey) {
  const Error error = error_of(R"({"x": {"k": 1, "k": 1}})");
  EXPECT_EQ(error.code, ErrorCode::Inconsistent);
  EXPECT_NE(to_text(error).find("\"k\""), std::string::npos);
  EXPECT_EQ(error.place, "x.k");
}

TEST(JsonInput, NestingIsLimitedWithoutUsingTheStack) {
  const std::string deep(1'000'000, '[');
  EXPECT_EQ(error_of(deep).code, ErrorCode::TooDeep);
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(error_of(objects).code, ErrorCode::TooDeep);
  JsonLimits limits;
  limits.max_depth = 3;
  EXPECT_TRUE(parse_json("[[[1]]]", "x", limits).has_value());
  EXPECT_FALSE(parse_json("[[[[1]]]]", "x", limits).has_value());
}

TEST(JsonInput, MemoryIsLimited) {
  JsonLimits limits;
  limits.max_memory = 10'000;
  std::string text = "[";
  for (int i = 0; i < 5'000; ++i) text += "[],";
  text += "0]";
  const auto value = parse_json(text, "x", limits);
  ASSERT_FALSE(value.has_value());
  EXPECT_EQ(value.error().code, ErrorCode::TooLarge);
}

TEST(JsonInput, MissingFilesAndFoldersAreErrors) {
  EXPECT_EQ(read_json_file("/no/such/file.json").error().code, ErrorCode::NotFound);
  EXPECT_EQ(read_json_file(FORESHARD_TEST_DATA).error().code, ErrorCode::NotFound);
}

TEST(JsonInput, EveryTruncationOfADocumentIsAnError) {
  const std::string text = R"({"a": [1, -2.5e3, {"b": "x\u00e9y"}], "c": false, "d": null})";
  for (std::size_t n = 0; n < text.size(); ++n) EXPECT_EQ(error_of(text.substr(0, n)).code, ErrorCode::BadSyntax) << n;
}

TEST(JsonInput, NearestWordIsFoundOrNothing) {
  EXPECT_EQ(nearest_word("hiden_size", {"hidden_size", "vocab_size"}), "hidden_size");
  EXPECT_EQ(nearest_word("quantum_foam", {"hidden_size", "vocab_size"}), "");
}

}  // namespace
}  // namespace foreshard
