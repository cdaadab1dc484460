// PyTorch's compressing hooks, run on two ranks: compared with tests/data/exec/comm_hook, recorded with PyTorch 2.11.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/exec/run/recorded_ranks.h"

namespace foreshard::exec {
namespace {

using toy::kRanks;
using toy::TwoRanks;

Job job_of(const std::string& hook, Strategy strategy, const MixedPrecision& precision) {
  Job job = toy::job(Runtime::Fsdp1, precision, kRanks);
  job.fsdp.strategy = strategy;
  job.fsdp.comm_hook = hook;
  return job;
}

void expect_recorded(const std::string& name, const Job& job) {
  SCOPED_TRACE(name);
  std::ifstream file(toy::kFolder + "comm_hook/recorded.json");
  const auto recorded = nlohmann::json::parse(file).at(name);
  TwoRanks ranks(job);
  ranks.train();
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(ranks.losses[rank].size(), static_cast<std::size_t>(toy::kSteps));
    for (std::size_t s = 0; s < toy::kSteps; ++s) {
      EXPECT_NEAR(ranks.losses[rank][s], recorded["losses"][rank][s].get<double>(), 1e-4) << rank << ", step " << s;
    }
  }
  for (std::size_t p = 0; p < ranks.whole.size(); ++p) {
    const auto expected = recorded["params"][p].get<std::vector<double>>();
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(ranks.whole[p][i], expected[i], 2e-6) << p << "," << i;
  }
}

TEST(RecordedHooks, CompressionInFullPrecision) {
  expect_recorded("none", job_of("none", Strategy::FullShard, MixedPrecision::none()));
  expect_recorded("fp16_compress", job_of("fp16_compress", Strategy::FullShard, MixedPrecision::none()));
  expect_recorded("bf16_compress", job_of("bf16_compress", Strategy::FullShard, MixedPrecision::none()));
}

TEST(RecordedHooks, CompressionWithoutShards) {
  expect_recorded("fp16_compress NO_SHARD", job_of("fp16_compress", Strategy::NoShard, MixedPrecision::none()));
}

TEST(RecordedHooks, GradientsThatAreInTheHooksTypeAlready) {
  MixedPrecision low = MixedPrecision::none();
  low.param = DType::BFloat16;
  low.reduce = DType::Float32;
  expect_recorded("bf16_compress of bf16", job_of("bf16_compress", Strategy::ShardGradOp, low));
}

}  // namespace
}  // namespace foreshard::exec
