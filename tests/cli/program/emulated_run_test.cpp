// `foreshard run --emulate-world`: one process that is one rank of many, on the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/program/running_program.h"

namespace foreshard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

ProgramEnd emulate(std::vector<std::string> more, const std::vector<std::string>& environment = {}) {
  more.insert(more.begin(), {"run", std::string(FORESHARD_SOURCE_DIR) + "/examples/tiny-llama-2ranks.toml", "--set",
                             "train.steps=2", "--json"});
  return RunningProgram(FORESHARD_PROGRAM, more, environment).wait();
}

std::vector<json> lines_of(const std::string& text) {
  std::vector<json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST(EmulatedRun, HoldsAnEighthOfWhatTheWholeModelTakes) {
  const auto eight = emulate({"--emulate-world", "8", "--set", "cluster.rank=5"});
  ASSERT_EQ(eight.exit_code, 0) << eight.err;
  const auto one = emulate({"--set", "cluster.world_size=1", "--set", "cluster.ranks_per_node=1"});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const json of_eight = lines_of(eight.out).back(), of_one = lines_of(one.out).back();
  EXPECT_EQ(of_eight["job"]["world_size"], 8);
  EXPECT_EQ(of_eight["job"]["rank"], 5);
  EXPECT_EQ(of_eight["job"]["emulated"], true);
  EXPECT_EQ(of_one["job"]["emulated"], false);
  const double shard = of_eight["after_init"]["allocated_bytes"], whole = of_one["after_init"]["allocated_bytes"];
  EXPECT_NEAR(shard, whole / 8, 0.05 * whole / 8) << "shards are padded to whole rows";
}

TEST(EmulatedRun, IsOneProcessAndSavesNothing) {
  const auto launched = emulate({"--emulate-world", "8"}, {"RANK=0", "WORLD_SIZE=2"});
  EXPECT_EQ(launched.exit_code, 2);
  EXPECT_THAT(launched.out, HasSubstr("one process stands for all ranks"));
  const auto saving = emulate({"--emulate-world", "8", "--set", "train.checkpoint.dir=/nowhere"});
  EXPECT_EQ(saving.exit_code, 2);
  EXPECT_THAT(saving.out, HasSubstr("saves nothing"));
}

}  // namespace
}  // namespace foreshard
