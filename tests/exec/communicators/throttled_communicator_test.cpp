#include "exec/communicators/throttled_communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "exec/communicators/in_process_communicator.h"

namespace foreshard::exec {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(ThrottledCommunicator, TakesALatencyAndTheTimeOfItsBytes) {
  const LinkLimit limit{microseconds(500), 1e6};
  EXPECT_EQ(link_time(limit, 4000, 4), microseconds(500) + milliseconds(3));  // 3/4 of it are sent
  EXPECT_EQ(link_time(limit, 4000, 4, true), microseconds(500) + milliseconds(6));
  EXPECT_EQ(link_time(limit, 4000, 1), microseconds(0));
  EXPECT_EQ(link_time({microseconds(500), 0}, 4000, 4), microseconds(500));
}

TEST(ThrottledCommunicator, WithoutALimitItIsTheOneInside) {
  const auto inner = in_process_communicators(1).front();
  EXPECT_EQ(throttled(inner, {}), inner);
}

TEST(ThrottledCommunicator, ResultsAreThoseOfTheOneInsideButLater) {
  auto ranks = in_process_communicators(2, std::chrono::seconds(60));
  for (auto& rank : ranks) rank = throttled(rank, {milliseconds(30), 0});
  std::array<std::vector<float>, 2> gathered, reduced;
  const auto begun = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const std::vector<float> own{static_cast<float>(r) + 1, static_cast<float>(r) + 3};
      gathered[r].resize(4);
      reduced[r].resize(1);
      ranks[r]->all_gather(gathered[r].data(), own.data(), 2, DType::Float32);
      ranks[r]->reduce_scatter(reduced[r].data(), own.data(), 1, DType::Float32, ReduceOp::Sum);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(std::chrono::steady_clock::now() - begun, milliseconds(60));
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(gathered[r], (std::vector<float>{1, 3, 2, 4}));
    EXPECT_EQ(reduced[r], (std::vector<float>{r == 0 ? 3.0F : 7.0F}));
  }
}

}  // namespace
}  // namespace foreshard::exec
