#include "cli/console/json_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace foreshard::cli {
namespace {

TEST(JsonText, ReadsBackAsWhatWasWritten) {
  JsonText out;
  out.begin_object().field("a", 1).field("b", "q\"\\\n\x01z").field("c", 0.1).field("d", true).key("e").null();
  out.key("f").begin_array().value(1).value(2).begin_object().end_object().begin_array().end_array().end_array();
  out.key("g").begin_object().field("h", std::numeric_limits<std::int64_t>::min()).end_object().end_object();
  const auto read = nlohmann::json::parse(out.take());
  const nlohmann::json expected = {{"a", 1},
                                   {"b", "q\"\\\n\x01z"},
                                   {"c", 0.1},
                                   {"d", true},
                                   {"e", nullptr},
                                   {"f", {1, 2, nlohmann::json::object(), nlohmann::json::array()}},
                                   {"g", {{"h", std::numeric_limits<std::int64_t>::min()}}}};
  EXPECT_EQ(read, expected);
}

TEST(JsonText, NumbersThatJsonDoesNotHaveAreNull) {
  JsonText out;
  out.begin_array().value(std::nan("")).value(std::numeric_limits<double>::infinity()).end_array();
  EXPECT_EQ(nlohmann::json::parse(out.take()), nlohmann::json({nullptr, nullptr}));
}

TEST(JsonText, BreaksLinesDownToTheLevelAskedFor) {
  JsonText out(1);
  out.begin_object().field("a", 1).key("b").begin_array().value(1).value(2).end_array().end_object();
  EXPECT_EQ(out.take(), "{\n  \"a\": 1,\n  \"b\": [1, 2]\n}\n");
}

}  // namespace
}  // namespace foreshard::cli
