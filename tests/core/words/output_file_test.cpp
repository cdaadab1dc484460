// core/output_file.h: all of a file or nothing, and the words for what goes wrong.
#include "core/output_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/file_content.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

using foreshard::testing::content_of;

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class OutputFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::temporary_path("outputs");
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
    return names;
  }

  fs::path folder_;
};

TEST_F(OutputFiles, TakesTheNameOnlyWhenItIsWhole) {
  const fs::path path = folder_ / "out.json";
  ASSERT_TRUE(write_whole_file(path, "old"));
  auto file = OutputFile::create(path);
  ASSERT_TRUE(file) << to_text(file.error());
  ASSERT_TRUE(file->write("new, and "));
  ASSERT_TRUE(file->write("longer"));
  EXPECT_EQ(content_of(path), "old");
  ASSERT_TRUE(file->commit());
  EXPECT_EQ(content_of(path), "new, and longer");
  EXPECT_THAT(names(), ::testing::ElementsAre("out.json"));
}

TEST_F(OutputFiles, WithoutCommitNothingIsLeft) {
  const fs::path path = folder_ / "out.json";
  ASSERT_TRUE(OutputFile::create(path)->write("lost"));
  EXPECT_THAT(names(), ::testing::IsEmpty());
}

TEST_F(OutputFiles, AKilledWriterLeavesTheOldFileAndNothingElse) {
  const fs::path path = folder_ / "out.json";
  ASSERT_TRUE(write_whole_file(path, "old"));
  const pid_t child = fork();
  if (child == 0) {
    auto file = OutputFile::create(path);
    static_cast<void>(file->write("half"));
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(content_of(path), "old");
  ASSERT_TRUE(write_whole_file(path, "new"));  // what a file system without unnamed files keeps goes now
  EXPECT_THAT(names(), ::testing::ElementsAre("out.json"));
}

TEST_F(OutputFiles, WhatAKilledWriterLeftGoesAndWhatALiveOneWritesStays) {
  const fs::path path = folder_ / "out.json", left = folder_ / ".out.json.partial";
  ASSERT_TRUE(write_whole_file(path, "old"));
  std::ofstream(left) << "half";
  ASSERT_TRUE(write_whole_file(path, "new"));
  EXPECT_FALSE(fs::exists(left));
  std::ofstream(left) << "of another";
  const int other = ::open(left.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(other, LOCK_EX | LOCK_NB), 0);
  ASSERT_TRUE(write_whole_file(path, "ours"));
  EXPECT_EQ(content_of(left), "of another");
  EXPECT_EQ(content_of(path), "ours");
  ::close(other);
}

TEST_F(OutputFiles, TwoWritersOfOneFileLeaveOneOfTheirFiles) {
  const fs::path path = folder_ / "out.json";
  const auto write = [&](char letter) {
    for (int k = 0; k < 50; ++k) ASSERT_TRUE(write_whole_file(path, std::string(5000, letter)));
  };
  std::thread other(write, 'b');
  write('a');
  other.join();
  const std::string text = content_of(path);
  EXPECT_TRUE(text == std::string(5000, 'a') || text == std::string(5000, 'b'));
  EXPECT_THAT(names(), ::testing::ElementsAre("out.json"));
}

TEST_F(OutputFiles, KeepsPermissionsAndFollowsLinks) {
  fs::create_directories(folder_ / "elsewhere");
  const fs::path target = folder_ / "elsewhere" / "real.json", link = folder_ / "link.json";
  std::ofstream(target) << "old";
  fs::permissions(target, fs::perms(0640));
  fs::create_symlink("elsewhere/real.json", link);
  ASSERT_TRUE(write_whole_file(link, "new"));
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(content_of(target), "new");
  EXPECT_EQ(fs::status(target).permissions(), fs::perms(0640));
  fs::create_symlink("to_come.json", folder_ / "dangling");
  ASSERT_TRUE(write_whole_file(folder_ / "dangling", "made"));
  EXPECT_EQ(content_of(folder_ / "to_come.json"), "made");
}

TEST_F(OutputFiles, ANewFileHasThePermissionsOfTheUmask) {
  const mode_t before = ::umask(027);
  ASSERT_TRUE(write_whole_file(folder_ / "out.json", "x"));
  ::umask(before);
  EXPECT_EQ(fs::status(folder_ / "out.json").permissions(), fs::perms(0640));
}

TEST_F(OutputFiles, WhatIsNoFileIsWrittenToDirectly) {
  EXPECT_TRUE(write_whole_file("/dev/null", "gone"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  const auto full = write_whole_file("/dev/full", "no room");
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().message, "the disk is full");
  EXPECT_EQ(full.error().file, "/dev/full");
}

TEST_F(OutputFiles, AFileSizeLimitIsAnErrorThatLeavesTheOldFile) {
  const fs::path path = folder_ / "out.json";
  ASSERT_TRUE(write_whole_file(path, "old"));
  write_errors_as_errors();
  rlimit before{}, tiny{};
  getrlimit(RLIMIT_FSIZE, &before);
  tiny = before;
  tiny.rlim_cur = 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tiny), 0);
  const auto written = write_whole_file(path, std::string(5000, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().got, std::strerror(EFBIG));
  EXPECT_THAT(written.error().hint, HasSubstr("untouched"));
  EXPECT_EQ(content_of(path), "old");
  EXPECT_THAT(names(), ::testing::ElementsAre("out.json"));
}

TEST_F(OutputFiles, FoldersThatAreNotThereAndFoldersInPlaceOfFilesAreErrors) {
  for (const fs::path& path : {folder_ / "nowhere" / "x.fst", folder_, folder_ / "new" / ""}) {
    const auto tried = try_outputs({"", path});
    ASSERT_FALSE(tried) << path;
    EXPECT_EQ(tried.error().file, path);
    EXPECT_FALSE(tried.error().got.empty());
    EXPECT_FALSE(tried.error().expected.empty());
  }
}

TEST_F(OutputFiles, FoldersAreTriedWhereTheyStandAndWhereTheyWillStand) {
  EXPECT_TRUE(try_output_folder(""));
  EXPECT_TRUE(try_output_folder(folder_));
  EXPECT_TRUE(try_output_folder(folder_ / "new" / "newer"));
  EXPECT_THAT(names(), ::testing::IsEmpty());
  const fs::path file = folder_ / "file";
  ASSERT_TRUE(write_whole_file(file, "old"));
  for (const fs::path& path : {file, file / "inside", fs::path("/proc/new")}) {
    const auto tried = try_output_folder(path);
    ASSERT_FALSE(tried) << path;
    EXPECT_EQ(tried.error().file, path);
  }
}

TEST_F(OutputFiles, TryingLeavesEverythingAsItWas) {
  const fs::path path = folder_ / "out.json";
  ASSERT_TRUE(try_outputs({path, "", "/dev/null"}));
  EXPECT_THAT(names(), ::testing::IsEmpty());
  ASSERT_TRUE(write_whole_file(path, "old"));
  ASSERT_TRUE(try_outputs({path}));
  EXPECT_EQ(content_of(path), "old");
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(try_outputs({pipe}));  // and does not wait for a reader
}

}  // namespace
}  // namespace foreshard
