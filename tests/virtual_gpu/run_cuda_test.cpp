// `foreshard run --backend cuda` as a user types it, on the virtual device: what every rank asks of CUDA and NCCL is
// the plan's, and what goes wrong there is told with what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "sim/machine/profile.h"
#include "tests/support/temporary_path.h"
#include "tests/virtual_gpu/cuda_program.h"
#include "tests/virtual_gpu/planned_calls.h"
#include "traces/formats/fst.h"

namespace foreshard {
namespace {

using nlohmann::json;
using testing::arguments_of;
using testing::calls_planned;
using ::testing::HasSubstr;
using testing::kJob;
using testing::LogFolder;
using ::testing::Not;
using testing::on_virtual_device;
using testing::plan_of;
using testing::run;
namespace fs = std::filesystem;

std::vector<json> lines_of(const std::string& text) {
  std::vector<json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

void expect_calls_of(const Plan& plan, std::vector<exec::DeviceCall> calls) {
  const auto planned = calls_planned(plan);
  exec::DeviceNames names;
  EXPECT_EQ(exec::difference(planned, exec::calls_of_interest(std::move(calls)), names), "");
}

TEST(RunCuda, TwoRanksTrainAndCallWhatThePlanSays) {
  const LogFolder logs;
  const std::string timeline = testing::temporary_path("cuda.fst");
  const ProgramEnd end = run({"--nproc", "2", "--json", "--timeline", timeline}, {logs.variable()});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(end.err, "note: starts from fresh values, as their modules initialise themselves, seed 0\n");
  const auto lines = lines_of(end.out);
  ASSERT_EQ(lines.size(), 4u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(lines[i]["step"], i + 1);
    EXPECT_GT(lines[i]["peak_allocated_bytes"], 0);
    EXPECT_GE(lines[i]["peak_reserved_bytes"], lines[i]["peak_allocated_bytes"]);
  }
  EXPECT_EQ(lines[3]["job"]["backend"], "cuda");
  EXPECT_EQ(lines[3]["end"], "done");
  const auto of_ranks = logs.of_ranks();
  ASSERT_EQ(of_ranks.size(), 2u);
  for (const auto& calls : of_ranks) expect_calls_of(plan_of({"train.steps=3"}), calls);

  const auto recorded = read_fst(timeline);
  fs::remove(timeline);
  ASSERT_TRUE(recorded) << to_text(recorded.error());
  std::map<std::string, std::size_t> spans_of_lane;
  for (const Span& span : recorded->spans) {
    const Lane& lane = recorded->lanes[span.lane.index()];
    if (span.instruction.valid()) ++spans_of_lane[std::to_string(lane.rank) + lane.stream];
  }
  for (const char* lane : {"0D", "0A", "0S", "1D", "1A", "1S"}) EXPECT_GT(spans_of_lane[lane], 0u) << lane;
}

TEST(RunCuda, CheckpointsOfDeviceMemoryAreGoneOnFrom) {
  const std::string folder = testing::temporary_path("cuda_checkpoints");
  const std::vector<std::string> common = {"--json",
                                           "--set",
                                           "cluster.world_size=1",
                                           "--set",
                                           "cluster.ranks_per_node=1",
                                           "--set",
                                           "train.checkpoint.dir=" + folder};
  const ProgramEnd first = run(common);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("checkpoint: "));
  std::vector<std::string> resumed = common;
  resumed.insert(resumed.end(), {"--resume", "--set", "train.steps=4"});
  const ProgramEnd second = run(resumed);
  fs::remove_all(folder);
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(lines_of(second.out).front()["step"], 4);
}

std::size_t count(const std::vector<exec::DeviceCall>& calls, const std::string& api) {
  return static_cast<std::size_t>(
      std::count_if(calls.begin(), calls.end(), [&](const exec::DeviceCall& call) { return call.api == api; }));
}

TEST(RunCuda, AFusedStepRepeatsAsAGraph) {
  const LogFolder logs;
  const ProgramEnd end =
      run({"--nproc", "2", "--cuda-graphs", "--set", "train.optimizer.impl=fused", "--set", "train.steps=6"},
          {logs.variable()});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  const auto of_ranks = logs.of_ranks();
  ASSERT_EQ(of_ranks.size(), 2u);
  for (const auto& calls : of_ranks) {
    const std::size_t captures = count(calls, "cudaStreamBeginCapture");
    EXPECT_GE(captures, 1u);
    EXPECT_LE(captures, 2u) << "addresses of a steady step come back";
    EXPECT_EQ(count(calls, "cudaGraphInstantiate"), captures);
    EXPECT_GE(count(calls, "cudaGraphLaunch"), 3u);
  }
}

TEST(RunCuda, AGraphThatIsRefusedRunsAsItComes) {
  const ProgramEnd end = run({"--cuda-graphs", "--set", "train.optimizer.impl=fused", "--set", "cluster.world_size=1",
                              "--set", "cluster.ranks_per_node=1"},
                             {"FAKEGPU_FAIL=cudaGraphInstantiate@1=801+"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
}

TEST(RunCuda, ProfilersSeeRangesOfUnits) {
  const LogFolder logs;
  const ProgramEnd end = run({"--nproc", "2"}, {logs.variable(), "NVTX_INJECTION64_PATH=" FORESHARD_FAKEGPU});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  const auto of_ranks = logs.of_ranks();
  ASSERT_EQ(of_ranks.size(), 2u);
  const std::string unit = plan_of({}).units.at(1).name;
  for (const auto& calls : of_ranks) {
    std::map<std::string, int> ranges;
    for (const exec::DeviceCall& call : calls) {
      if (call.api == "nvtxRangePush") ++ranges[call.name];
    }
    EXPECT_GE(ranges["forward " + unit], 3) << "one a step";
    EXPECT_GE(ranges["backward " + unit], 3);
    EXPECT_EQ(count(calls, "nvtxRangePush"), count(calls, "nvtxRangePop"));
  }
}

TEST(RunCuda, NcclKnowsTheAllocatorsMemoryWhereAsked) {
  const LogFolder logs;
  const ProgramEnd end = run({"--nproc", "2", "--nccl-register"}, {logs.variable()});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  for (const auto& calls : logs.of_ranks()) {
    EXPECT_GT(count(calls, "ncclCommRegister"), 0u);
    EXPECT_EQ(count(calls, "ncclCommRegister"), count(calls, "ncclCommDeregister"));
  }
}

TEST(RunCuda, TheAllocatorTakesTheJobsKeys) {
  const LogFolder logs;
  const std::vector<std::string> alone = {"--set", "cluster.world_size=1", "--set", "cluster.ranks_per_node=1",
                                          "--set"};
  auto set = alone;
  set.push_back("allocator.expandable_segments=true");
  const ProgramEnd end = run(set, {logs.variable()});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  ASSERT_EQ(logs.of_ranks().size(), 1u);
  EXPECT_GT(count(logs.of_ranks()[0], "cuMemCreate"), 0u);
  set.back() = "allocator.max_split_size_mb=1";
  const ProgramEnd refused = run(set);
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("allocator: "));
  EXPECT_THAT(refused.err, HasSubstr("max_split_size"));
}

TEST(RunCuda, HalfPrecisionTrainsWithAScaler) {
  const ProgramEnd end = run({"--nproc", "2", "--json", "--set", "fsdp.mixed_precision.param=float16", "--set",
                              "train.grad_scaler.enabled=true"});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  for (const json& line : lines_of(end.out)) {
    if (line.contains("step")) {
      EXPECT_TRUE(line.contains("loss_scale")) << line;
    }
  }
}

TEST(RunCuda, OneRankStandsForMany) {
  const LogFolder logs;
  const ProgramEnd end = run({"--emulate-world", "8", "--json", "--set", "cluster.rank=3"}, {logs.variable()});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  const json summary = lines_of(end.out).back();
  EXPECT_EQ(summary["job"]["world_size"], 8);
  EXPECT_EQ(summary["job"]["rank"], 3);
  EXPECT_EQ(summary["job"]["emulated"], true);
  const auto of_ranks = logs.of_ranks();
  ASSERT_EQ(of_ranks.size(), 1u);
  std::size_t held = 0, collectives = 0;
  for (const exec::DeviceCall& call : of_ranks[0]) {
    EXPECT_EQ(call.api.find("nccl"), std::string::npos) << call.api;
    held += call.name.find("::hold(") != std::string::npos ? 1 : 0;
  }
  for (const auto& call : calls_planned(plan_of({"train.steps=3", "cluster.world_size=8", "cluster.rank=3"}))) {
    collectives += call.api.starts_with("nccl") ? 1 : 0;
  }
  EXPECT_EQ(held, collectives) << "each collective holds its stream once";
  const ProgramEnd both = run({"--emulate-world", "8", "--nproc", "2"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("one process stands for all ranks"));
}

/// Three of a kind: what is wrong, what is said, with which exit code.
struct BadMachine {
  std::string name;
  std::vector<std::string> environment;
  int exit_code = 0;
  std::vector<std::string> told;
  std::vector<std::string> arguments = {};
};

void PrintTo(const BadMachine& machine, std::ostream* out) { *out << machine.name; }

class RunOnBadMachine : public ::testing::TestWithParam<BadMachine> {};

TEST_P(RunOnBadMachine, SaysWhatIsWrongAndWhatToDo) {
  std::vector<std::string> arguments = {"--nproc", "2", "--timeout", "20"};
  arguments.insert(arguments.end(), GetParam().arguments.begin(), GetParam().arguments.end());
  const ProgramEnd end = run(arguments, GetParam().environment);
  EXPECT_EQ(end.exit_code, GetParam().exit_code) << end.err;
  for (const std::string& text : GetParam().told) EXPECT_THAT(end.err, HasSubstr(text));
}

INSTANTIATE_TEST_SUITE_P(
    Environments, RunOnBadMachine,
    ::testing::Values(BadMachine{"NoCard", {"FAKEGPU_DEVICES=0"}, 3, {"no CUDA device can be used", "nvidia-smi"}},
                      BadMachine{"OldDriver",
                                 {"FAKEGPU_DRIVER=12040"},
                                 3,
                                 {"the driver serves CUDA 12.4", "update the NVIDIA driver"}},
                      BadMachine{"HiddenCards", {"CUDA_VISIBLE_DEVICES=9"}, 3, {"CUDA_VISIBLE_DEVICES is \"9\""}},
                      BadMachine{"OneCardForTwoRanks",
                                 {"CUDA_VISIBLE_DEVICES=0"},
                                 3,
                                 {"there is no CUDA device 1", "CUDA_VISIBLE_DEVICES is \"0\""}},
                      BadMachine{"CardTaken", {"FAKEGPU_MEM_GIB=0.3"}, 3, {"has no memory left", "nvidia-smi"}},
                      BadMachine{"OutOfMemory",
                                 {"FAKEGPU_MEM_GIB=0.6"},
                                 1,
                                 {", step 1: ", "(instruction ", "out of memory", "foreshard simulate"},
                                 {"--set", "model.batch=8192"}},
                      BadMachine{"LostCard",
                                 {"FAKEGPU_FAIL=device@1500=719+", "FAKEGPU_FAIL_RANK=0"},
                                 1,
                                 {"rank 0, step ", "unspecified launch failure"}},
                      BadMachine{"ErrorThatComesLate",
                                 {"FAKEGPU_FAIL=0:cudaLaunchKernel@900=700~"},
                                 1,
                                 {"rank 0, step ", "illegal memory access", "CUDA_LAUNCH_BLOCKING=1"}},
                      BadMachine{"NcclError",
                                 {"FAKEGPU_FAIL=ncclReduceScatter@2=6", "FAKEGPU_FAIL_RANK=1"},
                                 1,
                                 {"rank 1, step 1", "reduce_scatter", "remote process exited", "NCCL_DEBUG=INFO"}},
                      BadMachine{"NcclRefusesTheGroup",
                                 {"FAKEGPU_FAIL=ncclCommInitRankConfig@1=2", "FAKEGPU_FAIL_RANK=1"},
                                 3,
                                 {"unhandled system error", "NCCL_DEBUG=INFO"}},
                      BadMachine{"PeerLostInACollective",
                                 {"FAKEGPU_FAIL=ncclHang@5=1", "FAKEGPU_NCCL_ASYNC=5=6", "FAKEGPU_FAIL_RANK=0"},
                                 1,
                                 {"remote process exited"}}),
    [](const auto& row) { return row.param.name; });

TEST(RunCuda, ACollectiveThatAPeerNeverJoinsEndsWithTheTimeout) {
  const ProgramEnd end = run({"--nproc", "2", "--timeout", "2"}, {"FAKEGPU_FAIL=ncclHang@5=1", "FAKEGPU_FAIL_RANK=0"});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.err, HasSubstr("all_gather of \""));
  EXPECT_THAT(end.err, HasSubstr("(call 5 of its group of 2) has not ended for 2 s: "));
}

/// Rank 1's fifth call does not come back, so that rank 0's does not end. Whichever speaks first knows who is missing.
TEST(RunCuda, ACollectiveThatIsMissingARankNamesIt) {
  const ProgramEnd end =
      run({"--nproc", "2", "--timeout", "3"}, {"FAKEGPU_QUEUE=1024", "FAKEGPU_FAIL=0:ncclHang@5=1,1:ncclStall@5=1"});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.err, ::testing::AnyOf(HasSubstr("has not ended for 3 s: rank 1 has made 4 of 5 calls"),
                                        HasSubstr("has not come back for 3 s: the other ranks have made it")));
}

/// Rank 2 dies in its fifth collective, which so ends on no card.
TEST(RunCuda, ARankThatIsKilledEndsTheOthers) {
  const ProgramEnd end =
      run({"--nproc", "4", "--timeout", "120", "--set", "cluster.world_size=4", "--set", "cluster.ranks_per_node=4"},
          {"FAKEGPU_QUEUE=1024",
           "FAKEGPU_FAIL=0:ncclHang@5=1,1:ncclHang@5=1,2:ncclKill@5=9,"
           "3:ncclHang@5=1"});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.err, HasSubstr("rank 2"));
  EXPECT_THAT(end.err, HasSubstr("signal 9"));
}

/// The variables of a rank, by who starts it; of four ranks on two machines, or of as many on one.
struct Launcher {
  std::string name;
  std::function<std::vector<std::string>(int rank, const std::string& port)> variables;
};

void PrintTo(const Launcher& launcher, std::ostream* out) { *out << launcher.name; }

class RunUnderLauncher : public ::testing::TestWithParam<Launcher> {};

TEST_P(RunUnderLauncher, EachRankHasItsCard) {
  const std::string port = std::to_string(free_port());
  const LogFolder logs("launchers");
  std::vector<std::unique_ptr<RunningProgram>> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<std::string> environment = GetParam().variables(rank, port);
    environment.push_back(logs.variable());
    ranks.push_back(std::make_unique<RunningProgram>(
        FORESHARD_PROGRAM,
        arguments_of({"--timeout", "100", "--set", "cluster.world_size=4", "--set", "cluster.ranks_per_node=2"}),
        on_virtual_device(environment)));
  }
  for (const auto& rank : ranks) {
    const ProgramEnd end = rank->wait();
    EXPECT_EQ(end.exit_code, 0) << end.err;
  }
  const auto of_ranks = logs.of_ranks();
  ASSERT_EQ(of_ranks.size(), 4u);
  for (const auto& calls : of_ranks) EXPECT_GT(count(calls, "ncclReduceScatter"), 0u);
}

std::string text(int number) { return std::to_string(number); }

INSTANTIATE_TEST_SUITE_P(Launchers, RunUnderLauncher,
                         ::testing::Values(Launcher{"Torchrun",
                                                    [](int rank, const std::string& port) -> std::vector<std::string> {
                                                      return {"RANK=" + text(rank),    "WORLD_SIZE=4",
                                                              "FAKEGPU_DEVICES=2",     "LOCAL_RANK=" + text(rank % 2),
                                                              "LOCAL_WORLD_SIZE=2",    "GROUP_RANK=" + text(rank / 2),
                                                              "MASTER_ADDR=localhost", "MASTER_PORT=" + port};
                                                    }},
                                           Launcher{"Slurm",
                                                    [](int rank, const std::string& port) -> std::vector<std::string> {
                                                      return {"SLURM_PROCID=" + text(rank),
                                                              "SLURM_NTASKS=4",
                                                              "SLURM_LOCALID=" + text(rank % 2),
                                                              "SLURM_STEP_TASKS_PER_NODE=2(x2)",
                                                              "SLURM_STEP_NODELIST=localhost",
                                                              "SLURM_JOB_ID=7",
                                                              "MASTER_PORT=" + port,
                                                              "FAKEGPU_DEVICES=2"};
                                                    }},
                                           Launcher{"SlurmWithACardForEachTask",
                                                    [](int rank, const std::string& port) -> std::vector<std::string> {
                                                      return {"SLURM_PROCID=" + text(rank),
                                                              "SLURM_NTASKS=4",
                                                              "SLURM_LOCALID=" + text(rank % 2),
                                                              "SLURM_STEP_TASKS_PER_NODE=2(x2)",
                                                              "SLURM_STEP_NODELIST=localhost",
                                                              "SLURM_JOB_ID=7",
                                                              "MASTER_PORT=" + port,
                                                              "CUDA_VISIBLE_DEVICES=0"};
                                                    }},
                                           Launcher{"MpirunWithACardForEachProcess",
                                                    [](int rank, const std::string& port) -> std::vector<std::string> {
                                                      return {"OMPI_COMM_WORLD_RANK=" + text(rank),
                                                              "OMPI_COMM_WORLD_SIZE=4",
                                                              "OMPI_COMM_WORLD_LOCAL_RANK=" + text(rank % 2),
                                                              "OMPI_COMM_WORLD_LOCAL_SIZE=2",
                                                              "CUDA_VISIBLE_DEVICES=" + text(rank % 2),
                                                              "MASTER_ADDR=localhost",
                                                              "MASTER_PORT=" + port};
                                                    }}),
                         [](const auto& row) { return row.param.name; });

TEST(RunCuda, RanksWithDifferentNcclAreToldApart) {
  const std::string port = "MASTER_PORT=" + std::to_string(free_port());
  const auto start = [&](const std::string& rank, const std::string& nccl) {
    return std::make_unique<RunningProgram>(
        FORESHARD_PROGRAM, arguments_of({"--timeout", "20"}),
        on_virtual_device({"WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=localhost", port, "RANK=" + rank,
                           "LOCAL_RANK=" + rank, "FAKEGPU_NCCL_VERSION=" + nccl}));
  };
  const auto first = start("0", "22809"), second = start("1", "22703");
  const ProgramEnd end = first->wait(), other = second->wait();
  EXPECT_NE(other.exit_code, 0);
  EXPECT_THAT(end.err + other.err, HasSubstr("different versions of NCCL"));
  EXPECT_THAT(end.err + other.err, HasSubstr("2.27.3"));
}

TEST(RunCuda, WhatCuptiRefusesStopsNoTraining) {
  const std::string timeline = testing::temporary_path("refused.fst");
  const ProgramEnd end = run({"--nproc", "2", "--json", "--timeline", timeline}, {"FAKEGPU_CUPTI=denied"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("ERR_NVGPUCTRPERM"));
  EXPECT_TRUE(read_fst(timeline));
  fs::remove(timeline);
}

TEST(RunCuda, CalibrateMeasuresCardsAndTheirLinks) {
  const std::string output = testing::temporary_path("calibrated.toml");
  const ProgramEnd end =
      RunningProgram(FORESHARD_PROGRAM,
                     {"calibrate", kJob, "--backend", "cuda", "--ranks", "2", "--repeats", "3", "--json", "--set",
                      "cluster.profile=h100-sxm-80", "--output", output},
                     on_virtual_device({"FAKEGPU_BACKED=0", "FAKEGPU_TIME=model", "CUDA_VISIBLE_DEVICES=3,1"}))
          .wait();
  ASSERT_EQ(end.exit_code, 0) << end.err;
  const auto profile = load_profile(output);
  fs::remove(output);
  ASSERT_TRUE(profile) << to_text(profile.error());
  EXPECT_EQ(profile->kind, "gpu");
  EXPECT_EQ(profile->level, CalibrationLevel::Microbenchmark);
  EXPECT_THAT(profile->calibration.at("machine"), HasSubstr("H100"));
  EXPECT_THAT(profile->calibration.at("machine"), HasSubstr("SM 1200 of 1980 MHz, 95 of 700 W, 37 C"))
      << "the machine's fourth card";
  EXPECT_GT(profile->operators.size(), 10u);
  EXPECT_GT(profile->extra.at(kBackwardOpNs), 1000) << "what autograd takes to issue an operator";
  EXPECT_GT(profile->op_ns, 1000);
  EXPECT_TRUE(std::any_of(profile->operators.begin(), profile->operators.end(),
                          [](const MeasuredOperator& op) { return op.backward_ns > 0; }));
  ASSERT_EQ(profile->collectives.size(), 3u);
  for (const MeasuredCollective& curve : profile->collectives) {
    EXPECT_EQ(curve.ranks, 2);
    EXPECT_GT(curve.ns.back(), curve.ns.front());
  }
  EXPECT_EQ(profile->channels, load_profile("h100-sxm-80")->channels) << "links are the base profile's";
}

/// NCCL fails when both ranks, which do not wait for each other on this device, are behind the all-gathers. What is
/// kept is what the next call does not measure.
TEST(RunCuda, ACalibrationGoesOnBehindWhatItHasMeasured) {
  const std::string output = testing::temporary_path("interrupted.toml");
  const auto calibrate = [&](const std::string& logs, std::vector<std::string> environment) {
    environment.insert(environment.begin(), {"FAKEGPU_BACKED=0", "FAKEGPU_TIME=model", logs});
    return RunningProgram(FORESHARD_PROGRAM,
                          {"calibrate", kJob, "--backend", "cuda", "--ranks", "2", "--repeats", "3", "--set",
                           "cluster.profile=h100-sxm-80", "--output", output},
                          on_virtual_device(std::move(environment)))
        .wait();
  };
  const LogFolder whole_logs("whole"), rest_logs("rest");
  ASSERT_EQ(calibrate(whole_logs.variable(), {}).exit_code, 0);
  const auto whole = whole_logs.of_ranks();
  ASSERT_EQ(whole.size(), 1u);
  const std::size_t scatters = count(whole[0], "ncclReduceScatter");
  const std::string failing = "FAKEGPU_FAIL=ncclReduceScatter@" + std::to_string(scatters / 2 + 1) + "=6";
  const ProgramEnd cut = calibrate("FAKEGPU_LOG=", {failing});
  EXPECT_NE(cut.exit_code, 0);
  EXPECT_THAT(cut.err, HasSubstr("remote process exited"));
  std::map<std::string, std::vector<std::int64_t>> kept;
  {
    std::ifstream journal(output + ".partial");
    for (std::string line; std::getline(journal, line);) {
      const json entry = json::parse(line);
      if (entry.contains("name")) kept[entry["name"]] = entry["numbers"].get<std::vector<std::int64_t>>();
    }
  }
  for (const char* name : {"round 0", "round 1", "round 2", "all_gather of 2"}) ASSERT_EQ(kept.count(name), 1u) << name;
  const ProgramEnd rest = calibrate(rest_logs.variable(), {});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_THAT(rest.err, HasSubstr(std::to_string(kept.size()) +
                                  " lists of an interrupted calibration: they are not measured again"));
  EXPECT_FALSE(fs::exists(output + ".partial"));
  const auto again = rest_logs.of_ranks();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_GT(count(whole[0], "ncclAllGather"), 0u);
  EXPECT_EQ(count(again[0], "ncclAllGather"), 0u);
  EXPECT_EQ(count(again[0], "ncclReduceScatter"), kept.count("reduce_scatter of 2") > 0 ? 0 : scatters);
  EXPECT_LT(3 * count(again[0], "cublasSgemm"), count(whole[0], "cublasSgemm")) << "no round of the model";
  const auto profile = load_profile(output);
  fs::remove(output);
  ASSERT_TRUE(profile) << to_text(profile.error());
  const MeasuredCollective& gathers = profile->collectives.front();
  std::vector<std::int64_t> row(gathers.bytes.begin(), gathers.bytes.end());
  row.insert(row.end(), gathers.ns.begin(), gathers.ns.end());
  EXPECT_EQ(row, kept["all_gather of 2"]);
  EXPECT_GT(profile->operators.size(), 10u);
}

json doctor(std::vector<std::string> environment) {
  const ProgramEnd end =
      RunningProgram(FORESHARD_PROGRAM, {"doctor", "--json"}, on_virtual_device(std::move(environment))).wait();
  EXPECT_EQ(end.exit_code, 0) << end.err;
  const json answer = json::parse(end.out);
  json found;
  for (const json& finding : answer["found"]) found[finding["name"].get<std::string>()] = finding;
  return found;
}

TEST(RunCuda, DoctorAsksTheDeviceItself) {
  const json well = doctor({"FAKEGPU_DEVICES=2"});
  EXPECT_EQ(well["GPU 0"]["found"], true);
  EXPECT_THAT(well["GPU 1"]["detail"].get<std::string>(), HasSubstr("H100"));
  EXPECT_EQ(well["CUPTI"]["found"], true);
  EXPECT_EQ(well["NCCL, as loaded"]["found"], true);
  EXPECT_EQ(well["CUDA libraries, as loaded"]["found"], true) << well["CUDA libraries, as loaded"];
  EXPECT_THAT(well["CUDA libraries, as loaded"]["detail"].get<std::string>(), HasSubstr("libcudart.so"));
  const json ill = doctor({"FAKEGPU_DRIVER=12040", "FAKEGPU_CUPTI=denied", "FAKEGPU_NCCL_VERSION=21805"});
  EXPECT_THAT(ill["GPU 0"]["remedy"].get<std::string>(), HasSubstr("update the NVIDIA driver"));
  EXPECT_THAT(ill["CUPTI"]["remedy"].get<std::string>(), HasSubstr("ERR_NVGPUCTRPERM"));
  EXPECT_THAT(ill["NCCL, as loaded"]["remedy"].get<std::string>(), HasSubstr("2.18.5"));
}

}  // namespace
}  // namespace foreshard
