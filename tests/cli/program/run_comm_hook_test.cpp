// `foreshard run` with communication hooks: PyTorch's by name, a user's own from a library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/program/running_program.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

ProgramEnd run(const std::string& hook, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"run",
                                        std::string(FORESHARD_SOURCE_DIR) + "/examples/tiny-llama-2ranks.toml",
                                        "--json",
                                        "--nproc",
                                        "2",
                                        "--set",
                                        "fsdp.runtime=fsdp1",
                                        "--set",
                                        "train.steps=4",
                                        "--set",
                                        "fsdp.comm_hook=" + hook};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunningProgram(FORESHARD_PROGRAM, arguments, {}).wait();
}

double last_loss(const ProgramEnd& end) {
  EXPECT_EQ(end.exit_code, 0) << end.err;
  std::istringstream stream(end.out);
  double loss = 0;
  for (std::string line; std::getline(stream, line);) {
    const json document = json::parse(line);
    if (document.contains("loss")) loss = document["loss"];
  }
  return loss;
}

TEST(RunCommHook, CompressionChangesTheLastDigitsOnly) {
  const double plain = last_loss(run("none"));
  for (const char* hook : {"fp16_compress", "bf16_compress"}) {
    const double compressed = last_loss(run(hook));
    EXPECT_NE(compressed, plain) << hook;
    EXPECT_NEAR(compressed, plain, 1e-2) << hook;
  }
}

TEST(RunCommHook, ALibraryOfTheUsersOwnIsLoaded) {
  const double plain = last_loss(run("none"));
  const double scaled = last_loss(run("own:scaled_half", {"--load", FORESHARD_EXAMPLE_HOOK}));
  EXPECT_NE(scaled, plain);
  EXPECT_NEAR(scaled, plain, 1e-3);
}

TEST(RunCommHook, WhatIsNotThereIsNamed) {
  ProgramEnd end = run("own:scaled", {"--load", FORESHARD_EXAMPLE_HOOK});
  EXPECT_EQ(end.exit_code, 3);
  json error = json::parse(end.out)["error"];
  EXPECT_EQ(error["expected"], "scaled_half") << "those that are there";
  end = run("own:scaled_half", {"--load", "/nowhere/lib.so"});
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_EQ(json::parse(end.out)["error"]["file"], "/nowhere/lib.so");
  end = run("fp16_compres");
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.out, HasSubstr("own:NAME"));
}

}  // namespace
}  // namespace foreshard
