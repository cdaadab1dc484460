// simulate --action and the checkpoint verb, as users run them.
#include "tests/cli/program/run_program.h"
#include "tests/support/temporary_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

namespace foreshard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kModel = std::string(FORESHARD_TEST_DATA) + "/exec/llama_tiny";

std::vector<std::string> simulate(const std::string& actions, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"simulate", kModel + "/config.json", "--set", "fsdp.runtime=fsdp1", "--action",
                                     actions};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(ProgramActions, EachActionSaysItsPeakItsEndAndItsTime) {
  for (const std::string action : {"init:sync", "summon", "save:full:offload:rank0_only", "load:sharded", "save:local",
                                   "summon:with_grads:no_writeback", "init,save:sharded:optimizer"}) {
    const ProgramRun run = run_program(simulate(action));
    EXPECT_EQ(run.exit_code, 0) << action << '\n' << run.err;
    EXPECT_THAT(run.out, HasSubstr("at the peak")) << action;
    EXPECT_THAT(run.out, HasSubstr("time")) << action;
  }
}

TEST(ProgramActions, TheJsonIsAPredictionWithOneIterationAnAction) {
  const ProgramRun run = run_program(simulate("init,save", {"--json"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json answer = json::parse(run.out);
  EXPECT_EQ(answer["schema"], "foreshard.prediction/1");
  ASSERT_EQ(answer["iterations"].size(), 2u);
  EXPECT_GT(answer["iterations"][1]["peak_allocated_bytes"], answer["iterations"][1]["end_allocated_bytes"]);
  EXPECT_EQ(answer["tokens_per_s"]["value"], 0);
}

TEST(ProgramActions, WhatDoesNotFitSaysSo) {
  const ProgramRun run =
      run_program({"simulate", std::string(FORESHARD_SOURCE_DIR) + "/examples/llama-3-8b-64xh100.toml", "--set",
                   "fsdp.runtime=fsdp1", "--set", "cluster.memory=20GiB", "--action", "save"});
  EXPECT_EQ(run.exit_code, 4) << run.err;
  EXPECT_THAT(run.out, HasSubstr("does not fit"));
}

TEST(ProgramActions, UnknownActionsAreUsageErrors) {
  const ProgramRun run = run_program(simulate("frob"));
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("frob"));
}

TEST(ProgramActions, WeightsGoIntoACheckpointAndOut) {
#ifndef FORESHARD_WITH_EXECUTOR
  GTEST_SKIP() << "built without LibTorch";
#endif
  const std::string in = testing::temporary_path("cli_checkpoints"), out = testing::temporary_path("cli_weights");
  const ProgramRun imported =
      run_program({"checkpoint", "import", kModel + "/model.safetensors", kModel + "/config.json", "--out", in});
  ASSERT_EQ(imported.exit_code, 0) << imported.err;
  const ProgramRun shown = run_program({"checkpoint", "show", in, "--verify"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("model.embed_tokens.weight fp32 [96, 64]"));
  const ProgramRun exported =
      run_program({"checkpoint", "export", in, "--out", out, "--max-shard-size", "100KB", "--json"});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_EQ(json::parse(exported.out)["tensors"], 21);
  EXPECT_TRUE(std::filesystem::exists(out + "/model.safetensors.index.json"));
  EXPECT_EQ(run_program({"checkpoint", "export", in}).exit_code, 2);  // where to?
  EXPECT_EQ(run_program({"checkpoint", "export", in, "--out", out, "--dtype", "int7"}).exit_code, 2);
  EXPECT_EQ(run_program({"checkpoint", "show", "/nowhere"}).exit_code, 3);
  std::filesystem::remove_all(in);
  std::filesystem::remove_all(out);
}

}  // namespace
}  // namespace foreshard
