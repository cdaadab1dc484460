// Every error that bad input can provoke says where it is, what was expected and what was found, and keeps to its exit
// code: over all verbs and kinds of files. tests/house/check_errors.py looks at the sources for those not met here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/cli/program/run_program.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

const std::string kExamples = std::string(FORESHARD_SOURCE_DIR) + "/examples/";
const std::string kJob = kExamples + "tiny-llama-2ranks.toml";
const std::string kToyModel = kExamples + "toy.toml";

/// One line of JSON with a place and an expectation; nothing that an answer may not be.
void expect_a_good_error(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = arguments;
  all.push_back("--json");
  const ProgramRun run = run_program(all);
  std::string told;
  for (const std::string& argument : all) told += argument + " ";
  ASSERT_TRUE(run.exit_code == 2 || run.exit_code == 3) << told << "-> " << run.exit_code << run.out << run.err;
  const auto answer = nlohmann::json::parse(run.out, nullptr, false);
  ASSERT_TRUE(answer.is_object() && answer.contains("error")) << told << run.out;
  const auto& error = answer["error"];
  const auto has = [&](const char* key) { return !error[key].get<std::string>().empty(); };
  EXPECT_TRUE(has("message")) << told << error;
  EXPECT_TRUE(has("file") || has("place")) << told << error;
  EXPECT_TRUE(has("expected") || has("got")) << told << error;
}

TEST(ProgramErrors, CommandLinesSayWhatIsWrongWithThem) {
  const std::vector<std::vector<std::string>> lines = {
      {},
      {"nothing"},
      {"simulate"},
      {"simulate", kJob, "--nonsense"},
      {"simulate", kJob, "--seed", "x"},
      {"simulate", kJob, "--jitter", "7"},
      {"simulate", kJob, "--slow-rank", "a=b"},
      {"simulate", kJob, "--rank-profile", "1=nothing"},
      {"simulate", kJob, "--action", "nothing"},
      {"simulate", kJob, "--action", "save:nothing"},
      {"plan", kJob, "--format", "nothing"},
      {"plan", kJob, "--dim", "nothing"},
      {"run", kJob, "--nproc", "0"},
      {"run", kJob, "--backend", "abacus"},
      {"sweep", kJob, "--over", "nothing"},
      {"sweep", kJob, "--over", "nothing=1"},
      {"sweep", kJob, "--over", "train.micro_batches=x"},
      {"sweep", kJob, "--auto", "--part", "3/2"},
      {"sweep", kJob, "--auto", "--budget", "much"},
      {"sweep", kJob, kJob, "--auto"},
      {"sweep", "merge"},
      {"trace", "analyse", kJob, "--from", "late"},
      {"trace", "convert", kJob},
      {"trace", "convert", kJob, "out.doc"},
      {"compare", kJob, kJob, "--fail-over", "x"},
      {"compare", kJob, kJob, "--rank", "99"},
      {"checkpoint", "export", "/nowhere"},
      {"checkpoint", "show", "/nowhere"},
      {"validate", "/nowhere"},
      {"import", "/nowhere"},
      {"completion", "nosh"},
      {"config", "show", "/nowhere"},
  };
  for (const auto& line : lines) expect_a_good_error(line);
}

TEST(ProgramErrors, ValuesOfTheJobSayWhatIsWrongWithThem) {
  for (const char* set : {"nothing",
                          "nothing=1",
                          "model.batch=0",
                          "model.batch=x",
                          "model.source=/nowhere",
                          "model.dtype=float7",
                          "cluster.world_size=0",
                          "cluster.world_size=-3",
                          "cluster.rank=99",
                          "cluster.profile=nothing",
                          "cluster.memory=much",
                          "fsdp.runtime=fsdp9",
                          "fsdp.strategy=NOTHING",
                          "fsdp.wrap.policy=nothing",
                          "fsdp.wrap.units=7",
                          "fsdp.mixed_precision.param=float7",
                          "fsdp.prefetch.forward_depth=-1",
                          "fsdp.comm_hook=nothing",
                          "checkpointing.policy=nothing",
                          "checkpointing.k=0",
                          "train.steps=-1",
                          "train.optimizer.name=nothing",
                          "train.optimizer.lr=x",
                          "train.micro_batches=0",
                          "train.clip_grad_norm=-1",
                          "train.data.kind=nothing",
                          "train.schedule.name=nothing",
                          "train.eval={every = -1}"}) {
    expect_a_good_error({"simulate", kJob, "--set", set});
  }
}

/// Whichever verb settles the schedule; what is named as the least budget is enough.
TEST(ProgramErrors, ABudgetThatNoScheduleFitsIsExitCodeFourWithTheLeastThatOneDoes) {
  const ProgramRun none = run_program({"schedule", kToyModel, "--budget", "100KiB"});
  EXPECT_EQ(none.exit_code, 4) << none.err;
  const std::string before = "the least that does is ";
  const std::size_t at = none.err.find(before);
  ASSERT_NE(at, none.err.npos) << none.err;
  std::string least = none.err.substr(at + before.size(), none.err.find('\n', at) - at - before.size());
  for (const char* const verb : {"simulate", "plan", "run"}) {
    const ProgramRun run =
        run_program({verb, kToyModel, "--set", "fsdp.runtime=planned", "--set", "schedule.budget=100KiB"});
    EXPECT_EQ(run.exit_code, 4) << verb << run.err;
    EXPECT_THAT(run.err, ::testing::HasSubstr(least + " or more")) << verb;
  }
  std::erase(least, ' ');
  EXPECT_EQ(run_program({"schedule", kToyModel, "--budget", least}).exit_code, 0) << least;
  const ProgramRun above = run_program({"schedule", kToyModel, "--budget", "9000GiB"});
  EXPECT_EQ(above.exit_code, 3);
  EXPECT_THAT(above.err, ::testing::HasSubstr("--budget: the budget is more than the card has"));
}

TEST(ProgramErrors, AMisspeltProgramOfAnArchiveIsToldWhatMayBeMeant) {
  const std::string archive = std::string(FORESHARD_TEST_DATA) + "/pt2/two_programs.pt2";
  const auto error_of = [&](const std::string& name) {
    expect_a_good_error({"inspect", archive, "--program", name});
    const ProgramRun run = run_program({"inspect", archive, "--program", name, "--json"});
    return nlohmann::json::parse(run.out, nullptr, false)["error"];
  };
  const auto near = error_of("encodr");
  EXPECT_EQ(near["place"], "model.program");
  EXPECT_EQ(near["expected"], "one of \"encoder\", \"probe\"");
  EXPECT_EQ(near["got"], "\"encodr\"");
  EXPECT_EQ(near["hint"], "did you mean \"encoder\"? --program NAME, or model.program in the job");
  EXPECT_EQ(error_of("prob")["hint"], "did you mean \"probe\"? --program NAME, or model.program in the job");
  EXPECT_EQ(error_of("something")["hint"], "--program NAME, or model.program in the job");  // near to none
}

TEST(ProgramErrors, DamagedFilesOfEveryKindSayWhere) {
  const fs::path folder = testing::temporary_path("damaged");
  fs::create_directories(folder);
  const std::string fst = folder / "t.fst", json = folder / "t.json", pickle = folder / "s.pickle",
                    sweep = folder / "s.json", config = kExamples + "tiny-llama/config.json";
  ASSERT_EQ(run_program({"simulate", kJob, "--timeline", fst, "--trace", json, "--snapshot", pickle}).exit_code, 0);
  std::ofstream(sweep) << run_program({"sweep", kJob, "--over", "model.batch=1,2", "--json"}).out;
  std::mt19937 random(20261123);
  const auto content = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  int provoked = 0;
  const auto check = [&](const std::string& from, const std::vector<std::string>& verb, const std::string& ending) {
    const std::string whole = content(from);
    for (int k = 0; k < 12; ++k) {
      std::string text = whole;
      if (k % 3 == 0) text.resize(std::uniform_int_distribution<std::size_t>(0, text.size() - 1)(random));
      for (int hits = 0; k % 3 != 0 && hits < 3; ++hits)
        text[std::uniform_int_distribution<std::size_t>(0, text.size() - 1)(random)] ^=
            static_cast<char>(1 + random() % 255);
      const std::string path = folder / ("damaged" + ending);
      std::ofstream(path, std::ios::binary) << text;
      std::vector<std::string> all = verb;
      all.push_back(path);
      if (verb.front() == "sweep") all.push_back(path);
      all.push_back("--json");
      const ProgramRun run = run_program(all);
      EXPECT_GE(run.exit_code, 0) << ending << " " << k;
      EXPECT_LE(run.exit_code, 5) << ending << " " << k;
      if (run.exit_code != 2 && run.exit_code != 3) continue;
      ++provoked;
      all.pop_back();
      expect_a_good_error(all);
    }
  };
  check(fst, {"trace", "analyse"}, ".fst");
  check(json, {"trace", "analyse"}, ".json");
  check(pickle, {"trace", "analyse"}, ".pickle");
  check(sweep, {"sweep", "merge"}, ".sweep.json");
  check(config, {"inspect"}, ".config.json");
  check(kJob, {"config", "show"}, ".toml");
  EXPECT_GT(provoked, 20);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace foreshard
