// Files and streams that the program writes: whole or not at all, tried before the work, full disks called so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "tests/cli/program/run_program.h"
#include "tests/cli/program/running_program.h"
#include "tests/support/file_content.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

using foreshard::testing::content_of;

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kJob = std::string(FORESHARD_SOURCE_DIR) + "/examples/tiny-llama-2ranks.toml";

/// `foreshard ARGUMENTS` by a shell that may redirect it or limit its files ("ulimit -f 8;" counts KiB in bash).
ProgramRun in_shell(const std::string& before, const std::string& arguments) {
  const std::string err = testing::temporary_path("shell_err"), out = testing::temporary_path("shell_out");
  const std::string command = before + " " + FORESHARD_PROGRAM + " " + arguments;
  const bool redirects = arguments.find('>') != std::string::npos;
  const std::string whole = "bash -c '" + command + (redirects ? "" : " >" + out) + " 2>" + err + " </dev/null'";
  const int status = std::system(whole.c_str());
  ProgramRun run{WIFEXITED(status) ? WEXITSTATUS(status) : -1, content_of(out), content_of(err)};
  fs::remove(out);
  fs::remove(err);
  return run;
}

class ProgramOutputs : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::temporary_path("program_outputs");
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// An output that stood there before.
  std::string old(const std::string& name) const {
    std::ofstream(folder_ / name) << "old";
    return folder_ / name;
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

struct Verb {
  const char* name;
  const char* arguments;  // OUT stands for the output, JOB for the job, FST for a timeline
  const char* output;
};

class ProgramOutputsOfEveryVerb : public ProgramOutputs, public ::testing::WithParamInterface<Verb> {
 protected:
  std::string filled_in(const std::string& out) {
    std::string text = GetParam().arguments;
    const auto put = [&text](const std::string& word, const std::string& value) {
      for (std::size_t at = text.find(word); at != text.npos; at = text.find(word))
        text.replace(at, word.size(), value);
    };
    put("JOB", kJob);
    put("OUT", out);
    if (text.find("FST") != text.npos) {
      const std::string fst = testing::temporary_path("input.fst");
      EXPECT_EQ(run_program({"simulate", kJob, "--timeline", fst}).exit_code, 0);
      put("FST", fst);
    }
    return text;
  }
};

TEST_P(ProgramOutputsOfEveryVerb, KeepsTheOldFileWhereTheDiskIsFull) {
  const std::string out = old(GetParam().output);
  const ProgramRun run = in_shell("ulimit -f 1;", filled_in(out));
  EXPECT_EQ(run.exit_code, 3) << run.err;
  EXPECT_THAT(run.err, AllOf(HasSubstr(out), HasSubstr("larger than files may be"), HasSubstr("ulimit -f")));
  EXPECT_EQ(content_of(out), "old");
  EXPECT_EQ(files(), 1);
}

TEST_P(ProgramOutputsOfEveryVerb, SaysThatADiskIsFull) {
  const fs::path out = folder_ / GetParam().output;
  fs::create_symlink("/dev/full", out);
  const ProgramRun run = in_shell("", filled_in(out));
  EXPECT_EQ(run.exit_code, 3) << run.err;
  EXPECT_THAT(run.err, HasSubstr("the disk is full"));
}

TEST_P(ProgramOutputsOfEveryVerb, IsRefusedBeforeTheWorkWhereTheFolderIsNotThere) {
  const ProgramRun run = in_shell("", filled_in("/nowhere/" + std::string(GetParam().output)));
  EXPECT_EQ(run.exit_code, 3) << run.err;
  EXPECT_THAT(run.err, AllOf(HasSubstr("/nowhere/"), HasSubstr("No such file or directory")));
  EXPECT_EQ(run.out, "");
}

std::vector<Verb> verbs_with_outputs() {
  std::vector<Verb> verbs = {{"SimulateTimeline", "simulate JOB --timeline OUT", "t.fst"},
                             {"SimulateTrace", "simulate JOB --trace OUT", "t.json"},
                             {"SimulatePackedTrace", "simulate JOB --trace OUT", "t.json.gz"},
                             {"SimulateSnapshot", "simulate JOB --snapshot OUT", "s.pickle"},
                             {"SweepTable", "sweep JOB --auto --csv OUT", "s.csv"},
                             {"SweepPicture", "sweep JOB --over train.micro_batches=1,2,3,4 --picture OUT", "s.svg"},
                             {"TraceConvert", "trace convert FST OUT", "t.csv"},
                             {"TraceFlame", "trace flame FST --out OUT", "f.svg"},
                             {"TraceKernels", "trace kernels FST --csv OUT", "k.csv"},
                             {"TraceQuery", "trace query FST \"select * from spans\" --csv OUT", "q.csv"},
                             {"Schedule", "schedule JOB --out OUT", "s.json"},
                             {"ScheduleModule", "schedule JOB --emit fsdp2 --out OUT", "s.py"}};
#ifdef FORESHARD_WITH_VIEWER
  verbs.push_back({"ViewSvg", "view JOB --render OUT", "v.svg"});
  verbs.push_back({"ViewPng", "view JOB --render OUT", "v.png"});
  verbs.push_back({"Report", "report JOB -o OUT", "r.html"});
#endif
  return verbs;
}

INSTANTIATE_TEST_SUITE_P(Outputs, ProgramOutputsOfEveryVerb, ::testing::ValuesIn(verbs_with_outputs()),
                         [](const auto& verb) { return std::string(verb.param.name); });

TEST_F(ProgramOutputs, FoldersAreTriedBeforeTheWork) {
  const std::string file = old("file");
  for (const std::string& verb :
       {std::string("fit nowhere.json --gpus 8xh100-sxm-80"), std::string("export nowhere.toml --as torchtitan")}) {
    for (const std::string& folder : {file, file + "/inside"}) {
      const ProgramRun run = in_shell("", verb + " --out " + folder);
      EXPECT_EQ(run.exit_code, 3) << run.err;
      EXPECT_THAT(run.err, AllOf(HasSubstr(folder), HasSubstr("Not a directory"))) << "not of the job, read after it";
    }
  }
  EXPECT_EQ(content_of(file), "old");
}

TEST_F(ProgramOutputs, AFullStandardOutputIsAnErrorWithAMessage) {
  for (const std::string verb : {"plan", "simulate", "simulate --json", "inspect --report"}) {
    const std::size_t space = verb.find(' ');
    const ProgramRun run = in_shell(
        "", verb.substr(0, space) + " " + kJob + (space == verb.npos ? "" : verb.substr(space)) + " >/dev/full");
    EXPECT_EQ(run.exit_code, 1) << verb;
    EXPECT_THAT(run.err, AllOf(HasSubstr("standard output"), HasSubstr("the disk is full"))) << verb;
  }
}

TEST_F(ProgramOutputs, AClosedStandardOutputIsAnErrorAndNoFileTakesItsPlace) {
  const std::string out = folder_ / "t.fst";
  const ProgramRun run = in_shell("", "simulate " + kJob + " --timeline " + out + " >&-");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("standard output"));
  EXPECT_EQ(content_of(out).substr(1, 3), "FST");
}

TEST_F(ProgramOutputs, AReaderThatGoesIsAnErrorAndNoSignal) {
  const ProgramRun run = in_shell("set -o pipefail;", "plan " + kJob + " | head -c 1 >/dev/null");
  EXPECT_TRUE(run.exit_code == 0 || run.exit_code == 1) << run.exit_code;  // 141: SIGPIPE
}

TEST_F(ProgramOutputs, AKilledProgramLeavesTheOldFileAndNothingBeside) {
  const std::string out = old("t.json");
  for (int k = 0; k < 12; ++k) {
    RunningProgram program(FORESHARD_PROGRAM, {"simulate", kJob, "--trace", out});
    std::this_thread::sleep_for(std::chrono::milliseconds(4 * k));
    ::kill(program.pid(), SIGKILL);
    program.wait();
    const std::string text = content_of(out);
    EXPECT_TRUE(text == "old" || text.ends_with("}\n") || text.ends_with("]}")) << text.size();
    EXPECT_LE(files(), 2);  // a whole file between its name and its place, which are two system calls
  }
  EXPECT_EQ(run_program({"simulate", kJob, "--trace", out}).exit_code, 0);
  EXPECT_EQ(files(), 1);  // the next writer takes what a killed one left
}

}  // namespace
}  // namespace foreshard
