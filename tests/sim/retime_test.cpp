#include "sim/device/retime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "sim/search/prepare_job.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

constexpr const char* kConfig = R"({"model_type": "llama", "hidden_size": 192, "intermediate_size": 520,
  "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 1003,
  "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 512})";

class RetimeTest : public ::testing::Test {
 protected:
  RetimeTest() : path_(testing::temporary_path("retime_config.json")) {
    std::ofstream(path_) << kConfig;
    job.model.source = path_;
    job.model.seq = 256;
    job.model.seq_given = true;
    job.cluster.world_size = 16;
  }
  ~RetimeTest() override { std::remove(path_.c_str()); }

  /// Step times of all iterations and their tape.
  std::vector<SimDuration> simulated(IssueTape& tape, HardwareProfile* profile = nullptr) {
    prepared = prepare(job).value();
    SimulateOptions options;
    options.tape = &tape;
    const auto p = simulate(prepared.plan, prepared.model, prepared.lowered, job,
                            profile != nullptr ? *profile : prepared.profile, options);
    EXPECT_TRUE(p.has_value());
    std::vector<SimDuration> steps;
    for (const IterationResult& iteration : p->iterations) steps.push_back(iteration.step_time);
    return steps;
  }
  static std::vector<SimDuration> steps(const std::vector<SimTime>& ends) {
    std::vector<SimDuration> list;
    for (std::size_t k = 0; k < ends.size(); ++k) list.push_back(ends[k] - (k == 0 ? 0 : ends[k - 1]));
    return list;
  }

  Job job;
  Prepared prepared;

 private:
  std::string path_;
};

TEST_F(RetimeTest, WithoutAChangeItIsTheSimulationToTheNanosecond) {
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2, Runtime::None}) {
    for (const std::int64_t batch : {1, 16}) {  // bound by the host, bound by the device
      for (const bool offload : {false, true}) {
        if (offload && runtime == Runtime::None) continue;
        job.fsdp.runtime = runtime;
        job.model.batch = batch;
        job.fsdp.cpu_offload = offload;
        IssueTape tape;
        const auto expected = simulated(tape);
        EXPECT_EQ(steps(retime(tape, {})), expected) << static_cast<int>(runtime) << ' ' << batch << offload;
        EXPECT_LT(tape.entries().size() * 2, tape.kernels().size() + tape.entries().size()) << "runs are joined";
      }
    }
  }
}

TEST_F(RetimeTest, AFactorOfOneByKernelsIsTheSameAsByRuns) {
  IssueTape tape;
  const auto expected = simulated(tape);
  std::vector<UnitChange> changes;
  for (std::size_t u = 0; u < prepared.plan.units.size(); ++u)
    changes.push_back({static_cast<std::int32_t>(u), 1.0 + 1e-15, 1.0});  // another path, the same durations
  EXPECT_EQ(steps(retime(tape, changes)), expected);
}

TEST_F(RetimeTest, ASlowerUnitMakesTheStepLonger) {
  job.model.batch = 16;
  IssueTape tape;
  const SimDuration before = simulated(tape).back();
  const auto unit = prepared.plan.find_unit("model.layers.1").value;
  // The host is what bounds this small model: only a much slower unit shows.
  const SimDuration slower = steps(retime(tape, {{unit, 100.0, 1.0}})).back();
  EXPECT_GT(slower, before);
  EXPECT_GT(steps(retime(tape, {{unit, 200.0, 1.0}})).back(), slower);
  EXPECT_LE(steps(retime(tape, {{unit, 0.5, 1.0}})).back(), before);
}

TEST_F(RetimeTest, SlowerCollectivesMakeTheStepLonger) {
  IssueTape tape;
  const auto expected = simulated(tape);
  std::vector<UnitChange> changes;
  for (std::size_t u = 0; u < prepared.plan.units.size(); ++u)
    changes.push_back({static_cast<std::int32_t>(u), 1.0, 1000.0});
  EXPECT_GT(steps(retime(tape, changes)).back(), expected.back());
}

TEST(IssueTape, ARunOfKernelsActsAsItsKernelsDo) {
  IssueTape tape;
  tape.set_unit(0);
  for (const auto& [host, device] : {std::pair{7, 100}, {50, 3}, {200, 10}, {1, 40}}) {
    tape.host_cost(host);
    tape.run(1, device);
  }
  tape.end_iteration();
  ASSERT_EQ(tape.entries().size(), 2U);
  // Starts 7, 107, 257, 267: the third waits for the host, the others for the stream.
  EXPECT_EQ(retime(tape, {}), (std::vector<SimTime>{307}));
  EXPECT_EQ(retime(tape, {{0, 0.5, 1.0}}), (std::vector<SimTime>{282}));
}

}  // namespace
}  // namespace foreshard
