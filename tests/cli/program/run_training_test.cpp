// `foreshard run` as a user types it: processes, results, data, checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "tests/cli/program/running_program.h"
#include "tests/support/temporary_path.h"
#include "traces/formats/fst.h"

namespace foreshard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kJob = std::string(FORESHARD_SOURCE_DIR) + "/examples/tiny-llama-2ranks.toml";

ProgramEnd run(std::vector<std::string> arguments, const std::vector<std::string>& environment = {}) {
  arguments.insert(arguments.begin(), {"run", kJob});
  return RunningProgram(FORESHARD_PROGRAM, arguments, environment).wait();
}

std::vector<json> lines_of(const std::string& text) {
  std::vector<json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

std::string of_steps(int steps) { return "train.steps=" + std::to_string(steps); }

TEST(Run, TwoRanksTrainAndSayEveryStepAndTheMeasuredSummary) {
  const ProgramEnd end = run({"--nproc", "2", "--json"});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(end.err, "note: starts from fresh values, as their modules initialise themselves, seed 0\n");
  const auto lines = lines_of(end.out);
  ASSERT_EQ(lines.size(), 31u);  // 30 steps and the summary
  for (std::size_t i = 0; i < 30; ++i) {
    const json& step = lines[i];
    EXPECT_EQ(step["step"], i + 1);
    for (const char* key : {"loss", "grad_norm", "lr", "step_time_ns", "tokens_per_s", "peak_allocated_bytes"}) {
      EXPECT_GT(step[key].get<double>(), 0) << key;
    }
    EXPECT_TRUE(step["peak_reserved_bytes"].is_number());
  }
  EXPECT_NEAR(lines[4]["lr"].get<double>(), 3e-3, 1e-12) << "the warm-up's end";
  EXPECT_LT(lines[29]["loss"].get<double>(), lines[0]["loss"].get<double>() - 0.5) << "there is something to learn";
  const json& summary = lines[30];
  EXPECT_EQ(summary["schema"], "foreshard.run/1");
  EXPECT_EQ(summary["end"], "done");
  EXPECT_EQ(summary["fits"], true);
  EXPECT_EQ(summary["level"], "measured");
  EXPECT_EQ(summary["iterations"].size(), 30u);
  EXPECT_LE(summary["step_time_ns"]["low"], summary["step_time_ns"]["value"]);
  EXPECT_GT(summary["memory"]["peak_allocated_bytes"], summary["after_init"]["allocated_bytes"]);
}

TEST(Run, TheGlobalBatchDecidesTheNumbersNotTheRanks) {
  const auto two = lines_of(run({"--nproc", "2", "--json", "--set", of_steps(4)}).out);
  const auto one = lines_of(run({"--json", "--set", of_steps(4), "--set", "cluster.world_size=1", "--set",
                                 "cluster.ranks_per_node=1", "--set", "model.batch=8"})
                                .out);
  ASSERT_EQ(two.size(), 5u);
  ASSERT_EQ(one.size(), 5u);
  for (std::size_t i = 0; i < 4; ++i) {
    const double expected = one[i]["loss"];
    EXPECT_NEAR(two[i]["loss"].get<double>(), expected, 1e-5 * expected) << i;
  }
}

TEST(Run, WithoutJsonEachStepIsALine) {
  const ProgramEnd end = run({"--nproc", "2", "--set", of_steps(2)});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("step     1/2  loss "));
  EXPECT_THAT(end.out, HasSubstr("step     2/2  loss "));
  EXPECT_THAT(end.out, HasSubstr("2 steps on 2 ranks: loss "));
  EXPECT_EQ(end.out.find('\r'), std::string::npos) << "bars are for terminals";
}

TEST(Run, AnotherNumberOfProcessesThanPlannedIsRefused) {
  const ProgramEnd three = run({"--nproc", "3"});
  EXPECT_EQ(three.exit_code, 3);
  EXPECT_THAT(three.err, HasSubstr("cluster.world_size"));
  EXPECT_THAT(three.err, HasSubstr("--set cluster.world_size=3"));
  const ProgramEnd alone = run({});
  EXPECT_EQ(alone.exit_code, 3);
  EXPECT_THAT(alone.err, HasSubstr("--nproc 2"));
  const ProgramEnd told = run({"--json"}, {"RANK=0", "WORLD_SIZE=4"});
  EXPECT_EQ(told.exit_code, 3);
  EXPECT_EQ(json::parse(told.out)["error"]["place"], "cluster.world_size");
}

TEST(Run, RanksOfATorchrunFindEachOther) {
  const std::string port = "MASTER_PORT=" + std::to_string(free_port());
  const std::vector<std::string> common = {"WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=localhost", port};
  const auto start = [&](const std::string& rank) {
    std::vector<std::string> environment = common;
    environment.insert(environment.end(), {"RANK=" + rank, "LOCAL_RANK=" + rank});
    return std::make_unique<RunningProgram>(
        FORESHARD_PROGRAM, std::vector<std::string>{"run", kJob, "--json", "--set", of_steps(2)}, environment);
  };
  const auto first = start("0"), second = start("1");
  const ProgramEnd end = first->wait(), other = second->wait();
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_EQ(lines_of(end.out).size(), 3u);
  EXPECT_EQ(other.out, "") << "rank 0 speaks";
}

TEST(Run, TokenFilesAreTrainedOn) {
  const std::string path = testing::temporary_path("corpus.u16");
  {
    std::ofstream file(path, std::ios::binary);
    for (int i = 0; i < 4000; ++i) file.put(static_cast<char>(i % 50)).put(0);
  }
  const ProgramEnd end = run({"--nproc", "2", "--json", "--set", of_steps(3), "--set", "train.data.kind=tokens",
                              "--set", "train.data.file=" + path});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(lines_of(end.out).size(), 4u);
}

TEST(Run, ResumingGivesTheStepsOfARunThatNeverStopped) {
  const std::string dir = testing::temporary_path("resumed");
  const std::vector<std::string> save = {
      "--nproc", "2", "--json", "--set", "train.checkpoint.dir=" + dir, "--set", "train.schedule.name=constant"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), save.begin(), save.end());
    return run(more);
  };
  const auto whole =
      lines_of(run({"--nproc", "2", "--json", "--set", of_steps(6), "--set", "train.schedule.name=constant"}).out);
  ASSERT_EQ(whole.size(), 7u);
  const ProgramEnd first = with({"--set", of_steps(3)});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("checkpoint: " + dir));
  const ProgramEnd again = with({"--set", of_steps(6)});
  EXPECT_EQ(again.exit_code, 3) << "not over somebody's checkpoints";
  const ProgramEnd rest = with({"--set", of_steps(6), "--resume"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  const auto lines = lines_of(rest.out);
  ASSERT_EQ(lines.size(), 4u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(lines[i]["step"], i + 4);
    EXPECT_EQ(lines[i]["loss"], whole[i + 3]["loss"]);
  }
  std::filesystem::remove_all(dir);
}

/// Saved between two growths of the scale, before steps that are left out.
TEST(Run, ResumingGoesOnWithTheScalersScale) {
  const std::string dir = testing::temporary_path("resumed_scaler");
  for (const auto& [runtime, offload, impl] : {std::tuple{"fsdp1", "true", "foreach"}, {"fsdp2", "false", "fused"}}) {
    const auto with = [&, runtime = runtime, offload = offload, impl = impl](std::vector<std::string> more) {
      more.insert(more.end(), {"--nproc", "2", "--json"});
      for (const std::string& set :
           {"fsdp.runtime=" + std::string(runtime), "fsdp.cpu_offload=" + std::string(offload),
            "train.optimizer.impl=" + std::string(impl), std::string("fsdp.mixed_precision.param=float16"),
            std::string("fsdp.mixed_precision.reduce=float16"), std::string("train.grad_scaler.enabled=true"),
            std::string("train.grad_scaler.growth_interval=2"), std::string("train.grad_scaler.init_scale=65536"),
            std::string("train.schedule.name=constant")}) {
        more.insert(more.end(), {"--set", set});
      }
      return run(more);
    };
    const auto whole = lines_of(with({"--set", of_steps(10)}).out);
    ASSERT_EQ(whole.size(), 11u);
    EXPECT_EQ(whole[1]["loss_scale"], 131072) << "two good steps";
    EXPECT_TRUE(std::any_of(whole.begin() + 3, whole.end() - 1, [](const json& step) { return step["skipped"]; }));
    const std::string folder = "train.checkpoint.dir=" + dir;
    ASSERT_EQ(with({"--set", of_steps(3), "--set", folder}).exit_code, 0);
    const ProgramEnd rest = with({"--set", of_steps(10), "--set", folder, "--resume"});
    ASSERT_EQ(rest.exit_code, 0) << rest.err;
    const auto lines = lines_of(rest.out);
    ASSERT_EQ(lines.size(), 8u);
    for (std::size_t i = 0; i < 7; ++i) {
      for (const char* key : {"step", "loss", "loss_scale", "skipped"}) {
        EXPECT_EQ(lines[i][key], whole[i + 3][key]) << runtime << ", step " << i + 4 << ", " << key;
      }
    }
    std::filesystem::remove_all(dir);
  }
}

TEST(Run, ResumingWithoutAFolderOrACheckpoint) {
  const ProgramEnd nowhere = run({"--nproc", "2", "--resume"});
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("train.checkpoint.dir"));
  const std::string dir = testing::temporary_path("fresh");
  const ProgramEnd fresh =
      run({"--nproc", "2", "--resume", "--set", of_steps(1), "--set", "train.checkpoint.dir=" + dir});
  EXPECT_EQ(fresh.exit_code, 0) << fresh.err;
  EXPECT_THAT(fresh.err, HasSubstr("starting at step 0"));
  std::filesystem::remove_all(dir);
}

TEST(Run, TheTimelineHoldsAllRanks) {
  const std::string path = testing::temporary_path("run.fst");
  const ProgramEnd end = run({"--nproc", "2", "--set", of_steps(3), "--timeline", path});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  const auto timeline = read_fst(path);
  ASSERT_TRUE(timeline) << to_text(timeline.error());
  std::vector<int> spans_of_rank(2, 0);
  for (const Span& span : timeline->spans)
    ++spans_of_rank.at(static_cast<std::size_t>(timeline->lanes[span.lane.index()].rank));
  EXPECT_GT(spans_of_rank[0], 100);
  EXPECT_GT(spans_of_rank[1], 100);
  EXPECT_EQ(timeline->provenance.plan_digest.size(), 16u);
  std::filesystem::remove(path);
}

TEST(Run, WithoutTheExecutorTheWayToGetItIsNamed) {
  const std::string copy = testing::temporary_path("foreshard");
  std::filesystem::copy_file(FORESHARD_PROGRAM, copy);
  const ProgramEnd end = RunningProgram(copy, {"run", kJob, "--nproc", "2"}).wait();
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.err, HasSubstr("foreshard-exec"));
  EXPECT_THAT(end.err, HasSubstr("scripts/setup"));
  std::filesystem::remove(copy);
}

TEST(Run, ABackendThatIsNotThereIsSaid) {
  const ProgramEnd end = run({"--nproc", "2", "--backend", "cuda"});
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.err, HasSubstr("--backend host"));
}

}  // namespace
}  // namespace foreshard
