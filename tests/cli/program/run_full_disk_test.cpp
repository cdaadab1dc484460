// `run` and `calibrate` where there is no room: an error that says so, nothing lost that was there before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

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

class FullDisk : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  ~FullDisk() override { fs::remove_all(folder_); }

  /// bash's `script`, with $F for the program and $D for the test's folder.
  ProgramEnd in_shell(const std::string& script) {
    return RunningProgram("/bin/bash", {"-c", script}, {"F=" + std::string(FORESHARD_PROGRAM), "D=" + folder_.string()})
        .wait();
  }
  /// With a disk of that size at $D, which goes with the script.
  ProgramEnd on_disk_of(const std::string& size, const std::string& script) {
    return RunningProgram("/usr/bin/unshare",
                          {"-rm", "bash", "-c", "mount -t tmpfs -o size=" + size + " none $D || exit 77; " + script},
                          {"F=" + std::string(FORESHARD_PROGRAM), "D=" + folder_.string()})
        .wait();
  }
  static bool no_disks() { return std::system("unshare -rm mount -t tmpfs -o size=4k none /mnt 2>/dev/null") != 0; }

  fs::path folder_ = testing::temporary_path("full_disk");
};

nlohmann::json last_line(const ProgramEnd& end) {
  const std::size_t before = end.out.size() < 2 ? std::string::npos : end.out.rfind('\n', end.out.size() - 2);
  const auto line = nlohmann::json::parse(end.out.substr(before + 1), nullptr, false);
  EXPECT_TRUE(line.is_object() && line.contains("error")) << end.out << end.err;
  return line.is_object() ? line.value("error", nlohmann::json()) : nlohmann::json();
}

TEST_F(FullDisk, ACheckpointBeyondTheLimitOfFilesIsNamedAndLeavesNothing) {
  const ProgramEnd end =
      in_shell("ulimit -f 16; $F run " + kJob +
               " --nproc 2 --json --set train.steps=3 --set 'train.checkpoint={dir=\"'$D'\",every=1}'");
  EXPECT_EQ(end.exit_code, 1) << end.err;
  const auto error = last_line(end);
  EXPECT_THAT(error["message"].get<std::string>(), AllOf(HasSubstr("saving"), HasSubstr("larger than files may be")));
  EXPECT_EQ(error["step"], 1);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(FullDisk, ARunWhoseDiskFillsKeepsTheCheckpointsThatItHas) {
  if (no_disks()) GTEST_SKIP() << "no right to mount a small disk";
  const ProgramEnd end = on_disk_of(
      "3m", "$F run " + kJob +
                " --nproc 2 --json --set train.steps=50 --set 'train.checkpoint={dir=\"'$D'/c\",every=1,keep=50}'; "
                "code=$?; ls -d $D/c/*.partial >/dev/null 2>&1 || echo nothing partial is left >&2; for c in $D/c/*; "
                "do $F checkpoint show $c --verify >&2 || code=9; done; exit $code");
  EXPECT_EQ(end.exit_code, 1) << end.err;
  EXPECT_THAT(last_line(end)["message"].get<std::string>(), AllOf(HasSubstr("saving"), HasSubstr("the disk is full")));
  EXPECT_THAT(end.err, HasSubstr("every block has its checksum")) << "the first checkpoint found room";
  EXPECT_THAT(end.err, HasSubstr("nothing partial is left"));
}

TEST_F(FullDisk, ATimelineThatFindsNoRoomLeavesTheOldOne) {
  std::ofstream(folder_ / "t.fst") << "old";
  const ProgramEnd end =
      in_shell("ulimit -f 6; $F run " + kJob + " --nproc 2 --json --quiet --timeline $D/t.fst --set train.steps=1");
  EXPECT_EQ(end.exit_code, 3) << end.err;
  EXPECT_THAT(last_line(end)["message"].get<std::string>(), HasSubstr("larger than files may be"));
  EXPECT_EQ(content_of(folder_ / "t.fst"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(FullDisk, ACalibrationSaysWhatItCannotKeepAndLosesNothingThatItHas) {
  std::ofstream(folder_ / "p.toml") << "old";
  const std::string calibrate =
      "$F calibrate " + kJob +
      " --ranks 2 --repeats 2 --output $D/p.toml --set cluster.world_size=4 --set cluster.ranks_per_node=4";
  const ProgramEnd end =
      in_shell("ulimit -f 10; " + calibrate);  // KiB: room for a list beside the job, none for the profile
  EXPECT_EQ(end.exit_code, 3) << end.err;
  EXPECT_THAT(end.err, AllOf(HasSubstr("larger than files may be"), HasSubstr("what was measured is kept in")));
  EXPECT_EQ(content_of(folder_ / "p.toml"), "old");
  EXPECT_TRUE(fs::exists(folder_ / "p.toml.partial"));
  const ProgramEnd again = in_shell(calibrate);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("of an interrupted calibration: they are not measured again"));
  EXPECT_FALSE(fs::exists(folder_ / "p.toml.partial"));
}

}  // namespace
}  // namespace foreshard
