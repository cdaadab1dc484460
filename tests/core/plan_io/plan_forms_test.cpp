// The JSON and the text form of a plan: golden pair, round trips, bad input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>

#include "core/plan/form/plan_json.h"
#include "core/plan/form/plan_text.h"
#include "tests/core/plan_io/sample_plan.h"

namespace foreshard {
namespace {

using testing::HasSubstr;

std::string read_data(const std::string& name) {
  std::ifstream stream(FORESHARD_TEST_DATA "/plan_io/" + name, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

/// FORESHARD_UPDATE_GOLDEN=1 rewrites the expectation; the diff is reviewed.
void expect_golden(const std::string& name, const std::string& text) {
  if (std::getenv("FORESHARD_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(FORESHARD_TEST_DATA "/plan_io/" + name, std::ios::binary) << text;
  }
  EXPECT_EQ(text, read_data(name));
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

/// A prediction and a run of one job join, whoever of them searched for its units or schedule, and said so.
TEST(PlanDigest, IsOfWhatRunsNotOfWhatIsToldOfIt) {
  Plan plan = sample_plan();
  const std::string digest = plan_digest(plan);
  plan.warnings.emplace_back("schedule: 1 of 1 units stay gathered");
  EXPECT_EQ(plan_digest(plan), digest);
  plan.iterations.back().instructions.pop_back();
  EXPECT_NE(plan_digest(plan), digest);
}

TEST(PlanText, EqualsTheGoldenText) { expect_golden("sample.plan.txt", plan_to_text(sample_plan())); }
TEST(PlanJson, EqualsTheGoldenJson) { expect_golden("sample.plan.json", plan_to_json(sample_plan())); }

TEST(PlanText, ReadsTheGoldenTextBack) {
  const Result<Plan> plan = plan_from_text(read_data("sample.plan.txt"), "sample.plan.txt");
  ASSERT_TRUE(plan.has_value()) << to_text(plan.error());
  EXPECT_EQ(*plan, sample_plan());
}
TEST(PlanJson, ReadsTheGoldenJsonBack) {
  const Result<Plan> plan = plan_from_json(read_data("sample.plan.json"), "sample.plan.json");
  ASSERT_TRUE(plan.has_value()) << to_text(plan.error());
  EXPECT_EQ(*plan, sample_plan());
}

TEST(PlanForms, RandomPlansRoundTrip) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const Plan plan = random_plan(random);
    const std::string json = plan_to_json(plan), text = plan_to_text(plan);
    const Result<Plan> from_json = plan_from_json(json, "plan.json");
    ASSERT_TRUE(from_json.has_value()) << to_text(from_json.error()) << "\n" << json;
    ASSERT_EQ(*from_json, plan) << json;
    const Result<Plan> from_text = plan_from_text(text, "plan.txt");
    ASSERT_TRUE(from_text.has_value()) << to_text(from_text.error()) << "\n" << text;
    ASSERT_EQ(*from_text, plan) << text;
    ASSERT_EQ(plan_to_json(*from_text), json);
  }
}

TEST(PlanForms, AnEmptyPlanRoundTrips) {
  EXPECT_EQ(plan_from_json(plan_to_json(Plan{}), "x").value(), Plan{});
  EXPECT_EQ(plan_from_text(plan_to_text(Plan{}), "x").value(), Plan{});
}

TEST(PlanJson, CarriesWhatOthersRelyOn) {
  const std::string json = plan_to_json(sample_plan());
  for (const char* member :
       {"\"schema\": \"foreshard.plan/1\"", "\"managed_bytes\": 400",
        "\"order\": {\"pre_forward\": [\"\", \"layers.0\"]", "\"counts\": {\"all_gather\": 3, \"reduce_scatter\": 2",
        "\"buffer\": \"full:layers.0\"", "\"ops\": [2, 9]", "\"shared\": []", "\"op\": \"sum\"",
        "\"divide\": {\"pre\": 2, \"post\": 2}", "\"event\": \"e1\""}) {
    EXPECT_THAT(json, HasSubstr(member));
  }
}

TEST(PlanJson, PutsLayoutMembersIntoTheirUnit) {
  const std::string json = plan_to_json(sample_plan(), {{"", "\"params_layout\": []"}});
  EXPECT_THAT(json, HasSubstr("\"params_layout\": []}],"));
  EXPECT_EQ(plan_from_json(json, "x").value(), sample_plan());
}

/// Files that name groups by kind and size, as all did before communicators were listed.
TEST(PlanForms, GroupsThatAreNotListedAreThoseThatTheirRanksMake) {
  const std::string json = read_data("unlisted_groups.plan.json"), text = read_data("unlisted_groups.plan.txt");
  EXPECT_EQ(plan_from_json(json, "old.json").value(), sample_plan());
  EXPECT_EQ(plan_from_text(text, "old.txt").value(), sample_plan());
  const auto communicators = [&](const std::string& group) {
    const Result<Plan> plan =
        plan_from_json(replaced(json, "\"group\": \"shard\", \"group_size\": 4", "\"group\": " + group), "old.json");
    EXPECT_TRUE(plan.has_value()) << group << (plan ? "" : to_text(plan.error()));
    return plan ? plan->communicators : std::vector<PlanCommunicator>{};
  };
  const PlanCommunicator world{"world", "shard", {0, 1, 2, 3}};
  EXPECT_EQ(communicators("\"shard\""), (std::vector{world}));
  EXPECT_EQ(communicators("\"world\", \"group_size\": 4"), (std::vector{world}));
  EXPECT_EQ(communicators("\"replicate\", \"group_size\": 1"),
            (std::vector<PlanCommunicator>{{"replicate", "replicate", {1}}, world}));
  EXPECT_EQ(communicators("\"shard\", \"group_size\": 2"),
            (std::vector<PlanCommunicator>{{"post_forward:", "shard", {0, 1}}, world}));
  for (const char* wrong : {"\"shard\", \"group_size\": 3", "\"replicate\", \"group_size\": 2", "\"tensor\""}) {
    const Result<Plan> plan = plan_from_json(
        replaced(json, "\"group\": \"shard\", \"group_size\": 4", std::string("\"group\": ") + wrong), "old.json");
    ASSERT_FALSE(plan.has_value()) << wrong;
    EXPECT_EQ(plan.error().place, "iterations[0].instructions[5].group") << wrong;
  }
}

TEST(PlanForms, WrongValuesAreNamedWithTheirPlace) {
  const std::string json = plan_to_json(sample_plan());
  const auto error_of = [&](const std::string& from, const std::string& to) {
    const Result<Plan> plan = plan_from_json(replaced(json, from, to), "p.json");
    EXPECT_FALSE(plan.has_value()) << from;
    return plan ? Error{} : plan.error();
  };
  Error error = error_of("\"kind\": \"all_gather\"", "\"kind\": \"all_gathr\"");
  EXPECT_EQ(error.place, "iterations[0].instructions[5].kind");
  EXPECT_EQ(error.got, "\"all_gathr\"");
  EXPECT_EQ(error.file, "p.json");
  EXPECT_EQ(error_of("\"unit\": \"layers.0\"", "\"unit\": \"layers.7\"").code, ErrorCode::Inconsistent);
  EXPECT_EQ(error_of("\"segment\": 1", "\"segment\": 3").code, ErrorCode::OutOfRange);
  EXPECT_EQ(error_of("\"communicator\": 0", "\"communicator\": 1").code, ErrorCode::OutOfRange);
  EXPECT_EQ(error_of("\"id\": 0, \"name\": \"world\"", "\"id\": 1, \"name\": \"world\"").code, ErrorCode::Inconsistent);
  EXPECT_EQ(error_of("\"event\": \"e1\"", "\"event\": \"e99999999999\"").code, ErrorCode::OutOfRange);
  EXPECT_EQ(error_of("\"numel\": 38", "\"numel\": 18446744073709551615").code, ErrorCode::OutOfRange);
  EXPECT_EQ(error_of("\"numel\": 38", "\"numel\": \"38\"").code, ErrorCode::WrongType);
  EXPECT_EQ(error_of(", \"steady\": false", "").code, ErrorCode::MissingKey);
  EXPECT_EQ(error_of("foreshard.plan/1", "foreshard.plan/2").code, ErrorCode::Unsupported);
  EXPECT_EQ(error_of("{\"id\": 3", "{\"id\": 4").code, ErrorCode::Inconsistent);
}

TEST(PlanText, WrongLinesAreNamed) {
  const std::string text = plan_to_text(sample_plan());
  const auto error_of = [&](const std::string& from, const std::string& to) {
    const Result<Plan> plan = plan_from_text(replaced(text, from, to), "p.txt");
    EXPECT_FALSE(plan.has_value()) << from;
    return plan ? Error{} : plan.error();
  };
  EXPECT_THAT(error_of("U all_gather", "U all_gathr").place, HasSubstr("line "));
  EXPECT_EQ(error_of("numel=38", "numel=[38").code, ErrorCode::BadSyntax);
  EXPECT_EQ(error_of("numel=38", "numel=38 numel=39").code, ErrorCode::BadSyntax);
  EXPECT_EQ(error_of("stream name=U", "straem name=U").code, ErrorCode::BadSyntax);
  EXPECT_EQ(error_of("module=layers.0", "module=\"layers.0").code, ErrorCode::BadSyntax);
  EXPECT_EQ(error_of("foreshard.plan/1\n", "").code, ErrorCode::MissingKey);
  EXPECT_EQ(plan_from_text("    0 D mark\n", "p").error().code, ErrorCode::BadSyntax);
  EXPECT_EQ(plan_from_text("unit id=" + std::string(100'000, '['), "p").error().code, ErrorCode::BadSyntax);
}

TEST(PlanJson, BoundsDepth) {
  EXPECT_EQ(plan_from_json(std::string(100'000, '['), "p").error().code, ErrorCode::BadSyntax);
  EXPECT_EQ(plan_from_json(std::string(100'000, '[') + std::string(100'000, ']'), "p").error().code,
            ErrorCode::TooDeep);
  EXPECT_EQ(plan_from_json("3", "p").error().code, ErrorCode::WrongType);
  EXPECT_EQ(plan_from_json("", "p").error().code, ErrorCode::BadSyntax);
}

TEST(PlanForms, TruncatedAndGarbledInputIsAnError) {
  const std::string json = plan_to_json(sample_plan()), text = plan_to_text(sample_plan());
  for (std::size_t length = 0; length + 2 < json.size(); length += 37) {
    EXPECT_FALSE(plan_from_json(std::string_view(json).substr(0, length), "p").has_value());
  }
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    for (const bool as_json : {true, false}) {
      std::string garbled = as_json ? json : text;
      for (int i = 0; i < 4; ++i) garbled[random() % garbled.size()] = static_cast<char>(random() % 256);
      if (!as_json) garbled.resize(random() % garbled.size());
      const Result<Plan> plan = as_json ? plan_from_json(garbled, "p") : plan_from_text(garbled, "p");
      if (!plan) {
        EXPECT_FALSE(plan.error().message.empty());
      }
    }
  }
}

TEST(PlanJson, ANumberThatNoDoubleHoldsIsAnError) {
  const Result<Plan> plan = plan_from_json("2e552", "plan.json");
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().code, ErrorCode::OutOfRange);
  EXPECT_EQ(plan.error().file, "plan.json");
}

}  // namespace
}  // namespace foreshard
