// What every communicator promises (exec/communicators/communicator.h), between threads: in process, and over Gloo
// where it is found.
#include "exec/communicators/communicator.h"

#include <c10/util/BFloat16.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "exec/communicators/in_process_communicator.h"
#ifdef FORESHARD_WITH_GLOO
#include "exec/communicators/gloo_communicator.h"
#endif

namespace foreshard::exec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Ranks = std::vector<std::shared_ptr<Communicator>>;
using Make = Ranks (*)(int size, std::chrono::milliseconds timeout);

/// Runs `body(rank)` on one thread per rank.
void on_threads(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

#ifdef FORESHARD_WITH_GLOO
/// Ranks of one process over the loopback device; the store stays with them.
Ranks gloo_ranks(int size, std::chrono::milliseconds timeout) {
  struct Meetings {
    std::unique_ptr<Rendezvous> host;
    std::vector<std::unique_ptr<Rendezvous>> ranks;
  };
  Ranks ranks(static_cast<std::size_t>(size));
  auto meetings = std::make_shared<Meetings>();
  meetings->host = Rendezvous::host("127.0.0.1", size).value();
  meetings->ranks.resize(ranks.size());
  on_threads(size, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    auto meeting =
        Rendezvous::meet({.port = meetings->host->port(), .rank = rank, .size = size, .hosted_elsewhere = true});
    if (!meeting) return;
    meetings->ranks[r] = std::move(*meeting);
    if (auto made = make_gloo_communicator(*meetings->ranks[r], {"test", {}, timeout})) ranks[r] = *made;
  });
  for (auto& rank : ranks) {  // the store lives as long as the communicators
    auto* raw = rank.get();
    rank = std::shared_ptr<Communicator>(raw, [keep = rank, meetings](Communicator*) {});
  }
  return ranks;
}
#endif

class CommunicatorContract : public ::testing::TestWithParam<Make> {
 protected:
  /// Runs `body(communicator)` on one thread per rank; returns what each of them threw, empty for nothing.
  static std::vector<std::string> on_ranks(int size, const std::function<void(Communicator&)>& body,
                                           std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    const Ranks group = GetParam()(size, timeout);
    std::vector<std::string> thrown(group.size());
    on_threads(size, [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      try {
        if (group[r] == nullptr) throw std::runtime_error("the ranks did not meet");
        body(*group[r]);
      } catch (const std::exception& error) {
        thrown[r] = error.what();
      }
    });
    return thrown;
  }
  /// ... and none of them may throw.
  static void expect_on_ranks(int size, const std::function<void(Communicator&)>& body) {
    for (const std::string& text : on_ranks(size, body)) EXPECT_EQ(text, "");
  }
};

TEST_P(CommunicatorContract, GathersIntoTheOutputInPlace) {
  expect_on_ranks(3, [](Communicator& group) {
    std::vector<float> all(6, -1);
    const auto own = static_cast<std::size_t>(2 * group.rank());
    all[own] = static_cast<float>(group.rank());
    all[own + 1] = static_cast<float>(group.rank() + 10);
    group.all_gather(all.data(), all.data() + own, 2, DType::Float32);
    EXPECT_THAT(all, ElementsAre(0, 10, 1, 11, 2, 12));
  });
}

TEST_P(CommunicatorContract, UnevenPartsMayBeEmpty) {
  const std::vector<Numel> counts = {2, 0, 1};
  expect_on_ranks(3, [&](Communicator& group) {
    const std::vector<std::int64_t> own(static_cast<std::size_t>(counts[static_cast<std::size_t>(group.rank())]),
                                        group.rank());
    std::vector<std::int64_t> all(3, -1);
    group.all_gather_uneven(all.data(), own.data(), counts, DType::Int64);
    EXPECT_THAT(all, ElementsAre(0, 0, 2));
    const std::vector<std::int64_t> give = {1, 2, 3};
    std::vector<std::int64_t> sums(own.size());
    group.reduce_scatter_uneven(sums.data(), give.data(), counts, DType::Int64, ReduceOp::Sum);
    if (group.rank() == 0) {
      EXPECT_THAT(sums, ElementsAre(3, 6));
    }
    if (group.rank() == 2) {
      EXPECT_THAT(sums, ElementsAre(9));
    }
  });
}

TEST_P(CommunicatorContract, AveragesIntoShards) {
  expect_on_ranks(2, [](Communicator& group) {
    const float scale = group.rank() == 0 ? 1.0F : 3.0F;
    const std::vector<float> gradient = {1 * scale, 2 * scale, 3 * scale, 4 * scale};
    std::vector<float> shard(2);
    group.reduce_scatter(shard.data(), gradient.data(), 2, DType::Float32, ReduceOp::Avg);
    if (group.rank() == 0) {
      EXPECT_THAT(shard, ElementsAre(2, 4));
    }
    if (group.rank() == 1) {
      EXPECT_THAT(shard, ElementsAre(6, 8));
    }
  });
}

TEST_P(CommunicatorContract, Bf16IsSummedInFp32) {
  expect_on_ranks(4, [](Communicator& group) {
    // 256 + 1 + 1 + 1: bf16 holds no odd number above 256, a running bf16 sum would stay at 256.
    std::vector<c10::BFloat16> value = {c10::BFloat16(group.rank() == 0 ? 256.0F : 1.0F)};
    group.all_reduce(value.data(), 1, DType::BFloat16, ReduceOp::Sum);
    EXPECT_EQ(static_cast<float>(value[0]), 260.0F);
  });
}

TEST_P(CommunicatorContract, ReducesWhatDoesNotDivideByTheRanks) {
  expect_on_ranks(4, [](Communicator& group) {
    std::vector<double> values = {1, 2, 3, 4, 5, static_cast<double>(group.rank())};
    group.all_reduce(values.data(), 6, DType::Float64, ReduceOp::Sum);
    EXPECT_THAT(values, ElementsAre(4, 8, 12, 16, 20, 6));
    group.all_reduce(values.data(), 1, DType::Float64, ReduceOp::Max);
    EXPECT_EQ(values[0], 4);
  });
}

TEST_P(CommunicatorContract, ExchangesPartsOfAnySize) {
  // Rank a sends b elements "10 a + b" to each rank b: none to the first.
  expect_on_ranks(3, [](Communicator& group) {
    const auto rank = static_cast<Numel>(group.rank());
    const std::vector<Numel> send = {0, 1, 2}, receive = {rank, rank, rank};
    std::vector<std::int32_t> given, got(static_cast<std::size_t>(3 * rank), -1), expected;
    for (std::int32_t to = 0; to < 3; ++to)
      for (std::int32_t k = 0; k < to; ++k) given.push_back(10 * group.rank() + to);
    for (std::int32_t from = 0; from < 3; ++from)
      for (std::int32_t k = 0; k < group.rank(); ++k) expected.push_back(10 * from + group.rank());
    group.all_to_all(got.data(), given.data(), send, receive, DType::Int32);
    EXPECT_EQ(got, expected);
  });
}

TEST_P(CommunicatorContract, AnExchangeOfNothingIsOne) {
  expect_on_ranks(2, [](Communicator& group) {
    const std::vector<Numel> none = {0, 0};
    group.all_to_all(nullptr, nullptr, none, none, DType::BFloat16);
    group.barrier();
  });
}

TEST_P(CommunicatorContract, AnExchangeThatTheOtherSideDoesNotExpectEndsBoth) {
  const auto thrown = on_ranks(
      2,
      [](Communicator& group) {
        const std::vector<Numel> send = {1, group.rank() == 0 ? Numel{3} : Numel{1}}, receive = {1, 1};
        std::vector<float> given(4), got(4);
        try {
          group.all_to_all(got.data(), given.data(), send, receive, DType::Float32);
          group.barrier();
        } catch (const std::exception& error) {
          group.abort(error.what());
          throw;
        }
      },
      std::chrono::milliseconds(2000));
  EXPECT_NE(thrown[0], "");
  EXPECT_THAT(thrown[1], HasSubstr("rank 0 sends 3 elements to rank 1, which expects 1"));
}

TEST_P(CommunicatorContract, AnExchangeEndsWithARankThatGivesUp) {
  const auto thrown = on_ranks(3, [](Communicator& group) {
    const std::vector<Numel> one = {1, 1, 1};
    std::vector<float> given(3), got(3);
    if (group.rank() == 1) return group.abort("out of memory");
    group.all_to_all(got.data(), given.data(), one, one, DType::Float32);
  });
  EXPECT_NE(thrown[0], "");
  EXPECT_NE(thrown[2], "");
}

TEST_P(CommunicatorContract, BroadcastsFromTheRoot) {
  expect_on_ranks(3, [](Communicator& group) {
    std::vector<std::int64_t> value = {group.rank() == 2 ? 9 : 0};
    group.broadcast(value.data(), 1, DType::Int64, 2);
    EXPECT_EQ(value[0], 9);
  });
}

TEST_P(CommunicatorContract, ARankThatDoesNotComeEndsTheOthersByTimeout) {
  const auto thrown = on_ranks(
      2,
      [](Communicator& group) {
        if (group.rank() == 0) group.barrier();
        if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
      },
      std::chrono::milliseconds(100));
  EXPECT_NE(thrown[0], "");
}

TEST_P(CommunicatorContract, AnAbortEndsTheWaitOfTheOtherRanks) {
  const auto thrown = on_ranks(2, [](Communicator& group) {
    if (group.rank() == 0) group.barrier();
    if (group.rank() == 1) group.abort("out of memory");
    group.barrier();
  });
  EXPECT_NE(thrown[0], "");
  EXPECT_THAT(thrown[1], HasSubstr("rank 1 gave up: out of memory"));
}

INSTANTIATE_TEST_SUITE_P(InProcess, CommunicatorContract, ::testing::Values(Make{[](int size, auto timeout) {
                           return in_process_communicators(size, timeout);
                         }}));
#ifdef FORESHARD_WITH_GLOO
INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorContract, ::testing::Values(Make{gloo_ranks}));
#endif

/// In process, errors know more: all ranks are at hand.
class InProcessCommunicator : public CommunicatorContract {};
INSTANTIATE_TEST_SUITE_P(Errors, InProcessCommunicator, ::testing::Values(Make{[](int size, auto timeout) {
                           return in_process_communicators(size, timeout);
                         }}));

TEST_P(InProcessCommunicator, ATimeoutNamesTheRankThatDidNotCome) {
  const auto thrown = on_ranks(
      3,
      [](Communicator& group) {
        if (group.rank() != 1) group.barrier();
      },
      std::chrono::milliseconds(50));
  EXPECT_THAT(thrown[0], HasSubstr("missing: rank 1"));
  EXPECT_THAT(thrown[2], HasSubstr("missing: rank 1"));
}

TEST_P(InProcessCommunicator, CallsThatDoNotMatchAreNamedOnEveryRank) {
  const auto thrown = on_ranks(2, [](Communicator& group) {
    std::vector<float> data(4);
    if (group.rank() == 0) group.all_reduce(data.data(), 4, DType::Float32, ReduceOp::Sum);
    if (group.rank() == 1) group.broadcast(data.data(), 4, DType::Float32, 0);
  });
  for (const std::string& text : thrown) {
    EXPECT_THAT(text, HasSubstr("all_reduce"));
    EXPECT_THAT(text, HasSubstr("broadcast"));
  }
}

TEST_P(InProcessCommunicator, AnAbortEndsTheWaitOfAllRanks) {
  const auto thrown = on_ranks(2, [](Communicator& group) {
    if (group.rank() == 0) group.barrier();
    if (group.rank() == 1) group.abort("out of memory");
  });
  EXPECT_THAT(thrown[0], HasSubstr("rank 1 gave up: out of memory"));
}

}  // namespace
}  // namespace foreshard::exec
