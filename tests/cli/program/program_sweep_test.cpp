// sweep, simulate --explain and ranks that differ, as users run them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/cli/program/run_program.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kToy = std::string(FORESHARD_SOURCE_DIR) + "/examples/toy.toml";
const std::vector<std::string> kAxes{"--over", "checkpointing.policy=none,block",
                                     "--over", "fsdp.reshard_after_forward=true,false",
                                     "--over", "train.micro_batches=1,2"};

std::vector<std::string> sweep(std::vector<std::string> more) {
  std::vector<std::string> arguments{"sweep", kToy};
  arguments.insert(arguments.end(), kAxes.begin(), kAxes.end());
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

json without_seconds(const std::string& text) {
  json document = json::parse(text);
  document.erase("seconds");
  return document;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ProgramSweep, AnswersTheSameForEveryNumberOfThreads) {
  const ProgramRun one = run_program(sweep({"--json", "--threads", "1"}));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_TRUE(one.err.empty()) << "no progress bar where there is no terminal";
  const json document = without_seconds(one.out);
  EXPECT_EQ(document["evaluated"], 8);
  EXPECT_EQ(without_seconds(run_program(sweep({"--json", "--threads", "7"})).out), document);
}

TEST(ProgramSweep, SaysWhichAxisMeansNothing) {
  const std::vector<std::string> budgets{"--json", "--over", "schedule.budget=1GiB,2GiB"};
  std::vector<std::string> arguments{"sweep", kToy};
  arguments.insert(arguments.end(), budgets.begin(), budgets.end());
  const ProgramRun none = run_program(arguments);
  ASSERT_EQ(none.exit_code, 0) << none.err;
  EXPECT_THAT(none.err, HasSubstr("schedule.budget means nothing in any of these points"));
  const ProgramRun refused =
      run_program({"sweep", kToy, "--json", "--over", "cluster.world_size=3,5", "--set", "cluster.ranks_per_node=2"});
  EXPECT_THAT(refused.err, ::testing::Not(HasSubstr("means nothing"))) << "no point says what a key means";
  arguments.insert(arguments.end(), {"--over", "fsdp.runtime=fsdp2,planned"});
  EXPECT_THAT(run_program(arguments).err, ::testing::Not(HasSubstr("means nothing")));
}

TEST(ProgramSweep, PartsMergeToTheWholeAndALackingOneIsPartial) {
  std::vector<std::string> merge{"sweep", "merge"};
  for (const char* part : {"1/3", "2/3", "3/3"}) {
    const ProgramRun run = run_program(sweep({"--json", "--part", part}));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    merge.push_back(temporary_file("part" + std::string(part).substr(0, 1) + ".json", run.out));
  }
  merge.emplace_back("--json");
  const ProgramRun all = run_program(merge);
  ASSERT_EQ(all.exit_code, 0) << all.err;
  const json whole = without_seconds(run_program(sweep({"--json"})).out), joined = without_seconds(all.out);
  EXPECT_EQ(joined["points"], whole["points"]);
  merge.erase(merge.begin() + 3);
  const ProgramRun two = run_program(merge);
  EXPECT_EQ(two.exit_code, 5);
  EXPECT_THAT(two.err, HasSubstr("2 of 3 parts"));
}

TEST(ProgramSweep, WritesTableAndPicture) {
  const std::string csv = testing::temporary_path("sweep.csv"), svg = testing::temporary_path("sweep.svg");
  const ProgramRun run = run_program(sweep({"--csv", csv, "--picture", svg}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("Front: time per token"));
  EXPECT_THAT(run.out, HasSubstr("--set checkpointing.policy="));
  EXPECT_THAT(text_of(csv), HasSubstr("index,checkpointing.policy,"));
  EXPECT_THAT(text_of(svg), HasSubstr("</svg>"));
}

TEST(ProgramSweep, ChoosesItsOwnAxes) {
  const ProgramRun run = run_program({"sweep", kToy, "--auto", "--over", "train.micro_batches=1,3", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json document = json::parse(run.out);
  EXPECT_GE(document["axes"].size(), 3U);
  EXPECT_EQ(document["axes"][0]["values"], (json{"1", "3"}));
}

TEST(ProgramSweep, SaysWhatIsWrongWithAQuestion) {
  EXPECT_EQ(run_program({"sweep", kToy}).exit_code, 2);
  EXPECT_EQ(run_program({"sweep", kToy, "--over", "model.batch"}).exit_code, 2);
  EXPECT_EQ(run_program(sweep({"--part", "4/3"})).exit_code, 2);
  EXPECT_EQ(run_program(sweep({"--budget", "many"})).exit_code, 2);
  EXPECT_EQ(run_program({"sweep", kToy, "--over", "model.bach=1,2"}).exit_code, 3);
  EXPECT_EQ(run_program({"sweep", "merge", kToy}).exit_code, 3);
  EXPECT_EQ(run_program({"sweep", "merge"}).exit_code, 2);
}

TEST(ProgramSweep, NothingThatFitsIsExitCodeFour) {
  const ProgramRun run = run_program(sweep({"--budget", "601MiB"}));
  EXPECT_EQ(run.exit_code, 4) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("No point fits"));
}

TEST(ProgramExplain, AddsItsListsToReportAndJson) {
  const ProgramRun run = run_program({"simulate", kToy, "--explain"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const char* text : {"At the peak, by who made it", "What would change it", "instruction "})
    EXPECT_THAT(run.out, HasSubstr(text));
  const json plain = json::parse(run_program({"simulate", kToy, "--json"}).out);
  json explained = json::parse(run_program({"simulate", kToy, "--json", "--explain"}).out);
  EXPECT_FALSE(explained["explain"]["holders"].empty());
  std::int64_t held = 0;
  for (const json& holder : explained["explain"]["holders"]) held += holder["bytes"].get<std::int64_t>();
  EXPECT_EQ(held, explained["memory"]["peak_allocated_bytes"]);
  explained.erase("explain");
  EXPECT_EQ(explained, plain);
}

TEST(ProgramRanks, ASlowRankIsShownWithWhoWaitsForIt) {
  const ProgramRun run = run_program({"simulate", kToy, "--slow-rank", "1=1.5", "--jitter", "0.02", "--seed", "4"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("the others wait for it"));
  const json ranks = json::parse(run_program({"simulate", kToy, "--slow-rank", "1=1.5", "--json"}).out)["ranks"];
  EXPECT_EQ(ranks["classes"][ranks["slowest"].get<std::size_t>()]["slow"], 1.5);
  EXPECT_EQ(run_program({"simulate", kToy, "--slow-rank", "1"}).exit_code, 2);
  EXPECT_EQ(run_program({"simulate", kToy, "--slow-rank", "99999=2"}).exit_code, 3);
}

}  // namespace
}  // namespace foreshard
