// Asynchronous tensor parallelism is a price: nothing but time changes, and no more goes than products can hide.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "core/job.h"
#include "sim/search/prepare_job.h"
#include "sim/simulate.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

class AsyncProducts : public ::testing::Test {
 protected:
  AsyncProducts() : path_(testing::temporary_path("async_products_config.json")) {
    std::ofstream(path_) << R"({"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
      "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 4096,
      "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 4096})";
    job.model.source = path_;
    job.model.batch = 4;
    job.model.seq = 4096;
    job.model.seq_given = job.model.compile = true;
    job.fsdp.runtime = Runtime::Fsdp2;
    job.fsdp.mixed_precision.param = DType::BFloat16;
    job.fsdp.allow_traps = {45};
    job.cluster.world_size = 8;
    job.mesh.tensor = 4;
  }
  ~AsyncProducts() override { std::remove(path_.c_str()); }

  Prediction predicted() const {
    const auto prepared = prepare(job);
    EXPECT_TRUE(prepared.has_value()) << (prepared ? "" : to_text(prepared.error()));
    if (!prepared) return {};
    auto prediction =
        simulate(prepared->plan, prepared->model, prepared->lowered, job, prepared->profile, simulate_options(job));
    EXPECT_TRUE(prediction.has_value()) << (prediction ? "" : to_text(prediction.error()));
    return prediction ? *prediction : Prediction{};
  }

  Job job;

 private:
  std::string path_;
};

TEST_F(AsyncProducts, TakeTimeAwayAndNothingElse) {
  const Prediction plain = predicted();
  job.mesh.async_tensor = true;
  const Prediction beside = predicted();
  EXPECT_LT(beside.step_time_ns.value, plain.step_time_ns.value);
  EXPECT_GT(beside.step_time_ns.value, plain.step_time_ns.value / 2) << "the products themselves stay";
  EXPECT_EQ(beside.memory.allocated, plain.memory.allocated);
  EXPECT_EQ(beside.memory.reserved, plain.memory.reserved);
}

TEST_F(AsyncProducts, AreTheCompilersInsideANode) {
  job.mesh.async_tensor = true;
  const auto lacks = [&] {
    const auto prepared = prepare(job);
    return prepared ? std::string() : prepared.error().got;
  };
  EXPECT_EQ(lacks(), "");
  job.model.compile = false;
  EXPECT_EQ(lacks(), "not so: model.compile");
  job.model.compile = true;
  job.mesh.sequence_parallel = false;
  EXPECT_EQ(lacks(), "not so: mesh.sequence_parallel");
  job.mesh.sequence_parallel = true;
  job.cluster.ranks_per_node = 2;
  EXPECT_EQ(lacks(), "not so: cluster.ranks_per_node");
}

}  // namespace
}  // namespace foreshard
