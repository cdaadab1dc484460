// `foreshard calibrate` on this host, as a user types it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/program/running_program.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kJob = std::string(FORESHARD_SOURCE_DIR) + "/examples/tiny-llama-2ranks.toml";

ProgramEnd foreshard(const std::vector<std::string>& arguments) {
  return RunningProgram(FORESHARD_PROGRAM, arguments).wait();
}

TEST(Calibrate, ThePredictedStepIsTheOneThatWasMeasured) {
  const std::string profile = testing::temporary_path("steps.toml");
  const std::string checkpoints = testing::temporary_path("calibrated-checkpoints");
  const ProgramEnd end = foreshard({"calibrate", kJob, "--ranks", "2", "--repeats", "2", "--steps", "7", "--json",
                                    "--output", profile, "--set", "train.checkpoint.dir=" + checkpoints});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  const json told = json::parse(end.out);
  EXPECT_EQ(told["schema"], "foreshard.calibration/1");
  EXPECT_GT(told["operators"], 0);
  const json& step = told["step"];
  EXPECT_EQ(step["steps"], 7);
  EXPECT_GT(step["measured_ns"], 0);
  EXPECT_FALSE(std::filesystem::exists(checkpoints)) << "a calibration leaves no checkpoint";

  const ProgramEnd predicted = foreshard({"simulate", kJob, "--json", "--set", "cluster.profile=" + profile});
  ASSERT_EQ(predicted.exit_code, 0) << predicted.err;
  const json answer = json::parse(predicted.out);
  EXPECT_EQ(answer["level"], "measured-step");
  EXPECT_NEAR(answer["step_time_ns"]["value"].get<double>(), step["predicted_ns"].get<double>(),
              1e-3 * step["predicted_ns"].get<double>());
  const double operators = step["operator_factor"], collectives = step["collective_factor"];
  EXPECT_GT(step["measured_compute_ns"], 0);
  EXPECT_LT(step["measured_compute_ns"], step["measured_ns"].get<double>() * 1.5) << "of one step";
  if (collectives > 0.3 && collectives < 7.5 && operators > 0.3 && operators < 3.9) {  // between the ends of the search
    for (const char* const what : {"", "_compute"}) {
      const double measured = step[std::string("measured") + what + "_ns"];
      EXPECT_NEAR(step[std::string("predicted") + what + "_ns"].get<double>(), measured, 0.05 * measured) << what;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(profile + ".steps.fst")) << "the recording is gone";
  std::ostringstream written;
  written << std::ifstream(profile).rdbuf();
  EXPECT_THAT(written.str(), HasSubstr("collective_spread = ["));
}

TEST(Calibrate, StepsOfAJobForMoreRanksAreNotRun) {
  const std::string profile = testing::temporary_path("parts.toml");
  const ProgramEnd end = foreshard({"calibrate", kJob, "--ranks", "2", "--repeats", "1", "--json", "--output", profile,
                                    "--set", "cluster.world_size=4", "--set", "cluster.ranks_per_node=4"});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("the job is planned for 4 ranks, 2 were measured"));
  EXPECT_FALSE(json::parse(end.out).contains("step"));
}

TEST(Calibrate, AJobWhoseDataIsMissingIsAnError) {
  const std::string profile = testing::temporary_path("none.toml");
  const ProgramEnd end = foreshard({"calibrate", kJob, "--ranks", "2", "--repeats", "1", "--output", profile, "--set",
                                    "train.eval.file=/nowhere/tokens.bin", "--set", "train.data.kind=tokens", "--set",
                                    "train.data.file=/nowhere/tokens.bin"});
  EXPECT_NE(end.exit_code, 0);
  EXPECT_THAT(end.err, HasSubstr("/nowhere/tokens.bin"));
}

}  // namespace
}  // namespace foreshard
