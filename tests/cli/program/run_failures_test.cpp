// `foreshard run` when something goes wrong: every rank ends, non-zero, and says why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "tests/cli/program/running_program.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

const std::string kPartial = ".partial";  // of a checkpoint that is being written
const std::string kJob = std::string(FORESHARD_SOURCE_DIR) + "/examples/tiny-llama-2ranks.toml";

std::vector<std::string> arguments(std::vector<std::string> more) {
  more.insert(more.begin(), {"run", kJob});
  return more;
}

ProgramEnd run(const std::vector<std::string>& more, const std::vector<std::string>& environment = {}) {
  return RunningProgram(FORESHARD_PROGRAM, arguments(more), environment).wait();
}

/// Tells when something new stands in a folder.
class NewEntries {
 public:
  explicit NewEntries(const std::string& folder) : events_(::inotify_init1(IN_CLOEXEC)) {
    EXPECT_GE(::inotify_add_watch(events_, folder.c_str(), IN_CREATE), 0) << folder;
  }
  ~NewEntries() { ::close(events_); }
  NewEntries(const NewEntries&) = delete;
  NewEntries& operator=(const NewEntries&) = delete;

  /// False if nothing of that ending comes within three minutes.
  bool wait_for(const std::string& ending) {
    pollfd ready{events_, POLLIN, 0};
    while (::poll(&ready, 1, 180'000) == 1) {
      alignas(inotify_event) char buffer[4096];
      const ssize_t bytes = ::read(events_, buffer, sizeof buffer);
      for (ssize_t at = 0; at < bytes;) {
        const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
        if (event->len > 0 && std::string(event->name).ends_with(ending)) return true;
        at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      }
    }
    return false;
  }

 private:
  int events_;
};

TEST(RunFailure, AKilledRankEndsTheRunAndIsNamedWithInstructionAndUnit) {
  RunningProgram program(FORESHARD_PROGRAM, arguments({"--nproc", "2", "--set", "train.steps=1000000"}));
  ASSERT_TRUE(program.wait_for_lines(3));
  const auto victim = program.child_with("RANK=1");
  ASSERT_TRUE(victim);
  ::kill(*victim, SIGKILL);
  const ProgramEnd end = program.wait();
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.err, HasSubstr("rank 1 was killed by signal 9"));
  // Between two steps it is the control group that loses the peer, else an instruction.
  EXPECT_THAT(end.err, ContainsRegex("rank 0, step [0-9]+: "));
  EXPECT_THAT(end.err, HasSubstr("lost rank 1"));
}

TEST(RunFailure, WithTorchrunTheOthersNameTheLostRankThemselves) {
  const std::vector<std::string> common = {"WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                                           "MASTER_PORT=" + std::to_string(free_port())};
  const auto start = [&](const std::string& rank) {
    std::vector<std::string> environment = common;
    environment.push_back("RANK=" + rank);
    return std::make_unique<RunningProgram>(FORESHARD_PROGRAM, arguments({"--set", "train.steps=1000000"}),
                                            environment);
  };
  const auto first = start("0"), second = start("1");
  ASSERT_TRUE(first->wait_for_lines(3));
  ::kill(first->pid(), SIGKILL);  // the one that holds the store
  EXPECT_EQ(first->wait().exit_code, -1);
  const ProgramEnd survivor = second->wait();
  EXPECT_EQ(survivor.exit_code, 1);
  EXPECT_THAT(survivor.err, AllOf(HasSubstr("rank 1, step "), HasSubstr("lost rank 0")));
}

TEST(RunFailure, ARankThatStandsStillEndsTheOthersByTheTimeout) {
  RunningProgram program(FORESHARD_PROGRAM,
                         arguments({"--nproc", "2", "--timeout", "2", "--set", "train.steps=1000000"}));
  auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(program.wait_for_lines(3));
  const auto victim = program.child_with("RANK=1");
  ASSERT_TRUE(victim);
  start = std::chrono::steady_clock::now();
  ::kill(*victim, SIGSTOP);
  const ProgramEnd end = program.wait();  // the launcher ends the stopped one, too
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(9));
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.err, ContainsRegex("rank 0, step [0-9]+: .*lost rank 1 .*[Tt]imed out"));
}

TEST(RunFailure, ALossThatIsNoNumberStopsTheRunAtItsStep) {
  const ProgramEnd end =
      run({"--nproc", "2", "--json", "--set", "train.optimizer.lr=1000000", "--set", "train.optimizer.name=sgd",
           "--set", "train.schedule.warmup=0", "--set", "train.clip_grad_norm=0"});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.out, HasSubstr("the loss is not finite"));
  // Whichever rank failed first: its word comes behind the last step, once, and nothing comes behind it.
  const std::size_t last = end.out.rfind("\n{\"error\"");
  ASSERT_NE(last, std::string::npos) << end.out;
  EXPECT_EQ(end.out.find("\"error\""), end.out.rfind("\"error\"")) << end.out;
  const auto error = nlohmann::json::parse(end.out.substr(last))["error"];
  EXPECT_EQ(error["code"], "run_failed");
  EXPECT_THAT(error["message"].get<std::string>(), ContainsRegex("rank [01], step [0-9]+: the loss is not finite"));
  EXPECT_GE(error["instruction"], 0);
}

/// The last line of a failed `run --json`, whose only error it is.
nlohmann::json last_line(const ProgramEnd& end) {
  EXPECT_TRUE(end.out.ends_with("}\n")) << end.out;
  const std::size_t before = end.out.rfind('\n', end.out.size() - 2);
  const auto line = nlohmann::json::parse(end.out.substr(before + 1), nullptr, false);
  EXPECT_TRUE(line.is_object() && line.contains("error")) << end.out.substr(before + 1);
  EXPECT_EQ(end.out.find("\"error\""), end.out.rfind("\"error\"")) << end.out;
  return line.is_object() ? line.value("error", nlohmann::json()) : nlohmann::json();
}

TEST(RunFailure, EveryLossOfARankNamesRankInstructionUnitAndCauseInOneLine) {
  for (const int signal : {SIGKILL, SIGSEGV, SIGABRT}) {
    RunningProgram program(FORESHARD_PROGRAM, arguments({"--nproc", "2", "--json", "--set", "train.steps=1000000"}));
    ASSERT_TRUE(program.wait_for_lines(3));
    const auto victim = program.child_with("RANK=1");
    ASSERT_TRUE(victim);
    ::kill(*victim, signal);
    const ProgramEnd end = program.wait();
    EXPECT_EQ(end.exit_code, 1);
    const auto error = last_line(end);
    EXPECT_EQ(error["rank"], 1);
    EXPECT_EQ(error["seen_by"], 0);
    EXPECT_GE(error["instruction"], 0) << error;
    EXPECT_GT(error["step"], 1);
    EXPECT_TRUE(error["unit"].is_string());
    EXPECT_THAT(error["cause"].get<std::string>(), HasSubstr("rank 1 was killed by signal " + std::to_string(signal)));
    EXPECT_THAT(error["message"].get<std::string>(), AllOf(ContainsRegex("instruction [0-9]+"), HasSubstr("rank 1")));
  }
}

TEST(RunFailure, AStoppedRankIsNamedWithinHalfAMinuteWhateverTheTimeout) {
  RunningProgram program(FORESHARD_PROGRAM, arguments({"--nproc", "2", "--json", "--set", "train.steps=1000000"}));
  ASSERT_TRUE(program.wait_for_lines(3));
  const auto victim = program.child_with("RANK=0");
  ASSERT_TRUE(victim);
  const auto start = std::chrono::steady_clock::now();
  ::kill(*victim, SIGSTOP);
  const ProgramEnd end = program.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_EQ(end.exit_code, 1);
  const auto error = last_line(end);
  EXPECT_EQ(error["rank"], 0);
  EXPECT_GE(error["instruction"], 0) << error;
  EXPECT_THAT(error["cause"].get<std::string>(), HasSubstr("rank 0 stands still"));
}

/// Those that lose patience first wait for each other, in a ring: their words blame a neighbour that lives.
TEST(RunFailure, AStoppedRankIsNamedByAllThatWaitForEachOther) {
  RunningProgram program(FORESHARD_PROGRAM,
                         arguments({"--nproc", "4", "--json", "--timeout", "3", "--set", "train.steps=1000000", "--set",
                                    "cluster.world_size=4", "--set", "cluster.ranks_per_node=4", "--set",
                                    "fsdp.strategy=HYBRID_SHARD", "--set", "cluster.shard_group=2"}));
  ASSERT_TRUE(program.wait_for_lines(3));
  const auto victim = program.child_with("RANK=2");
  ASSERT_TRUE(victim);
  ::kill(*victim, SIGSTOP);
  const ProgramEnd end = program.wait();
  EXPECT_EQ(end.exit_code, 1);
  const auto error = last_line(end);
  EXPECT_EQ(error["rank"], 2) << error;
  EXPECT_NE(error["seen_by"], 2) << error;
  EXPECT_THAT(error["cause"].get<std::string>(), HasSubstr("rank 2 stands still: stopped by signal 19"));
}

TEST(RunFailure, ARankThatIsStoppedWhileTheOthersMeetIsNotWaitedFor) {
  std::vector<std::unique_ptr<RunningProgram>> programs;
  for (const int milliseconds : {0, 200, 500, 800}) {  // after the ranks are there
    auto& program = programs.emplace_back(std::make_unique<RunningProgram>(
        FORESHARD_PROGRAM, arguments({"--nproc", "2", "--json", "--set", "train.steps=1000000"})));
    std::optional<pid_t> victim;
    for (int attempt = 0; attempt < 1000 && !victim; ++attempt) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      victim = program->child_with("RANK=1");
    }
    ASSERT_TRUE(victim);
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    ::kill(*victim, SIGSTOP);
  }
  const auto start = std::chrono::steady_clock::now();
  for (const auto& program : programs) {
    const ProgramEnd end = program->wait();
    EXPECT_EQ(end.exit_code, 1) << end.err;
    EXPECT_THAT(last_line(end)["message"].get<std::string>(), HasSubstr("rank 1 stands still"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30))
      << "a stopped rank is named within half a minute";
}

TEST(RunFailure, WithoutALauncherOfOursAStoppedRankIsNamedByItsNeighbour) {
  struct Pair {
    std::unique_ptr<RunningProgram> stopped, survivor;
  };
  std::vector<Pair> pairs;
  for (const int victim : {0, 1}) {  // rank 0 holds the store
    const std::string port = "MASTER_PORT=" + std::to_string(free_port());
    const auto start = [&](int rank) {
      return std::make_unique<RunningProgram>(
          FORESHARD_PROGRAM, arguments({"--json", "--set", "train.steps=1000000"}),
          std::vector<std::string>{"SLURM_PROCID=" + std::to_string(rank), "SLURM_NTASKS=2", "SLURM_LOCALID=0",
                                   "SLURM_STEP_TASKS_PER_NODE=2", "MASTER_ADDR=127.0.0.1", port});
    };
    std::array<std::unique_ptr<RunningProgram>, 2> both{start(0), start(1)};
    ASSERT_TRUE(both[0]->wait_for_lines(3));
    ::kill(both[static_cast<std::size_t>(victim)]->pid(), SIGSTOP);
    pairs.push_back(
        {std::move(both[static_cast<std::size_t>(victim)]), std::move(both[static_cast<std::size_t>(1 - victim)])});
  }
  const auto start = std::chrono::steady_clock::now();
  for (int victim = 0; victim < 2; ++victim) {
    const ProgramEnd end = pairs[static_cast<std::size_t>(victim)].survivor->wait();
    EXPECT_EQ(end.exit_code, 1) << end.err;
    const auto error = last_line(end);
    EXPECT_EQ(error["rank"], victim) << error;
    EXPECT_EQ(error["seen_by"], 1 - victim);
    EXPECT_GE(error["instruction"], 0) << error;
    EXPECT_TRUE(error["unit"].is_string());
    EXPECT_THAT(error["cause"].get<std::string>(), HasSubstr("lost rank " + std::to_string(victim)));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(RunFailure, OutputsAreTriedBeforeTraining) {
  for (const std::string flag : {"--timeline", "--trace"}) {
    const ProgramEnd end = run({"--nproc", "2", flag, "/nowhere/x.fst"});
    EXPECT_EQ(end.exit_code, 3);
    EXPECT_EQ(end.out, "");
    EXPECT_THAT(end.err, HasSubstr("/nowhere/x.fst"));
  }
  const ProgramEnd end = run({"--nproc", "2", "--set", "train.checkpoint.dir=/proc/nowhere"});
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_EQ(end.out, "");
  EXPECT_THAT(end.err, HasSubstr("/proc/nowhere"));
}

TEST(RunFailure, APortThatIsTakenIsNamed) {
  const int socket = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(socket, 1), 0);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  const std::string port = std::to_string(ntohs(address.sin6_port));
  const ProgramEnd end =
      run({"--timeout", "5"}, {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port});
  ::close(socket);
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.err, AllOf(HasSubstr("127.0.0.1:" + port), HasSubstr("is the port free")));
}

TEST(RunFailure, ARankThatDoesNotComeIsNamed) {
  const ProgramEnd end = run({"--timeout", "1"}, {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                                                  "MASTER_PORT=" + std::to_string(free_port())});
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.err, HasSubstr("rank 1 did not come within 1000 ms"));
}

TEST(RunFailure, WeightsThatLackParametersAreRefusedByName) {
  namespace fs = std::filesystem;
  const fs::path folder = testing::temporary_path("half_a_model");
  fs::create_directories(folder);
  fs::copy_file(std::string(FORESHARD_SOURCE_DIR) + "/examples/tiny-llama/config.json", folder / "config.json");
  std::ofstream weights(folder / "model.safetensors", std::ios::binary);
  const std::string header = R"({"model.norm.weight":{"dtype":"F32","shape":[64],"data_offsets":[0,256]}})";
  const std::uint64_t bytes = header.size();
  weights.write(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  weights << header << std::string(256, '\0');
  weights.close();
  const ProgramEnd end = run({"--nproc", "2", "--set", "model.source=" + folder.string()});
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.err, HasSubstr("model.embed_tokens.weight"));
  fs::remove_all(folder);
}

/// A model whose matrices FSDP2 gathers in 8 bits: its layers would find bytes where they multiply.
TEST(RunFailure, WhatIsGatheredInAnotherTypeIsRefusedByName) {
  std::ifstream file(std::string(FORESHARD_TEST_DATA) + "/captured/nanogpt.json");
  nlohmann::json model = nlohmann::json::parse(file);
  const auto param = std::find_if(model["params"].begin(), model["params"].end(),
                                  [](const nlohmann::json& one) { return one["shape"].size() == 2; });
  ASSERT_NE(param, model["params"].end());
  (*param)["gathered"] = "float8_e4m3fn";
  const std::string path = testing::temporary_path("gathered.json");
  std::ofstream(path) << model;
  const ProgramEnd end =
      run({"--nproc", "2", "--set", "model.source=" + path, "--set", "fsdp.wrap.classes=[\"GptBlock\"]", "--set",
           "fsdp.mixed_precision.param=bfloat16", "--set", "model.batch=8", "--set", "model.seq=512"});
  EXPECT_EQ(end.exit_code, 3) << end.err;
  EXPECT_THAT(end.err, AllOf(HasSubstr((*param)["fqn"].get<std::string>()), HasSubstr("planned and simulated only")));
  std::filesystem::remove(path);
}

TEST(RunFailure, AMissingDataFileIsTheSameErrorOnAllRanksAndIsToldOnce) {
  const ProgramEnd end =
      run({"--nproc", "2", "--set", "train.data.kind=tokens", "--set", "train.data.file=/nowhere.u16"});
  EXPECT_EQ(end.exit_code, 3);
  const std::size_t first = end.err.find("/nowhere.u16");
  ASSERT_NE(first, std::string::npos) << end.err;
  EXPECT_EQ(end.err.find("error:", first), std::string::npos) << end.err;
}

TEST(RunFailure, ASignalLeavesACheckpointThatTheNextRunGoesOnFrom) {
  const std::string dir = testing::temporary_path("stopped");
  const std::vector<std::string> more = {"--nproc", "2",
                                         "--set",   "train.steps=1000000",
                                         "--set",   "train.checkpoint.dir=" + dir,
                                         "--set",   "train.schedule.name=constant"};
  {
    RunningProgram program(FORESHARD_PROGRAM, arguments(more));
    ASSERT_TRUE(program.wait_for_lines(3));
    ::kill(program.pid(), SIGTERM);
    const ProgramEnd end = program.wait();
    EXPECT_EQ(end.exit_code, 5) << end.err;
    EXPECT_THAT(end.err, AllOf(HasSubstr("checkpoint: " + dir), HasSubstr("stopped by a signal after "),
                               HasSubstr("saved in " + dir), HasSubstr("at the latest after 300 s")));
  }
  std::vector<std::string> resumed = more;
  resumed.push_back("--resume");
  RunningProgram program(FORESHARD_PROGRAM, arguments(resumed));
  ASSERT_TRUE(program.wait_for_lines(1));
  ::kill(program.pid(), SIGINT);
  const ProgramEnd end = program.wait();
  EXPECT_EQ(end.exit_code, 5) << end.err;
  EXPECT_THAT(end.err, HasSubstr("resumed from " + dir));
  std::filesystem::remove_all(dir);
}

TEST(RunFailure, ASignalToTheGroupSavesHoweverOftenItArrives) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    const std::string dir = testing::temporary_path("stopped_group");
    RunningProgram program(FORESHARD_PROGRAM, arguments({"--nproc", "2", "--set", "train.steps=1000000", "--set",
                                                         "train.checkpoint.dir=" + dir}));
    ASSERT_TRUE(program.wait_for_lines(2));
    const auto first = program.child_with("RANK=0"), second = program.child_with("RANK=1");
    ASSERT_TRUE(first && second);
    for (int times = 0; times < 3; ++times) {
      for (const pid_t pid : {*first, *second, program.pid()}) ::kill(pid, signal);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const ProgramEnd end = program.wait();
    EXPECT_EQ(end.exit_code, 5) << end.err;
    EXPECT_THAT(end.err, HasSubstr("saved in " + dir + "/step-"));
    std::filesystem::remove_all(dir);
  }
}

TEST(RunFailure, ASignalBeforeTheFirstStepSaysSo) {
  for (const int milliseconds : {1, 30, 120, 250, 500, 900}) {
    RunningProgram program(FORESHARD_PROGRAM, arguments({"--nproc", "2", "--set", "train.steps=1000000"}));
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    ::kill(program.pid(), SIGINT);
    const ProgramEnd end = program.wait();
    if (end.exit_code == -1) continue;  // it had not begun to listen: the system's own end
    EXPECT_EQ(end.exit_code, 5) << end.err;
    EXPECT_THAT(end.err, HasSubstr("stopped by ")) << milliseconds;
    if (end.out.empty()) {
      EXPECT_THAT(end.err, HasSubstr("before the first step"));
    }
  }
}

TEST(RunFailure, ASecondSignalAfterTheGraceTimeAndTheDeadlineEndARunThatCannotSave) {
  // A rank that is stopped for good keeps the step from its end.
  const auto stuck = [](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--nproc", "2", "--set", "train.steps=1000000"};
    all.insert(all.end(), more.begin(), more.end());
    auto program = std::make_unique<RunningProgram>(FORESHARD_PROGRAM, arguments(all));
    EXPECT_TRUE(program->wait_for_lines(2));
    if (const auto victim = program->child_with("RANK=1")) ::kill(*victim, SIGSTOP);
    ::kill(program->pid(), SIGTERM);
    return program;
  };
  const ProgramEnd end = stuck({"--stop-within", "2"})->wait();
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.err, HasSubstr("was not finished and saved within 2 s of SIGTERM"));
  const auto program = stuck({});
  std::this_thread::sleep_for(std::chrono::milliseconds(5500));
  ::kill(program->pid(), SIGTERM);
  const ProgramEnd second = program->wait();
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, HasSubstr("a second signal (SIGTERM) ended the run at once"));
}

TEST(RunFailure, ASaveThatNeverEndedIsPassedOverByAFreshStartAndByResume) {
  namespace fs = std::filesystem;
  for (const bool resumes : {false, true}) {
    const std::string dir = testing::temporary_path("partial_only");
    fs::create_directories(dir + "/step-0000000007.partial");
    std::vector<std::string> more = {"--nproc", "2", "--set", "train.steps=1", "--set", "train.checkpoint.dir=" + dir};
    if (resumes) more.push_back("--resume");
    const ProgramEnd end = run(more);
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_THAT(end.err, HasSubstr("passed over " + dir + "/step-0000000007.partial"));
    EXPECT_TRUE(fs::exists(dir + "/step-0000000001/checkpoint.json"));
    EXPECT_FALSE(fs::exists(dir + "/step-0000000007.partial"));
    fs::remove_all(dir);
  }
}

TEST(RunFailure, ARankKilledInTheMiddleOfACheckpointLeavesTheLastWholeOne) {
  namespace fs = std::filesystem;
  const std::string dir = testing::temporary_path("killed_in_save");
  fs::create_directories(dir);
  const auto start = [&] {
    return std::make_unique<RunningProgram>(
        FORESHARD_PROGRAM,
        arguments({"--nproc", "2", "--resume", "--set", "train.steps=1000000", "--set", "train.schedule.name=constant",
                   "--set", "train.checkpoint={dir=\"" + dir + "\", every=1, keep=3}"}));
  };
  const auto is_partial = [](const fs::directory_entry& entry) { return entry.path().extension() == kPartial; };
  // Once the one and once the other rank; a writer that was faster than the signal is met again.
  for (const std::string victim : {"RANK=0", "RANK=1"}) {
    bool met = false;
    for (int attempt = 0; attempt < 60 && !met; ++attempt) {
      const auto program = start();
      ASSERT_TRUE(program->wait_for_lines(2)) << program->wait().err;
      const auto pid = program->child_with(victim);
      ASSERT_TRUE(pid);
      ASSERT_TRUE(NewEntries(dir).wait_for(kPartial));
      ::kill(*pid, SIGKILL);
      EXPECT_EQ(program->wait().exit_code, 1);
      met = std::any_of(fs::directory_iterator(dir), fs::directory_iterator(), is_partial);
    }
    EXPECT_TRUE(met) << "no attempt has met the writer at work";
    const auto program = start();
    ASSERT_TRUE(program->wait_for_lines(1)) << program->wait().err;
    ::kill(program->pid(), SIGTERM);
    const ProgramEnd end = program->wait();
    EXPECT_EQ(end.exit_code, 5) << end.err;
    EXPECT_THAT(end.err, HasSubstr("resumed from " + dir + "/step-"));
  }
  fs::remove_all(dir);
}

}  // namespace
}  // namespace foreshard
