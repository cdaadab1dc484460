// What an interrupted calibration leaves, and what is taken of it.
#include "exec/calibrate/calibration_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "exec/calibrate/calibration.h"
#include "tests/exec/tiny_llama.h"
#include "tests/support/temporary_path.h"

namespace foreshard::exec {
namespace {

using ::testing::ElementsAre;
using ::testing::Pointee;

class Journal : public ::testing::Test {
 protected:
  ~Journal() override { std::filesystem::remove(path); }
  std::string path = testing::temporary_path("calibration.partial");
};

TEST_F(Journal, WhatWasKeptIsThereWhenItIsOpenedAgain) {
  {
    const auto journal = CalibrationJournal::open(path, "a model on a card").value();
    EXPECT_EQ(journal.size(), 0U);
    journal.keep("round 0", {3, -1, 5});
    EXPECT_EQ(journal.find("round 0"), nullptr) << "only what an earlier one has measured";
  }
  const auto journal = CalibrationJournal::open(path, "a model on a card").value();
  EXPECT_THAT(journal.find("round 0"), Pointee(ElementsAre(3, -1, 5)));
  journal.keep("round 1", {7});
  EXPECT_EQ(CalibrationJournal::open(path, "a model on a card")->size(), 2U);
  journal.remove();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(Journal, AnotherModelOrMachineIsMeasuredAnew) {
  CalibrationJournal::open(path, "one card")->keep("round 0", {1});
  EXPECT_EQ(CalibrationJournal::open(path, "another card")->size(), 0U);
  EXPECT_EQ(CalibrationJournal::open(path, "one card")->size(), 0U) << "the file is the other one's now";
}

TEST_F(Journal, ALineThatWasCutOffIsLeftOut) {
  const auto journal = CalibrationJournal::open(path, "k").value();
  journal.keep("round 0", {1, 2});
  journal.keep("round 1", {3, 4});
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4);
  EXPECT_THAT(CalibrationJournal::open(path, "k")->find("round 0"), Pointee(ElementsAre(1, 2)));
  EXPECT_EQ(CalibrationJournal::open(path, "k")->size(), 1U);
}

/// As `ulimit -f`, for this process.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(std::uintmax_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST_F(Journal, AListThatFindsNoRoomIsToldOnceAndLeavesTheOthersWhole) {
  std::vector<std::string> told;
  {
    const auto journal =
        CalibrationJournal::open(path, "k", [&](const Error& error) { told.push_back(to_text(error)); }).value();
    journal.keep("round 0", {1, 2});
    {
      const FileSizeLimit full(std::filesystem::file_size(path) + 20);
      journal.keep("round 1", std::vector<std::int64_t>(100, 7));
      EXPECT_THAT(told, ElementsAre(::testing::HasSubstr("larger than files may be")));
    }
    journal.keep("round 2", {3});
    EXPECT_EQ(told.size(), 1U);
  }
  const auto journal = CalibrationJournal::open(path, "k").value();
  EXPECT_THAT(journal.find("round 0"), Pointee(ElementsAre(1, 2)));
  EXPECT_EQ(journal.size(), 1U);
}

TEST_F(Journal, DamageIsNoReasonToStop) {
  for (const char* text : {"", "\n", "{}\n", "[1]\n", "{\"format\":1,\"key\":{}}\n", "\xff\xfe\n"}) {
    std::ofstream(path, std::ios::trunc) << text;
    EXPECT_EQ(CalibrationJournal::open(path, "k")->size(), 0U) << text;
  }
  EXPECT_FALSE(CalibrationJournal::open("/no/such/folder/x.partial", "k"));
}

TEST_F(Journal, ACalibrationMeasuresWhatIsNotKept) {
  constexpr std::int64_t kKept = 7'000'000'000;  // of no machine
  const Model model = tiny_llama(tiny_llama_job(2));
  const NamedTensors weights = tiny_llama_weights();
  std::vector<at::Tensor> params;
  for (const ParamInfo& info : model.params) params.push_back(weights.at(info.fqn).clone().set_requires_grad(true));
  CalibrationSetup setup{model, tiny_llama_inputs(tiny_llama_data(), 0, 0, 2),
                         [&](ParamId id) { return params[id.index()]; }, tiny_llama_buffers(model)};
  setup.repeats = 3;
  {
    const auto interrupted = CalibrationJournal::open(path, "k").value();
    for (const char* round : {"round 0", "round 1"}) {
      interrupted.keep(round, std::vector<std::int64_t>(2 * model.ops.size() + 4, kKept));
    }
  }
  const auto journal = CalibrationJournal::open(path, "k").value();
  setup.journal = &journal;
  const auto result = calibrate(setup);
  ASSERT_TRUE(result) << to_text(result.error());
  EXPECT_EQ(result->whole_forward_ns, kKept) << "the median of two kept rounds and a measured one";
  const auto all = CalibrationJournal::open(path, "k").value();
  ASSERT_NE(all.find("round 2"), nullptr);
  EXPECT_EQ(all.find("round 2")->size(), 2 * model.ops.size() + 4);
  EXPECT_LT(all.find("round 2")->back(), kKept);
}

}  // namespace
}  // namespace foreshard::exec
