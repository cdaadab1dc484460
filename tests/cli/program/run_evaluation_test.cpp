// `foreshard run`: evaluations between steps, plain text, and units that a search has chosen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/program/running_program.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kExamples = std::string(FORESHARD_SOURCE_DIR) + "/examples/";

ProgramEnd foreshard(std::vector<std::string> arguments) {
  return RunningProgram(FORESHARD_PROGRAM, arguments, {}).wait();
}

ProgramEnd run(std::vector<std::string> more, const std::string& job = "tiny-llama-2ranks.toml") {
  more.insert(more.begin(), {"run", kExamples + job, "--json"});
  return foreshard(more);
}

std::vector<json> steps_of(const ProgramEnd& end) {
  EXPECT_EQ(end.exit_code, 0) << end.err;
  std::vector<json> lines;
  std::istringstream stream(end.out);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  if (!lines.empty()) lines.pop_back();  // the summary
  return lines;
}

std::vector<double> losses_of(const std::vector<json>& steps) {
  std::vector<double> losses;
  for (const json& step : steps) losses.push_back(step["loss"]);
  return losses;
}

TEST(RunEvaluation, ComesEverySoManyStepsAndAfterTheLastAndChangesNothing) {
  for (const char* runtime : {"fsdp1", "fsdp2", "none"}) {
    const std::vector<std::string> base = {"--nproc",       "2",     "--set",
                                           "train.steps=5", "--set", std::string("fsdp.runtime=") + runtime};
    std::vector<std::string> with = base;
    with.insert(with.end(), {"--set", "train.eval.every=2", "--set", "train.eval.batches=3"});
    const auto plain = steps_of(run(base)), evaluated = steps_of(run(with));
    EXPECT_EQ(losses_of(plain), losses_of(evaluated)) << runtime;
    ASSERT_EQ(evaluated.size(), 5u);
    for (const json& step : evaluated) {
      const int number = step["step"];
      EXPECT_EQ(step.contains("eval_loss"), number == 2 || number == 4 || number == 5) << number;
      if (!step.contains("eval_loss")) continue;
      EXPECT_NEAR(step["eval_loss"].get<double>(), step["loss"].get<double>(), 0.2) << "the same language";
      EXPECT_GT(step["eval_time_ns"].get<std::int64_t>(), 0);
    }
    EXPECT_FALSE(plain[1].contains("eval_loss"));
  }
}

TEST(RunEvaluation, TheLossIsOfTheGlobalBatchesWhateverTheRanks) {
  const std::vector<std::string> eval = {"--set", "train.steps=2",       "--set", "train.eval.every=1",
                                         "--set", "train.eval.batches=2"};
  std::vector<std::string> two = eval, one = eval;
  two.insert(two.end(), {"--nproc", "2"});
  one.insert(one.end(),
             {"--set", "cluster.world_size=1", "--set", "cluster.ranks_per_node=1", "--set", "model.batch=8"});
  const auto of_two = steps_of(run(two)), of_one = steps_of(run(one));
  ASSERT_EQ(of_two.size(), 2u);
  ASSERT_EQ(of_one.size(), 2u);
  for (std::size_t s = 0; s < 2; ++s) {
    EXPECT_NEAR(of_two[s]["eval_loss"].get<double>(), of_one[s]["eval_loss"].get<double>(), 1e-5) << s;
  }
}

TEST(RunEvaluation, TakesAFileOfItsOwn) {
  const auto tokens = [](const std::string& name, int period) {
    std::string path = testing::temporary_path(name);
    std::ofstream file(path, std::ios::binary);
    for (int i = 0; i < 4000; ++i) file.put(static_cast<char>(i % period)).put(0);
    return path;
  };
  const std::string learnt = tokens("learnt.u16", 5), other = tokens("other.u16", 97);
  std::vector<std::string> arguments = {"--nproc", "2",
                                        "--set",   "train.steps=20",
                                        "--set",   "train.data.kind=tokens",
                                        "--set",   "train.data.file=" + learnt,
                                        "--set",   "train.eval.every=20",
                                        "--set",   "train.eval.batches=1"};
  const double held_out = steps_of(run(arguments)).back()["eval_loss"];
  arguments.insert(arguments.end(), {"--set", "train.eval.file=" + other});
  const double foreign = steps_of(run(arguments)).back()["eval_loss"];
  EXPECT_LT(held_out, foreign - 0.5) << "what was learnt is another text than that of the evaluation";
}

TEST(RunEvaluation, AShareThatLeavesNothingIsRefused) {
  const std::string path = testing::temporary_path("short.u16");
  std::ofstream(path, std::ios::binary) << std::string(2 * 64, '\0');  // one sample
  const ProgramEnd end = run({"--nproc", "2", "--set", "train.data.kind=tokens", "--set", "train.data.file=" + path,
                              "--set", "train.eval.every=1"});
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_EQ(json::parse(end.out)["error"]["place"], "train.eval.share");
}

TEST(RunEvaluation, PlanAndSimulateShowIt) {
  const std::vector<std::string> eval = {"--action", "eval", "--set", "train.eval.batches=2"};
  std::vector<std::string> plan = {"plan", kExamples + "tiny-llama-2ranks.toml", "--json"};
  plan.insert(plan.end(), eval.begin(), eval.end());
  const ProgramEnd planned = foreshard(plan);
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  const json document = json::parse(planned.out);
  ASSERT_EQ(document["iterations"].size(), 2u);
  int backwards = 0, forwards = 0;
  for (const json& i : document["iterations"][1]["instructions"]) {
    backwards += i["kind"] == "backward" || i["kind"] == "reduce_scatter";
    forwards += i["kind"] == "forward";
  }
  EXPECT_EQ(backwards, 0);
  EXPECT_GT(forwards, 0);
  std::vector<std::string> simulate = {"simulate", kExamples + "tiny-llama-2ranks.toml", "--json"};
  simulate.insert(simulate.end(), eval.begin(), eval.end());
  const ProgramEnd simulated = foreshard(simulate);
  ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
  const json prediction = json::parse(simulated.out);
  ASSERT_EQ(prediction["iterations"].size(), 2u);
  EXPECT_LT(prediction["iterations"][1]["step_time_ns"], prediction["iterations"][0]["step_time_ns"]);
}

TEST(RunText, ThePlainTextOfTheExampleIsLearnt) {
  const ProgramEnd end = run({"--set", "train.steps=20"}, "tiny-llama-text.toml");
  if (end.err.find("PCRE2") != std::string::npos) GTEST_SKIP() << "built without PCRE2";
  const auto steps = steps_of(end);
  ASSERT_EQ(steps.size(), 20u);
  EXPECT_NEAR(steps.front()["loss"].get<double>(), 5.55, 0.1) << "the logarithm of 256 bytes";
  EXPECT_LT(steps.back()["loss"].get<double>(), 4.0);
  EXPECT_LT(steps.back()["eval_loss"].get<double>(), steps[9]["eval_loss"].get<double>());
}

TEST(RunText, ATokenizerThatIsNotThereIsNamed) {
  const ProgramEnd end = run({"--set", "train.data.tokenizer=/nowhere/tokenizer.json"}, "tiny-llama-text.toml");
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.out, HasSubstr("/nowhere/tokenizer.json"));
}

TEST(RunAutoWrap, PlansTheUnitsThatSimulateFinds) {
  const std::string timeline = testing::temporary_path("auto.fst");
  const std::vector<std::string> job = {kExamples + "tiny-llama-2ranks.toml", "--set", "fsdp.wrap.policy=auto"};
  std::vector<std::string> plan = {"plan", "--json"},
                           train = {"run", "--nproc", "2", "--set", "train.steps=1", "--json"};
  plan.insert(plan.begin() + 1, job.begin(), job.end());
  train.insert(train.begin() + 1, job.begin(), job.end());
  const ProgramEnd planned = foreshard(plan), trained = foreshard(train);
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("wrap policy auto: "));
  const json units = json::parse(planned.out)["units"];
  const json summary = json::parse(trained.out.substr(trained.out.rfind("\n{") + 1));
  EXPECT_EQ(summary["job"]["units"], units.size());
}

}  // namespace
}  // namespace foreshard
