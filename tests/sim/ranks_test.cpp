#include "sim/search/ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <numeric>

#include "sim/search/prepare_job.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

constexpr const char* kConfig = R"({"model_type": "llama", "hidden_size": 192, "intermediate_size": 520,
  "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 1024,
  "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 512})";

class RanksTest : public ::testing::Test {
 protected:
  RanksTest() : path_(testing::temporary_path("ranks_config.json")) {
    std::ofstream(path_) << kConfig;
    job.model.source = path_;
    job.model.batch = 16;
    job.model.seq = 256;
    job.model.seq_given = true;
    job.fsdp.runtime = Runtime::Fsdp1;
    job.cluster.world_size = 16;
  }
  ~RanksTest() override { std::remove(path_.c_str()); }

  Model model() const {
    const auto profile = load_profile(job.cluster.profile);
    return *load_job_model(job, *profile);
  }
  RankClasses ranks_of(const std::vector<RankTrait>& traits) const {
    auto made = rank_classes(job, model(), traits);
    EXPECT_TRUE(made.has_value());
    return made ? *made : RankClasses{};
  }
  std::vector<RankClass> classes(const std::vector<RankTrait>& traits) const { return ranks_of(traits).classes; }
  RanksPrediction ranks(const RanksOptions& options) const {
    auto made = simulate_ranks(job, options);
    EXPECT_TRUE(made.has_value()) << (made ? "" : to_text(made.error()));
    return made ? *made : RanksPrediction{};
  }
  Prediction alone() const {
    const auto prepared = prepare(job);
    return *simulate(prepared->plan, prepared->model, prepared->lowered, job, prepared->profile, {});
  }

  Job job;

 private:
  std::string path_;
};

TEST_F(RanksTest, RanksThatAreAlikeAreOneClass) {
  const auto one = classes({});
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].members, 16);
  job.cluster.world_size = 16'384;
  EXPECT_EQ(classes({}).size(), 1U);
}

TEST_F(RanksTest, ASlowRankIsToldFromTheRest) {
  const RankClasses ranks = ranks_of({{3, 3, 1.2, ""}});
  const auto& two = ranks.classes;
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[0].members, 15);
  EXPECT_EQ(two[1].representative, 3);
  const PlanCommunicator all{"world", "shard", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
  EXPECT_EQ(ranks.peers(all, 0), (std::vector<std::size_t>{0, 1}));
  const PlanCommunicator pairs{"post_forward:a", "shard", {0, 1}};  // 2 keeps its shards with 3
  EXPECT_EQ(ranks.peers(pairs, 0), (std::vector<std::size_t>{0}));
  EXPECT_EQ(ranks.peers(pairs, 1), (std::vector<std::size_t>{0, 1}));
}

TEST_F(RanksTest, HybridGroupsTellItsNeighboursApartToo) {
  job.fsdp.strategy = Strategy::HybridShard;  // shard groups 0-7 and 8-15, replicas r and r + 8
  const RankClasses ranks = ranks_of({{3, 3, 1.2, ""}});
  const auto& found = ranks.classes;
  // 3 itself; those who shard with it; its replica; those who shard with its replica.
  ASSERT_EQ(found.size(), 4U);
  std::vector<std::int64_t> members;
  for (const RankClass& one : found) members.push_back(one.members);
  EXPECT_EQ(members, (std::vector<std::int64_t>{7, 1, 7, 1}));
  const PlanCommunicator shard{"shard", "shard", {8, 9, 10, 11, 12, 13, 14, 15}};  // as rank 9's plan has it
  const PlanCommunicator replicate{"replicate", "replicate", {1, 9}};
  EXPECT_EQ(ranks.peers(shard, 0), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(ranks.peers(replicate, 0), (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(ranks.peers(replicate, 1), (std::vector<std::size_t>{1, 3}));
}

TEST_F(RanksTest, RowsThatDoNotDivideMakeClassesInFsdp2) {
  job.fsdp.runtime = Runtime::Fsdp2;
  job.cluster.world_size = 8;
  const auto even = classes({});
  ASSERT_EQ(even.size(), 1U);  // 192, 520, 64 and 1024 rows all divide by 8
  job.cluster.world_size = 16;
  const auto uneven = classes({});  // 520 rows: 33 each, the last 25
  ASSERT_EQ(uneven.size(), 2U);
  EXPECT_EQ(uneven[1].representative, 15);
}

TEST_F(RanksTest, AlikeTheyTakeAsLongAsOneAlone) {
  const Prediction one = alone();
  const RanksPrediction all = ranks({});
  EXPECT_EQ(all.step_time_ns.value, one.step_time_ns.value);
  EXPECT_EQ(all.predictions[0].memory.reserved, one.memory.reserved);
}

TEST_F(RanksTest, AClassGivenNothingOfItsOwnChangesNothing) {
  RanksOptions options;
  options.traits = {{2, 5, 1.0, job.cluster.profile}};  // named, but no different
  const RanksPrediction all = ranks(options);
  EXPECT_EQ(all.classes.size(), 2U);
  EXPECT_EQ(all.step_time_ns.value, alone().step_time_ns.value);
}

TEST_F(RanksTest, TheSlowRankHoldsTheOthersBack) {
  const double one = alone().step_time_ns.value;
  RanksOptions options;
  options.traits = {{3, 3, 1.5, ""}};
  const RanksPrediction all = ranks(options);
  EXPECT_EQ(all.slowest, 1U);
  EXPECT_GT(all.step_time_ns.value, one);
  EXPECT_LE(all.step_time_ns.value, 1.5 * one);
  // Who waits is idle for longer, not busy for longer.
  const IterationResult &fast = all.predictions[0].iterations.back(), &slow = all.predictions[1].iterations.back();
  EXPECT_LT(fast.compute, slow.compute);
  EXPECT_GT(fast.idle, slow.idle);
  // Both end together but for the optimizer step, which nobody waits for.
  EXPECT_NEAR(static_cast<double>(fast.step_time), static_cast<double>(slow.step_time), 0.05 * one);
}

TEST_F(RanksTest, ASlowRankOfAnotherShardGroupIsFeltThroughTheReplicas) {
  job.fsdp.strategy = Strategy::HybridShard;
  const double one = alone().step_time_ns.value;
  RanksOptions options;
  options.traits = {{3, 3, 2.0, ""}};
  const RanksPrediction all = ranks(options);
  ASSERT_EQ(all.classes.size(), 4U);
  for (const Prediction& p : all.predictions) EXPECT_GT(p.step_time_ns.value, one);
}

TEST_F(RanksTest, JitterIsASeededDistribution) {
  job.model.batch = 256;  // enough that the device is what a step waits for
  job.model.seq = 512;
  RanksOptions options;
  options.jitter = 0.1;
  options.seed = 7;
  const double plain = alone().step_time_ns.value;
  const double a = ranks(options).step_time_ns.value, b = ranks(options).step_time_ns.value;
  EXPECT_EQ(a, b);
  EXPECT_GT(a, plain);  // the slowest of sixteen draws
  options.seed = 8;
  EXPECT_NE(a, ranks(options).step_time_ns.value);
}

TEST(DrawSlowness, HasTheAskedDeviationAndTheSlowestOfManyIsSlower) {
  const auto mean_of = [](std::int64_t members, double& deviation) {
    const RankSpeed speed{1.0, 0.05, 11, members};
    double sum = 0, squares = 0;
    constexpr int kDraws = 20'000;
    for (int k = 0; k < kDraws; ++k) {
      const double x = draw_slowness(speed, static_cast<std::uint64_t>(k));
      sum += x;
      squares += x * x;
    }
    deviation = std::sqrt(squares / kDraws - sum / kDraws * (sum / kDraws));
    return sum / kDraws;
  };
  double deviation = 0;
  EXPECT_NEAR(mean_of(1, deviation), 1.0, 0.002);
  EXPECT_NEAR(deviation, 0.05, 0.002);
  // The expected largest of 1000 standard normal draws is 3.241.
  EXPECT_NEAR(mean_of(1000, deviation), 1 + 0.05 * 3.241, 0.002);
}

TEST(RankTraits, AreReadFromTexts) {
  EXPECT_EQ(*parse_slow_ranks("3=1.2"), (RankTrait{3, 3, 1.2, ""}));
  EXPECT_EQ(*parse_slow_ranks("8-15=1.3"), (RankTrait{8, 15, 1.3, ""}));
  EXPECT_EQ(*parse_rank_profiles("8-15=a100-sxm-80"), (RankTrait{8, 15, 1.0, "a100-sxm-80"}));
  for (const char* text : {"", "3", "3=", "=1", "a=1", "5-3=1", "3=-1", "3=nan", "3=1x", "3-=1", "1e3=2"})
    EXPECT_FALSE(parse_slow_ranks(text).has_value()) << text;
  EXPECT_FALSE(parse_rank_profiles("3=").has_value());
}

TEST_F(RanksTest, ARankBeyondTheWorldIsAnError) {
  EXPECT_EQ(rank_classes(job, model(), {{16, 16, 2.0, ""}}).error().code, ErrorCode::OutOfRange);
}

TEST_F(RanksTest, AnotherKindOfNodeIsAnotherProfile) {
  RanksOptions options;
  options.traits = {{8, 15, 1.0, "a100-sxm-80"}};
  const RanksPrediction all = ranks(options);
  ASSERT_EQ(all.classes.size(), 2U);
  EXPECT_EQ(all.slowest, 1U);
  EXPECT_GT(all.step_time_ns.value, alone().step_time_ns.value);
}

}  // namespace
}  // namespace foreshard
