#include <gtest/gtest.h>

#include "core/dtype.h"
#include "core/job.h"
#include "core/result.h"
#include "core/text/edit_distance.h"
#include "core/text/utf8.h"

namespace foreshard {
namespace {

TEST(DType, NamesGoBothWays) {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
    EXPECT_EQ(parse_dtype("torch." + std::string(dtype_name(dtype))), dtype);
    EXPECT_EQ(parse_dtype(dtype_short_name(dtype)), dtype);
    EXPECT_GT(itemsize(dtype), 0);
  }
  EXPECT_FALSE(parse_dtype("float7").has_value());
}

TEST(DType, OnlyFloatsCarryGradients) {
  EXPECT_TRUE(is_floating(DType::BFloat16));
  EXPECT_FALSE(is_floating(DType::Int64));
  EXPECT_FALSE(is_floating(DType::Bool));
}

TEST(DType, ComplexNumbersArePairs) {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(itemsize(dtype), itemsize(real_dtype(dtype)) * (is_complex(dtype) ? 2 : 1)) << dtype_name(dtype);
    EXPECT_FALSE(is_complex(real_dtype(dtype)));
  }
  EXPECT_EQ(parse_dtype("complex128"), DType::Complex128);
}

TEST(Pattern, MatchesTheWholeName) {
  EXPECT_TRUE(matches_pattern("", ""));
  EXPECT_FALSE(matches_pattern("", "a"));
  EXPECT_TRUE(matches_pattern("layers.0*", "layers.0.mlp"));
  EXPECT_FALSE(matches_pattern("layers.0", "layers.01"));
  EXPECT_TRUE(matches_pattern("*.weight", "a.b.weight"));
  EXPECT_TRUE(matches_pattern("layers.?", "layers.7"));
  EXPECT_FALSE(matches_pattern("layers.?", "layers.17"));
  EXPECT_TRUE(matches_pattern("*a*b*", "xxaxxbxx"));
  EXPECT_TRUE(matches_pattern("*", "*literal*"));
}

TEST(Pattern, ManyStarsStayQuick) {
  const std::string text(5000, 'a');
  EXPECT_FALSE(matches_pattern("*a*a*a*a*a*a*a*a*a*b", text));
}

TEST(EditDistance, CountsInsertedDroppedAndChangedLetters) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("world_sise", "world_size"), 1U);
  EXPECT_EQ(edit_distance("wrld", "world"), 1U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance(std::string(1'000'000, 'a'), std::string(1'000'000, 'b')), 128U);
}

TEST(Error, SaysFilePlaceExpectedGotAndHint) {
  const Error error{ErrorCode::WrongType, "wrong type", "job.toml", "train.steps", "an integer", "\"ten\"", "write 10"};
  EXPECT_EQ(to_text(error), "job.toml: train.steps: wrong type (expected an integer, got \"ten\"); write 10");
}

TEST(Error, TakesTheBeginningOfWhatIsLong) {
  Error error;
  error.message = "no such name";
  error.got = std::string(100'000, 'x');
  EXPECT_LT(to_text(error).size(), 500U);
  EXPECT_NE(to_text(error).find("xxx... (100000 bytes)"), std::string::npos);
  error.got = std::string(399, 'x');
  for (int k = 0; k < 100; ++k) error.got += "\u00e9";  // two bytes each
  EXPECT_EQ(as_utf8(to_text(error)), to_text(error)) << "no character is torn";
}

TEST(Strategy, NamesAreTorchs) {
  EXPECT_EQ(parse_strategy("_HYBRID_SHARD_ZERO2"), Strategy::HybridShardZero2);
  EXPECT_EQ(strategy_name(Strategy::ShardGradOp), "SHARD_GRAD_OP");
  EXPECT_FALSE(parse_strategy("FULLSHARD").has_value());
}

}  // namespace
}  // namespace foreshard
