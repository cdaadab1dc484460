#include "cli/console/arguments.h"

#include <gtest/gtest.h>

#include <iterator>
#include <sstream>

#include "cli/console/verb_examples.h"

namespace foreshard::cli {
namespace {

template <class Flags>
Flags parsed(const std::vector<std::string>& arguments) {
  auto result = parse_arguments(arguments);
  if (!result || !std::holds_alternative<CommandLine>(*result)) {
    ADD_FAILURE() << (result ? "help" : to_text(result.error()));
    return {};
  }
  auto* flags = std::get_if<Flags>(&std::get<CommandLine>(*result).verb);
  if (flags == nullptr) {
    ADD_FAILURE() << "another verb";
    return {};
  }
  return *flags;
}

TEST(Arguments, SetIsRepeatableAndTakesOneValueEach) {
  const auto flags = parsed<SimulateFlags>(
      {"simulate", "--set", "model.batch=2", "job.toml", "--set", "train.script=[[\"fwd\", \"bwd\"]]"});
  EXPECT_EQ(flags.job.file, "job.toml");
  EXPECT_EQ(flags.job.set, (std::vector<std::string>{"model.batch=2", "train.script=[[\"fwd\", \"bwd\"]]"}));
}

TEST(Arguments, SizesHaveShortNames) {
  const auto flags = parsed<SimulateFlags>({"simulate", "--batch", "2", "job.toml", "--seq", "1024"});
  EXPECT_EQ(flags.job.set, (std::vector<std::string>{"model.batch=2", "model.seq=1024"}));
  EXPECT_FALSE(parse_arguments({"simulate", "job.toml", "--batch", "0"}));
}

TEST(Arguments, OutputFlagsStandBeforeOrAfterTheVerb) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--json", "-q", "--no-color", "doctor"},
                                                    {"doctor", "--json", "--quiet", "--no-color"}}) {
    const auto result = parse_arguments(arguments);
    ASSERT_TRUE(result.has_value());
    const OutputFlags& output = std::get<CommandLine>(*result).output;
    EXPECT_TRUE(output.json && output.quiet && output.no_color);
  }
}

TEST(Arguments, EveryVerbHasAnExampleThatItTakes) {
  for (const VerbDescription& verb : describe_verbs()) {
    const std::string example = example_of(verb.name);
    ASSERT_TRUE(example.starts_with("foreshard " + verb.name)) << verb.name << ": " << example;
    std::istringstream words(example.substr(std::string_view("foreshard ").size()));
    const std::vector<std::string> arguments{std::istream_iterator<std::string>(words), {}};
    const auto result = parse_arguments(arguments);
    EXPECT_TRUE(result.has_value()) << example << ": " << (result ? "" : to_text(result.error()));
    const auto help = parse_arguments({"help", verb.name});
    ASSERT_TRUE(help.has_value()) << verb.name;
    EXPECT_NE(std::get<HelpText>(*help).text.find(verb.name == "help" ? "foreshard" : example), std::string::npos);
  }
}

TEST(Arguments, AFlagThatIsAnothersBeginningIsPutRight) {
  const auto result = parse_arguments({"export", "job.toml", "--as", "trl", "--output", "folder"});
  ASSERT_FALSE(result.has_value());
  EXPECT_NE(to_text(result.error()).find("did you mean --out?"), std::string::npos) << to_text(result.error());
}

TEST(Arguments, PlanTakesItsFlags) {
  const auto flags = parsed<PlanFlags>({"plan", "job.toml", "--format=dot", "--iterations", "2", "--layout"});
  EXPECT_EQ(flags.format, "dot");
  EXPECT_EQ(flags.iterations, 2);
  EXPECT_TRUE(flags.layout);
}

TEST(Arguments, SimulateTakesItsFiles) {
  const auto flags =
      parsed<SimulateFlags>({"simulate", "job.toml", "--trace", "a.json.gz", "--timeline", "b.fst", "--per-unit"});
  EXPECT_EQ(flags.trace, "a.json.gz");
  EXPECT_EQ(flags.timeline, "b.fst");
  EXPECT_TRUE(flags.per_unit);
}

TEST(Arguments, EveryVerbAndFlagIsDescribed) {
  for (const VerbDescription& verb : describe_verbs()) {
    EXPECT_FALSE(verb.about.empty()) << verb.name;
    for (const FlagDescription& flag : verb.flags) {
      EXPECT_FALSE(flag.names.empty()) << verb.name;
      EXPECT_FALSE(flag.about.empty()) << verb.name << ' ' << flag.names.front();
    }
  }
}

}  // namespace
}  // namespace foreshard::cli
