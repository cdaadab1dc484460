// Gloo between processes: each rank is a child of the test, as it is a process of its own in a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "exec/communicators/gloo_communicator.h"
#include "exec/launch/rendezvous.h"

namespace foreshard::exec {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

struct Ended {
  int status = 0;    // as waitpid gives it
  std::string text;  // what the body returned, or the error it ended with
};

std::string read_all(int fd) {
  std::string text;
  char buffer[512];
  for (ssize_t got = 0; (got = ::read(fd, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  return text;
}

/// One child a rank; `body`'s text comes back through a pipe. The children are there before the store's threads are.
class Processes {
 public:
  using Body = std::function<std::string(Rendezvous&)>;

  Processes(int size, Body body) : body_(std::move(body)) {
    for (int rank = 0; rank < size; ++rank) start(rank, size);
    store_ = Rendezvous::host("127.0.0.1", size).value();
    const int port = store_->port();
    for (const Child& child : children_) EXPECT_EQ(::write(child.socket, &port, sizeof port), ssize_t{sizeof port});
  }

  Rendezvous& store() { return *store_; }
  pid_t pid(int rank) const { return children_[static_cast<std::size_t>(rank)].pid; }

  std::vector<Ended> wait() {
    std::vector<Ended> ended;
    for (const Child& child : children_) {
      Ended end;
      end.text = read_all(child.socket);
      ::waitpid(child.pid, &end.status, 0);
      ::close(child.socket);
      ended.push_back(end);
    }
    return ended;
  }

 private:
  struct Child {
    pid_t pid = 0;
    int socket = -1;
  };

  void start(int rank, int size) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(ends[0]);
      for (const Child& other : children_) ::close(other.socket);
      ::_exit(run(rank, size, ends[1]));
    }
    ::close(ends[1]);
    children_.push_back({pid, ends[0]});
  }

  int run(int rank, int size, int socket) {
    int port = 0;
    if (::read(socket, &port, sizeof port) != ssize_t{sizeof port}) return 2;
    const auto tell = [&](const std::string& text) { return ::write(socket, text.data(), text.size()) < 0 ? 2 : 0; };
    try {
      auto meeting =
          Rendezvous::meet({.port = port, .rank = rank, .size = size, .hosted_elsewhere = true, .timeout = 30s});
      if (!meeting) throw std::runtime_error(to_text(meeting.error()));
      return tell(body_(**meeting));
    } catch (const std::exception& error) {
      tell(error.what());
      return 1;
    }
  }

  Body body_;
  std::vector<Child> children_;
  std::unique_ptr<Rendezvous> store_;
};

std::shared_ptr<Communicator> group_of(Rendezvous& meeting, const GlooGroup& group) {
  auto made = make_gloo_communicator(meeting, group);
  if (!made) throw std::runtime_error(to_text(made.error()));
  return *made;
}

TEST(GlooProcesses, GatherAndReduceAcrossProcesses) {
  Processes ranks(3, [](Rendezvous& meeting) {
    const auto world = group_of(meeting, {"world", {}, 20s});
    std::vector<float> all(3, -1);
    const float own = static_cast<float>(10 * world->rank());
    world->all_gather(all.data(), &own, 1, DType::Float32);
    std::vector<float> sum(1);
    world->reduce_scatter(sum.data(), all.data(), 1, DType::Float32, ReduceOp::Sum);
    return std::to_string(static_cast<int>(all[1] + sum[0]));
  });
  const auto ended = ranks.wait();
  EXPECT_EQ(ended[0].text, "10");  // 10 + 3 x 0
  EXPECT_EQ(ended[1].text, "40");  // 10 + 3 x 10
  EXPECT_EQ(ended[2].text, "70");  // 10 + 3 x 20
}

//   shard groups 0 1 | 2 3,  replicate groups 0 2 | 1 3
TEST(GlooProcesses, ShardAndReplicateGroupsOfHybridShardingRunSideBySide) {
  Processes ranks(4, [](Rendezvous& meeting) {
    const int rank = meeting.rank();
    const int first = rank / 2 * 2;
    const auto shard = group_of(meeting, {"shard of " + std::to_string(first), {first, first + 1}, 20s});
    const auto replicate =
        group_of(meeting, {"replicate of " + std::to_string(rank % 2), {rank % 2, rank % 2 + 2}, 20s});
    std::vector<std::int64_t> gradient = {rank, 100 * rank};
    std::int64_t own = 0;
    shard->reduce_scatter(&own, gradient.data(), 1, DType::Int64, ReduceOp::Sum);
    replicate->all_reduce(&own, 1, DType::Int64, ReduceOp::Sum);
    return std::to_string(shard->size()) + std::to_string(replicate->rank()) + ":" + std::to_string(own);
  });
  const auto ended = ranks.wait();
  EXPECT_EQ(ended[0].text, "20:6");    // 0 + 1 + 2 + 3
  EXPECT_EQ(ended[1].text, "20:600");  // of the second elements
  EXPECT_EQ(ended[2].text, "21:6");
  EXPECT_EQ(ended[3].text, "21:600");
}

TEST(GlooProcesses, AGroupOfOneRankDoesNotWait) {
  Processes ranks(2, [](Rendezvous& meeting) {
    const auto alone = group_of(meeting, {"alone " + std::to_string(meeting.rank()), {meeting.rank()}, 20s});
    double value = meeting.rank() + 1;
    alone->all_reduce(&value, 1, DType::Float64, ReduceOp::Avg);
    alone->barrier();
    return std::to_string(static_cast<int>(value));
  });
  const auto ended = ranks.wait();
  EXPECT_EQ(ended[0].text, "1");
  EXPECT_EQ(ended[1].text, "2");
}

TEST(GlooProcesses, AKilledRankIsNamedByAllOthersWellBeforeTheTimeout) {
  const auto start = std::chrono::steady_clock::now();
  Processes ranks(3, [](Rendezvous& meeting) -> std::string {
    const auto world = group_of(meeting, {"world", {}, 300s});
    world->barrier();
    if (meeting.rank() == 1) ::raise(SIGKILL);
    std::vector<float> all(300);
    world->all_gather(all.data(), all.data() + 100 * meeting.rank(), 100, DType::Float32);
    return "went on";
  });
  const auto ended = ranks.wait();
  EXPECT_TRUE(WIFSIGNALED(ended[1].status));
  for (const int survivor : {0, 2}) {
    EXPECT_EQ(WEXITSTATUS(ended[static_cast<std::size_t>(survivor)].status), 1);
    EXPECT_THAT(ended[static_cast<std::size_t>(survivor)].text, HasSubstr("all_gather on world: lost rank 1"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, 60s);
}

TEST(GlooProcesses, TheWordOfARankThatFailsReachesTheOthers) {
  Processes ranks(2, [](Rendezvous& meeting) -> std::string {
    const auto world = group_of(meeting, {"world", {}, 60s});
    if (meeting.rank() == 1) {
      world->abort("no memory");
      meeting.report_failure("rank 1: all memory is gone in unit layers.1");
      throw std::runtime_error("mine");
    }
    world->barrier();
    return "went on";
  });
  const auto ended = ranks.wait();
  EXPECT_THAT(ended[0].text, HasSubstr("rank 1: all memory is gone in unit layers.1"));
  EXPECT_EQ(ended[1].text, "mine");
}

TEST(GlooProcesses, ARankThatIsStuckEndsTheOthersByTimeout) {
  Processes ranks(2, [](Rendezvous& meeting) -> std::string {
    const auto world = group_of(meeting, {"world", {}, 700ms});
    if (meeting.rank() == 1) std::this_thread::sleep_for(2500ms);
    world->barrier();
    return "went on";
  });
  const auto ended = ranks.wait();
  EXPECT_EQ(WEXITSTATUS(ended[0].status), 1);
  EXPECT_THAT(ended[0].text, HasSubstr("rank 0: barrier on world: "));
  EXPECT_EQ(WEXITSTATUS(ended[1].status), 1);
}

TEST(Rendezvous, OnlyTheFirstWordIsKept) {
  const auto store = Rendezvous::host("127.0.0.1", 1).value();
  EXPECT_EQ(store->reported_failure(0ms), std::nullopt);
  store->report_failure("the cause");
  store->report_failure("what followed from it");
  EXPECT_EQ(store->reported_failure(0ms), "the cause");
}

TEST(Rendezvous, APortThatIsTakenIsNamed) {
  const auto store = Rendezvous::host("127.0.0.1", 1).value();
  const auto second = Rendezvous::meet({.port = store->port(), .rank = 0, .size = 1, .timeout = 5s});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().place, "127.0.0.1:" + std::to_string(store->port()));
  EXPECT_THAT(to_text(second.error()), HasSubstr("is the port free"));
}

TEST(Rendezvous, RanksOfAnotherWorldSizeAreNamed) {
  const auto store = Rendezvous::host("127.0.0.1", 2).value();
  const auto meet = [&](int rank, int size) {
    return Rendezvous::meet(
        {.port = store->port(), .rank = rank, .size = size, .hosted_elsewhere = true, .timeout = 5s});
  };
  std::string text;
  std::thread other([&] { (void)meet(1, 3); });
  const auto first = meet(0, 2);
  other.join();
  ASSERT_FALSE(first);
  EXPECT_THAT(to_text(first.error()), HasSubstr("rank 1 was started as one of 3 ranks, rank 0 as one of 2"));
}

TEST(Rendezvous, ARankThatDoesNotComeIsNamed) {
  const auto store = Rendezvous::host("127.0.0.1", 2).value();
  const auto alone =
      Rendezvous::meet({.port = store->port(), .rank = 0, .size = 2, .hosted_elsewhere = true, .timeout = 300ms});
  ASSERT_FALSE(alone);
  EXPECT_THAT(to_text(alone.error()), HasSubstr("rank 1 did not come within 300 ms"));
}

}  // namespace
}  // namespace foreshard::exec
