// Inputs that never end, that block, or that are larger than any memory: refused in a second, by name and limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/program/run_program.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

const std::string kJob = std::string(FORESHARD_SOURCE_DIR) + "/examples/tiny-llama-2ranks.toml";

class ProgramInputs : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::temporary_path("program_inputs");
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// `megabytes` of zeros behind `head`, packed a thousandfold.
  std::string bomb(const std::string& name, const std::string& head, int megabytes) const {
    const std::string path = folder_ / name;
    gzFile file = gzopen(path.c_str(), "wb1");
    gzwrite(file, head.data(), static_cast<unsigned>(head.size()));
    const std::string zeros(1 << 20, ' ');
    for (int k = 0; k < megabytes; ++k) gzwrite(file, zeros.data(), static_cast<unsigned>(zeros.size()));
    gzclose(file);
    return path;
  }

  /// With 4 GB of address space and so much processor time, as the shell's ulimit gives them: what else the machine
  /// does counts for neither. The timeout ends what waits for ever.
  static ProgramRun limited(const std::string& arguments, int processor_seconds = 20) {
    const std::string err = testing::temporary_path("limited_err");
    const std::string command = "bash -c 'ulimit -v 4000000; ulimit -t " + std::to_string(processor_seconds) +
                                "; exec timeout 300 " + FORESHARD_PROGRAM + " " + arguments + " >/dev/null 2>" + err +
                                " </dev/null'";
    const int status = std::system(command.c_str());
    std::ifstream file(err);
    ProgramRun run{WIFEXITED(status) ? WEXITSTATUS(status) : -1, "", {std::istreambuf_iterator<char>(file), {}}};
    fs::remove(err);
    return run;
  }

  fs::path folder_;
};

TEST_F(ProgramInputs, PipesAndDevicesAreRefusedAtOnce) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& input : {pipe, std::string("/dev/zero")}) {
    for (const std::string verb : {"simulate", "plan", "inspect", "config show", "trace analyse", "compare", "import",
                                   "sweep merge", "validate"}) {
      const bool two = verb == "compare" || verb == "sweep merge";
      const ProgramRun run = limited(verb + " " + input + (two ? " " + input : ""), 2);
      EXPECT_EQ(run.exit_code, 3) << verb << " " << input << ": " << run.err;
      EXPECT_THAT(run.err, AllOf(HasSubstr(input), AnyOf(HasSubstr("a pipe"), HasSubstr("a device")))) << verb;
    }
  }
}

TEST_F(ProgramInputs, StandardInputIsReadWhereItIsNamed) {
  const std::string out = testing::temporary_path("stdin_out");
  const std::string command = "cat " + kJob + " | (cd " + FORESHARD_SOURCE_DIR + "/examples && " + FORESHARD_PROGRAM +
                              " config show - >" + out + ")";
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::ifstream file(out);
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(file), {}), HasSubstr("world_size"));
  fs::remove(out);
}

TEST_F(ProgramInputs, PackedTrapsEndInAnErrorAndNotInMemory) {
  const std::string fst = std::string(
      "\x89"
      "FST\r\n\x1a\n",
      8);
  for (const std::string& input : {bomb("x.fst.gz", fst, 700), bomb("x.pickle.gz", "\x80\x04", 700)}) {
    const ProgramRun run = limited("trace analyse " + input);
    EXPECT_EQ(run.exit_code, 3) << run.err;
    EXPECT_THAT(run.err, AllOf(HasSubstr(input), HasSubstr("expands as no recording does"), HasSubstr("at most")));
  }
  const ProgramRun json = limited("trace analyse " + bomb("x.json.gz", "{\"traceEvents\": [", 700));
  EXPECT_TRUE(json.exit_code == 3 || json.exit_code == 0) << json.err;
  EXPECT_THAT(json.err, HasSubstr("x.json.gz"));
}

TEST_F(ProgramInputs, AHugeFileWithHolesTakesNoMoreMemoryThanItHas) {
  const std::string fst = folder_ / "x.fst", sweep = folder_ / "x.json";
  ASSERT_EQ(run_program({"simulate", kJob, "--timeline", fst}).exit_code, 0);
  fs::resize_file(fst, 3'000'000'000);
  std::ofstream(sweep) << "{";
  fs::resize_file(sweep, 3'000'000'000);
  EXPECT_EQ(limited("trace analyse " + fst).exit_code, 3);
  const ProgramRun run = limited("sweep merge " + sweep + " " + sweep);
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.err, AllOf(HasSubstr("larger than its reader"), HasSubstr("67108864")));
}

/// A number of one digit takes 16 bytes in a document, and twice that while its array grows.
TEST_F(ProgramInputs, ASweepOfAsManyNumbersAsItsLimitAllowsEndsInAnError) {
  const std::string sweep = folder_ / "numbers.json";
  {
    std::ofstream file(sweep);
    file << "{\"points\": [1";
    std::string ones;
    while (ones.size() < (1 << 20)) ones += ",1";
    for (int k = 0; k < 63; ++k) file << ones;
  }
  const ProgramRun run = limited("sweep merge " + sweep + " " + sweep);
  EXPECT_EQ(run.exit_code, 3) << run.err;
  EXPECT_THAT(run.err, HasSubstr("numbers.json"));
}

TEST_F(ProgramInputs, JsonAnswersAreUtf8WhateverTheInputIsCalled) {
  const std::string odd = "no\xff\xfe\xc3(file.toml";
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"simulate", odd, "--json"},
                                                    {"simulate", kJob, "--set", "model.source=" + odd, "--json"},
                                                    {"simulate", kJob, "--set", odd, "--json"},
                                                    {odd, "--json"},
                                                    {"trace", "analyse", odd, "--json"},
                                                    {"checkpoint", "show", odd, "--json"},
                                                    {"sweep", "merge", odd, odd, "--json"}}) {
    const ProgramRun run = run_program(arguments);
    EXPECT_NE(run.exit_code, 0);
    const auto answer = nlohmann::json::parse(run.out, nullptr, false);  // which takes nothing but UTF-8
    EXPECT_TRUE(answer.is_object()) << arguments[0] << ": " << run.out;
    EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 1) << run.out;
  }
}

TEST_F(ProgramInputs, HelpStatesTheLimits) {
  const ProgramRun run = run_program({"--help"});
  for (const char* words : {"regular files, or - for standard input", "a sweep 64 MiB", "4 GiB unpacked", "200 times"})
    EXPECT_THAT(run.out, HasSubstr(words));
}

}  // namespace
}  // namespace foreshard
