#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "core/job/job_file.h"
#include "sim/play/exposure.h"
#include "sim/search/prepare_job.h"
#include "sim/simulate.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

constexpr const char* kWideConfig = R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
  "num_hidden_layers": 6, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 8003,
  "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 8192})";

class NetworkUseTest : public ::testing::Test {
 protected:
  NetworkUseTest() : path_(testing::temporary_path("network_use.json")) {
    std::ofstream(path_) << kWideConfig;
    job.model.source = path_;
    job.model.batch = 1;
    job.model.seq = 4096;
    job.model.seq_given = true;
    job.fsdp.mixed_precision.param = DType::BFloat16;
    job.cluster.profile = "h100-sxm-80";
    job.cluster.world_size = 32;
  }
  ~NetworkUseTest() override { std::remove(path_.c_str()); }

  static Prediction on(const HardwareProfile& profile, const Prepared& made, const Job& job) {
    auto result = simulate(made.plan, made.model, made.lowered, job, profile, {});
    EXPECT_TRUE(result.has_value());
    return result ? std::move(*result) : Prediction{};
  }
  static HardwareProfile with_half(HardwareProfile profile) {
    profile.scale_out_gb_per_s /= 2;
    return profile;
  }

  Job job;

 private:
  std::string path_;
};

CollectiveRun run(SimTime start, SimTime end, Phase phase, double at_half) {
  CollectiveRun result{start, end, 0, InstructionKind::AllGather, phase};
  result.at_half = at_half;
  return result;
}

TEST_F(NetworkUseTest, EachForwardAndBackwardGrowsByItself) {
  Activity activity;
  // Forward: 60 of 100 ns busy, 20 of them exposed; backward: 50 of 200, hidden; inside the node: not counted.
  activity.collectives = {run(10, 70, Phase::Forward, 2), run(20, 90, Phase::Forward, 0),
                          run(110, 160, Phase::Backward, 2)};
  activity.gaps = {{50, 70, false, Phase::Forward}};
  const NetworkUse use = find_network_use(activity, 0, 310);
  ASSERT_EQ(use.parts.size(), 2U);
  EXPECT_EQ(use.busy(), 110);
  EXPECT_EQ(use.exposed(), 20);
  EXPECT_EQ(use.apart, 10 + 150);
  // Forward: 100 + 20, or 2 x 60; backward: 50, or 2 x 50.
  EXPECT_EQ(use.step_at_half(), 160 + 120 + 100);
}

TEST_F(NetworkUseTest, IsTheStepOnHalfOfTheNetwork) {
  struct Case {
    std::int64_t seq, world, micro_batches;
    Runtime runtime;
    const char* profile;
  };
  const Case cases[] = {{4096, 32, 1, Runtime::Fsdp2, "h100-sxm-80"},
                        {1024, 64, 1, Runtime::Fsdp2, "h100-sxm-80"},
                        {2048, 16, 1, Runtime::Fsdp1, "a100-sxm-80"},
                        {1024, 32, 3, Runtime::Fsdp2, "a100-sxm-80"},
                        {2048, 16, 1, Runtime::Fsdp2, "l40s"}};
  double widest = 1;
  for (const Case& one : cases) {
    job.model.seq = one.seq;
    job.cluster.world_size = one.world;
    job.cluster.profile = one.profile;
    job.train.micro_batches = one.micro_batches;
    job.fsdp.runtime = one.runtime;
    const auto made = prepare(job);
    ASSERT_TRUE(made.has_value());
    const Prediction whole = on(made->profile, *made, job), half = on(with_half(made->profile), *made, job);
    const auto told = static_cast<double>(whole.between_nodes.step_at_half);
    EXPECT_NEAR(told / half.step_time_ns.value, 1, 0.1) << one.profile << ", " << one.seq << " tokens";
    widest = std::max(widest, half.step_time_ns.value / whole.step_time_ns.value);
    EXPECT_GE(whole.step_time_ns.high * 1.0001, told);
    EXPECT_LE(whole.tokens_per_s.low, whole.tokens_per_s.value * whole.step_time_ns.value / told * 1.0001);
  }
  EXPECT_GT(widest, 1.3) << "no case hangs on the network";
}

TEST_F(NetworkUseTest, NothingIsInDoubtInsideANodeOrWhereItWasMeasured) {
  job.cluster.world_size = 8;
  const auto inside = prepare(job);
  ASSERT_TRUE(inside.has_value());
  EXPECT_EQ(on(inside->profile, *inside, job).between_nodes.busy, 0);
  job.cluster.world_size = 32;
  const auto made = prepare(job);
  ASSERT_TRUE(made.has_value());
  HardwareProfile measured = made->profile;
  EXPECT_GT(on(measured, *made, job).between_nodes.busy, 0);
  measured.sources["scale_out_gb_per_s"] = "measured: nccl-tests";
  EXPECT_EQ(on(measured, *made, job).between_nodes.busy, 0);
  measured = made->profile;
  measured.level = CalibrationLevel::Microbenchmark;
  const Prediction known = on(measured, *made, job);
  EXPECT_EQ(known.between_nodes.busy, 0);
  EXPECT_NEAR(known.step_time_ns.high, known.step_time_ns.value * (1 + measured.interval), 1);
}

}  // namespace
}  // namespace foreshard
