#include "exec/communicators/emulated_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <vector>

namespace foreshard::exec {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

std::shared_ptr<Communicator> emulated(
    int rank, int size, CollectiveDuration duration = [](auto, auto) { return 0; }) {
  return emulated_communicator(rank, size, emulated_host(), std::move(duration));
}

TEST(Emulated, AGatherRepeatsOurPartAlsoInPlace) {
  std::vector<float> output(6, -1);
  const std::vector<float> input = {3, 4};
  emulated(1, 3)->all_gather(output.data(), input.data(), 2, DType::Float32);
  EXPECT_THAT(output, ElementsAre(3, 4, 3, 4, 3, 4));

  std::vector<float> whole = {0, 0, 5, 6, 0, 0};
  emulated(1, 3)->all_gather(whole.data(), whole.data() + 2, 2, DType::Float32);
  EXPECT_THAT(whole, ElementsAre(5, 6, 5, 6, 5, 6));
}

TEST(Emulated, ReductionsTakeThePeersToHoldWhatWeHold) {
  std::vector<float> input(8);
  std::iota(input.begin(), input.end(), 0.0F);
  std::vector<float> output(2);
  emulated(2, 4)->reduce_scatter(output.data(), input.data(), 2, DType::Float32, ReduceOp::Sum);
  EXPECT_THAT(output, ElementsAre(16, 20));
  emulated(2, 4)->reduce_scatter(output.data(), input.data(), 2, DType::Float32, ReduceOp::Avg);
  EXPECT_THAT(output, ElementsAre(4, 5));
  emulated(0, 16384)->all_reduce(output.data(), 2, DType::Float32, ReduceOp::Max);
  EXPECT_THAT(output, ElementsAre(4, 5));
}

TEST(Emulated, UnevenPartsKeepTheirPlaces) {
  std::vector<float> output(6, -1);
  const std::vector<float> input = {1, 2, 3};
  const std::vector<Numel> counts = {3, 2, 1};
  emulated(0, 3)->all_gather_uneven(output.data(), input.data(), counts, DType::Float32);
  EXPECT_THAT(output, ElementsAre(1, 2, 3, 1, 2, 1));
  std::vector<float> part(1);
  emulated(2, 3)->reduce_scatter_uneven(part.data(), output.data(), counts, DType::Float32, ReduceOp::Sum);
  EXPECT_THAT(part, ElementsAre(3));
}

TEST(Emulated, ACollectiveLastsAsLongAsItsModelSays) {
  std::vector<std::pair<InstructionKind, Bytes>> asked;
  const auto group = emulated(0, 8, [&](InstructionKind kind, Bytes bytes) {
    asked.emplace_back(kind, bytes);
    return std::int64_t{30'000'000};
  });
  std::vector<float> data(80);
  const auto begin = std::chrono::steady_clock::now();
  group->all_gather(data.data(), data.data(), 10, DType::Float32);
  group->reduce_scatter(data.data(), data.data(), 10, DType::Float32, ReduceOp::Avg);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(60));
  EXPECT_THAT(asked, ElementsAre(std::pair(InstructionKind::AllGather, Bytes{320}),
                                 std::pair(InstructionKind::ReduceScatter, Bytes{320})));
}

TEST(Emulated, AfterAnAbortCallsFail) {
  const auto group = emulated(0, 2);
  group->abort("enough");
  std::vector<float> data(1);
  EXPECT_THROW(group->all_reduce(data.data(), 1, DType::Float32, ReduceOp::Sum), std::runtime_error);
}

}  // namespace
}  // namespace foreshard::exec
