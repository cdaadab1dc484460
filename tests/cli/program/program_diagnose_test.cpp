// diagnose, trace kernels, trace stragglers and trace query, as users run them.

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

const std::string kFsdp2 = FORESHARD_TEST_DATA "/traces/fsdp2_step.json";
const std::string kSnapshot = FORESHARD_TEST_DATA "/traces/snapshot.pickle";
const std::string kLlama = FORESHARD_SOURCE_DIR "/examples/llama-3-8b-64xh100.toml";

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

json answer_of(const std::vector<std::string>& arguments) {
  const ProgramRun run = run_program(arguments);
  EXPECT_EQ(run.exit_code, 0) << run.err << run.out;
  return json::parse(run.out, nullptr, false);
}

/// A prediction of the example with settings changed, written as a recording.
std::string simulated(const std::vector<std::string>& settings) {
  const std::string path = testing::temporary_path("planted.fst");
  std::vector<std::string> arguments{"simulate", kLlama, "--no-remedy", "--timeline", path};
  for (const std::string& set : settings) arguments.insert(arguments.end(), {"--set", set});
  const ProgramRun run = run_program(arguments);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return path;
}

TEST(ProgramDiagnose, AnswersHaveTheFieldsOfTheirSchema) {
  const json answer = answer_of({"diagnose", kFsdp2, "--json"});
  EXPECT_EQ(answer["schema"], "foreshard.diagnosis/1");
  EXPECT_EQ(answer["rank"], 3);
  EXPECT_EQ(answer["steps"], 1);
  ASSERT_FALSE(answer["findings"].empty());
  for (const json& finding : answer["findings"]) {
    for (const char* key : {"name", "cause", "cost_ns", "cost_bytes", "where", "remedy", "set", "predicted_saving_ns",
                            "predicted_saving_bytes", "saving_is", "share", "evidence"})
      EXPECT_TRUE(finding.contains(key)) << key;
    EXPECT_EQ(finding["saving_is"], "estimate");
    for (const json& evidence : finding["evidence"])
      EXPECT_THAT(evidence["link"].get<std::string>(), HasSubstr("fsdp2_step.json#t="));
  }
  EXPECT_EQ(answer_of({"diagnose", kSnapshot, "--json"})["format"], "snapshot");
  EXPECT_EQ(run_program({"diagnose", kFsdp2, "--rank", "9"}).exit_code, 3);
  EXPECT_EQ(run_program({"diagnose", FORESHARD_SOURCE_DIR "/README.md"}).exit_code, 3);
}

TEST(ProgramDiagnose, WhatMendsACauseIsSimulatedWithTheJob) {
  const std::string path = simulated({"fsdp.wrap.policy=none"});
  const json answer = answer_of({"diagnose", path, "--job", kLlama, "--set", "fsdp.wrap.policy=none", "--json"});
  ASSERT_FALSE(answer["findings"].empty());
  const json& first = answer["findings"][0];
  EXPECT_EQ(first["name"], "nothing_wrapped");
  EXPECT_EQ(first["saving_is"], "simulated");
  EXPECT_GT(first["predicted_saving_bytes"].get<std::int64_t>(), std::int64_t{8} << 30U);
}

TEST(ProgramTrace, KernelsAreATableAndAFile) {
  const std::string csv = testing::temporary_path("kernels.csv");
  const json answer = answer_of({"trace", "kernels", kFsdp2, "--json", "--csv", csv});
  EXPECT_EQ(answer["schema"], "foreshard.kernels/1");
  EXPECT_EQ(answer["rows"][0]["kernel"], "sm90_gemm");
  EXPECT_EQ(answer["rows"][0]["count"], 3);
  EXPECT_EQ(answer["rows"][0]["total_ns"], 350'000);
  EXPECT_THAT(text_of(csv), HasSubstr("kernel,kind,count,total_ns,mean_ns"));
  EXPECT_THAT(text_of(csv), HasSubstr("sm90_gemm,compute,3,350000,"));
  EXPECT_EQ(answer_of({"trace", "kernels", kFsdp2, "--by", "operator", "--json"})["rows"][0]["operator"], "");
  const json same = answer_of({"trace", "kernels", kFsdp2, "--against", kFsdp2, "--json"});
  for (const json& row : same["rows"]) EXPECT_EQ(row["difference_ns"], 0);
}

TEST(ProgramTrace, AQuestionInSqlIsAnswered) {
  const json answer =
      answer_of({"trace", "query", kFsdp2, "select count(*) as n, 1.5 as x, null as y from spans", "--json"});
  EXPECT_EQ(answer["schema"], "foreshard.query/1");
  EXPECT_GT(answer["rows"][0]["n"].get<int>(), 10);
  EXPECT_EQ(answer["rows"][0]["x"], 1.5);
  EXPECT_TRUE(answer["rows"][0]["y"].is_null());
  EXPECT_EQ(run_program({"trace", "query", kFsdp2}).exit_code, 2);
  const ProgramRun wrong = run_program({"trace", "query", kFsdp2, "select nowhere from spans"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("no such column"));
}

TEST(ProgramTrace, FlameGraphsAreFoldedStacksOnStdout) {
  const ProgramRun run = run_program({"trace", "flame", kFsdp2, "--by", "module"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("layers;0;aten::mm;sm90_gemm 100000\n"));
  const json answer = answer_of({"trace", "flame", kFsdp2, "--by", "module", "--json"});
  EXPECT_EQ(answer["schema"], "foreshard.flame/1");
  EXPECT_EQ(answer["rows"][0]["stack"], "");
  std::int64_t own = 0;
  bool deepest = false;
  for (const json& row : answer["rows"]) {
    own += row["own_ns"].get<std::int64_t>();
    deepest = deepest || (row["stack"] == "layers;0;aten::mm;sm90_gemm" && row["own_ns"] == 100'000);
  }
  EXPECT_EQ(own, answer["rows"][0]["total_ns"]) << "every piece of work ends in one place";
  EXPECT_TRUE(deepest) << answer;
  EXPECT_EQ(run_program({"trace", "flame", kFsdp2, "--by", "layer"}).exit_code, 2);
  EXPECT_EQ(run_program({"trace", "kernels", kFsdp2, "--by", "stack"}).exit_code, 2);
  EXPECT_EQ(run_program({"trace", "kernels", kFsdp2, "--out", "x.svg"}).exit_code, 2);
}

TEST(ProgramTrace, MemoryListsTheBlocksOfASnapshotAndRefusesOtherRecordings) {
  const std::string snapshot = FORESHARD_TEST_DATA "/traces/snapshot.pickle";
  const json answer = answer_of({"trace", "memory", snapshot, "--json"});
  EXPECT_EQ(answer["schema"], "foreshard.memory_blocks/1");
  EXPECT_EQ(answer["rows"][0]["frame"], "model.py:12 forward");
  EXPECT_EQ(answer_of({"trace", "memory", snapshot, "--against", snapshot, "--json"})["rows"][0]["difference_bytes"],
            0);
  EXPECT_EQ(run_program({"trace", "memory", kFsdp2}).exit_code, 3);
}

TEST(ProgramTrace, StragglersOfOneRankAreNone) {
  const ProgramRun run = run_program({"trace", "stragglers", kFsdp2});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, HasSubstr("no collective has two ranks"));
}

}  // namespace
}  // namespace foreshard
