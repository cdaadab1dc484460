#include "exec/launch/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "exec/launch/rendezvous.h"

namespace foreshard::exec {
namespace {

using ::testing::HasSubstr;

Environment of(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

TEST(Launch, WithoutALauncherThereIsNoPlace) {
  EXPECT_EQ(place_in_environment(of({{"PATH", "/bin"}})).value(), std::nullopt);
}

TEST(Launch, TorchrunSaysEverything) {
  const auto place = place_in_environment(of({{"RANK", "5"},
                                              {"WORLD_SIZE", "8"},
                                              {"LOCAL_RANK", "1"},
                                              {"LOCAL_WORLD_SIZE", "4"},
                                              {"MASTER_ADDR", "node7"},
                                              {"MASTER_PORT", "4711"},
                                              {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                              {"TORCHELASTIC_RESTART_COUNT", "2"}}));
  EXPECT_EQ(place.value(), (RankPlace{5, 8, 1, 4, "torchrun", "node7", 4711, true, "attempt_2/"}));
}

TEST(Launch, OurOwnLauncherAndItsRanksLeaveTheirWordsUnderOneKey) {
  const auto place = place_in_environment(of({{"RANK", "1"},
                                              {"WORLD_SIZE", "2"},
                                              {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                              {"TORCHELASTIC_RESTART_COUNT", "0"},
                                              {"FORESHARD_LAUNCHER", "77"}}));
  EXPECT_EQ(place.value()->launcher, "foreshard");
  EXPECT_TRUE(place.value()->store_hosted_elsewhere);
  EXPECT_EQ(place.value()->store_prefix, "");
}

TEST(Launch, TorchrunsVariablesStandBeforeSlurms) {
  const auto place =
      place_in_environment(of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}}));
  EXPECT_EQ(place.value()->launcher, "torchrun");
  EXPECT_EQ(place.value()->world_size, 2);
  EXPECT_FALSE(place.value()->store_hosted_elsewhere) << "rank 0 opens the port itself";
}

TEST(Launch, SlurmGivesTheFirstMachineAndAPortOfTheJobsOwn) {
  const auto place = place_in_environment(of({{"SLURM_PROCID", "3"},
                                              {"SLURM_NTASKS", "6"},
                                              {"SLURM_LOCALID", "0"},
                                              {"SLURM_STEP_TASKS_PER_NODE", "3(x2)"},
                                              {"SLURM_STEP_NODELIST", "gpu[017-018,030]"},
                                              {"SLURM_JOB_ID", "123456"}}));
  EXPECT_EQ(place.value(), (RankPlace{3, 6, 0, 3, "slurm", "gpu017", 20000 + 123456 % 20000}));
}

TEST(Launch, AListOfPlainMachinesBeginsWithTheFirst) {
  const auto place = place_in_environment(of({{"SLURM_PROCID", "0"},
                                              {"SLURM_NTASKS", "2"},
                                              {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                              {"SLURM_STEP_NODELIST", "alpha,beta[1-2]"}}));
  EXPECT_EQ(place.value()->master_address, "alpha");
}

TEST(Launch, MpiOnOneMachineNeedsNoAddress) {
  const auto open_mpi = place_in_environment(of({{"OMPI_COMM_WORLD_RANK", "1"},
                                                 {"OMPI_COMM_WORLD_SIZE", "2"},
                                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}));
  EXPECT_EQ(open_mpi.value(), (RankPlace{1, 2, 1, 2, "mpi", "127.0.0.1", 29500}));
  const auto pmi = place_in_environment(of({{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}, {"MASTER_PORT", "1234"}}));
  EXPECT_EQ(pmi.value(), (RankPlace{0, 3, 0, 3, "mpi", "127.0.0.1", 1234}));
}

TEST(Launch, MpiOnSeveralMachinesAsksForTheAddress) {
  const auto place = place_in_environment(
      of({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}));
  ASSERT_FALSE(place);
  EXPECT_EQ(place.error().place, "MASTER_ADDR");
}

TEST(Launch, WrongVariablesAreNamed) {
  const auto error_of = [](std::map<std::string, std::string> variables) {
    const auto place = place_in_environment(of(std::move(variables)));
    return place ? std::string("none") : to_text(place.error());
  };
  EXPECT_THAT(error_of({{"RANK", "1"}}), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(error_of({{"RANK", "two"}, {"WORLD_SIZE", "2"}}), HasSubstr("got two"));
  EXPECT_THAT(error_of({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK"));
  EXPECT_THAT(error_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), HasSubstr("outside the world"));
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "70000"}}), HasSubstr("no such port"));
}

TEST(Launch, AnotherNumberOfProcessesThanPlannedIsRefusedWithTheWayOut) {
  Job job;
  job.cluster.world_size = 4;
  EXPECT_TRUE(check_world(job, {.rank = 0, .world_size = 4}));
  const auto alone = check_world(job, {});
  ASSERT_FALSE(alone);
  EXPECT_THAT(alone.error().hint, HasSubstr("--nproc 4"));
  const auto two = check_world(job, {.rank = 0, .world_size = 2, .launcher = "torchrun"});
  ASSERT_FALSE(two);
  EXPECT_THAT(to_text(two.error()), HasSubstr("torchrun"));
  EXPECT_THAT(two.error().hint, HasSubstr("cluster.world_size=2"));
}

TEST(Launch, RanksOfOneMachineTakeOneThreadEachUnlessTold) {
  const RankPlace shared{.local_world_size = 2};
  EXPECT_EQ(intra_op_threads(shared, of({})), 1);
  EXPECT_EQ(intra_op_threads(shared, of({{"OMP_NUM_THREADS", "3"}})), 3);
  EXPECT_EQ(intra_op_threads({}, of({})), 0) << "alone: LibTorch chooses";
}

LocalOutcome run_shell(const std::string& script, int ranks, int grace_seconds = 15) {
  return run_local_ranks({{"/bin/sh", "-c", script}, ranks, grace_seconds}).value();
}

/// Two ranks that have met where a launcher holds the store.
struct TwoRanks {
  TwoRanks() {
    const auto meet = [&](int rank) {
      return Rendezvous::meet({.port = host->port(), .rank = rank, .size = 2, .hosted_elsewhere = true}).value();
    };
    auto second = std::async(std::launch::async, [&] { return meet(1); });
    first = meet(0);
    other = second.get();
  }
  std::unique_ptr<Rendezvous> host = Rendezvous::host("127.0.0.1", 2).value(), first, other;
};

TEST(Rendezvous, WhatARankThatFailedWouldBringIsNotWaitedFor) {
  const TwoRanks ranks;
  constexpr auto kLong = std::chrono::minutes(10);  // of a test that hangs
  ranks.other->set("early", {1});
  EXPECT_EQ(ranks.first->expect("early", kLong), Rendezvous::Content{1});
  EXPECT_THROW(ranks.first->expect("never", std::chrono::milliseconds(20)), std::runtime_error);
  auto waiting = std::async(std::launch::async, [&]() -> std::string {
    try {
      ranks.first->expect("late", kLong);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "it came";
  });
  ranks.other->report_failure("rank 1: there is no card");
  EXPECT_EQ(waiting.get(), "rank 1: there is no card");
  ranks.other->set("late", {2});
  EXPECT_EQ(ranks.other->expect("late", kLong), Rendezvous::Content{2});  // by now it has arrived
  EXPECT_EQ(ranks.first->expect("late", kLong), Rendezvous::Content{2}) << "what is there is there";
}

/// Its own word needs a meeting that it may not have come to; the launcher sees it go.
TEST(Rendezvous, NobodyWaitsForARankThatASignalHasEnded) {
  const TwoRanks ranks;
  ranks.other->set("there", {1});
  ranks.host->note_ended();
  try {
    ranks.first->expect("never", std::chrono::seconds(2));
    ADD_FAILURE() << "it came";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("a signal ended a rank"));
  }
  EXPECT_EQ(ranks.first->expect("there", std::chrono::seconds(2)), Rendezvous::Content{1});
}

/// Who comes later ends as the signal ended the other, not as one that was called wrongly.
TEST(Rendezvous, AMeetingThatASignalHasEndedSaysSo) {
  const auto host = Rendezvous::host("127.0.0.1", 2).value();
  host->note_ended();
  const auto met = Rendezvous::meet({"127.0.0.1", host->port(), 1, 2, true, "", std::chrono::seconds(20)});
  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().got, Rendezvous::kEndedBySignal);
}

TEST(LocalRanks, EachRankIsToldItsPlaceAndSuccessIsThatOfAll) {
  const LocalOutcome outcome = run_shell(
      R"(test "$WORLD_SIZE" = 3 && test "$LOCAL_RANK" = "$RANK" && test "$RANK" -lt 3 && test "$MASTER_PORT" -gt 0)",
      3);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.first_word, "");
}

TEST(LocalRanks, TheExitCodeIsThatOfTheRankThatFailedFirst) {
  const LocalOutcome outcome = run_shell(R"(test "$RANK" = 1 && exit 3; sleep 1; exit 1)", 2);
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.first_word, "rank 1 ended with exit code 3");
}

TEST(LocalRanks, AKilledRankIsNamedAndTheOthersDoNotStay) {
  const auto start = std::chrono::steady_clock::now();
  const LocalOutcome outcome = run_shell(R"(test "$RANK" = 0 && kill -9 $$; exec sleep 100)", 2, 1);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.first_word, HasSubstr("rank 0 was killed by signal 9"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(LocalRanks, AnInterruptionIsHandedOnToAllRanks) {
  // The first rank asks the launcher to stop; both go their way out when they hear of it.
  const LocalOutcome outcome = run_shell(
      R"(trap 'exit 5' TERM; if test "$RANK" = 0; then sleep 0.5; kill -TERM $PPID; fi; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.5; done; exit 9)",
      2);
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_EQ(outcome.first_word, "");
}

TEST(LocalRanks, AProgramThatIsNotThereIsAnError) {
  const auto outcome = run_local_ranks({{"/nowhere/at/all"}, 2});
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().file, "/nowhere/at/all");
}

}  // namespace
}  // namespace foreshard::exec
