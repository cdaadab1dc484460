#include "exec/launch/heartbeat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace foreshard::exec {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr HeartbeatOptions kQuick{.beat = 20ms, .missed = 5, .after_a_word = 3};

/// Ranks of one process, each with its own connection; the store is the test's, as a launcher's is.
class Ranks {
 public:
  explicit Ranks(int size) : store_(Rendezvous::host("127.0.0.1", size).value()) {
    std::vector<std::future<std::unique_ptr<Rendezvous>>> meeting;
    for (int rank = 0; rank < size; ++rank) {
      meeting.push_back(std::async(std::launch::async, [this, rank, size] {
        return Rendezvous::meet({.port = store_->port(), .rank = rank, .size = size, .hosted_elsewhere = true}).value();
      }));
    }
    for (auto& one : meeting) ranks_.push_back(one.get());
  }

  Rendezvous& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }

 private:
  std::unique_ptr<Rendezvous> store_;
  std::vector<std::unique_ptr<Rendezvous>> ranks_;
};

/// A rank's heart and what it was told.
struct Listener {
  std::promise<std::pair<std::string, bool>> told;
  std::future<std::pair<std::string, bool>> word = told.get_future();
  Heartbeat heart;

  explicit Listener(Rendezvous& rank)
      : heart(rank, kQuick, [this](const std::string& text, bool ours) {
          told.set_value({text, ours});
        }) {}
  bool heard_nothing_for(std::chrono::milliseconds time) { return word.wait_for(time) == std::future_status::timeout; }
};

TEST(Heartbeat, RanksThatLiveAndThatLeaveInOrderAreNotLost) {
  Ranks ranks(3);
  Listener first(ranks[0]), second(ranks[1]);
  {
    Listener third(ranks[2]);
    EXPECT_TRUE(third.heard_nothing_for(400ms));
  }
  EXPECT_TRUE(second.heard_nothing_for(400ms)) << "rank 2 has left";
  EXPECT_TRUE(first.heard_nothing_for(1ms));
}

TEST(Heartbeat, ARankThatStandsStillIsNamedToAllByItsNeighbour) {
  Ranks ranks(3);
  Listener first(ranks[0]), second(ranks[1]);  // rank 2 never gives a sign
  const auto [word, ours] = second.word.get();
  EXPECT_THAT(word, StartsWith("lost rank 2: "));
  EXPECT_TRUE(ours);
  const auto [heard, also_ours] = first.word.get();
  EXPECT_EQ(heard, word);
  EXPECT_FALSE(also_ours) << "one of them speaks";
  EXPECT_EQ(ranks[0].reported_failure(0ms), word);
}

TEST(Heartbeat, AWordThatARankLeftReachesTheOthersWhereverTheyStand) {
  Ranks ranks(2);
  Listener first(ranks[0]), second(ranks[1]);
  ranks[1].report_failure("rank 1: an operator threw");
  EXPECT_EQ(first.word.get().first, "rank 1: an operator threw");
}

TEST(Heartbeat, OnceAStoreIsGivenUpNothingIsAskedOfIt) {
  Ranks ranks(2);
  ranks[0].give_up("lost rank 1: gone");
  EXPECT_EQ(ranks[0].reported_failure(10min), "lost rank 1: gone");
  EXPECT_THROW(ranks[0].set("key", {1}), std::runtime_error);
  ranks[0].report_failure("another");
  EXPECT_EQ(ranks[1].reported_failure(0ms), std::nullopt);
}

TEST(Heartbeat, AMeetingEndsWithTheWordOfWhoeverFailed) {
  const auto store = Rendezvous::host("127.0.0.1", 2).value();
  auto meeting = std::async(std::launch::async, [&] {
    return Rendezvous::meet(
        {.port = store->port(), .rank = 0, .size = 2, .hosted_elsewhere = true, .timeout = std::chrono::minutes(10)});
  });
  std::this_thread::sleep_for(50ms);
  store->report_failure("rank 1 stands still");
  const auto met = meeting.get();
  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().got, "rank 1 stands still");
}

}  // namespace
}  // namespace foreshard::exec
