// What CPU offload pins of the host's memory, and what that costs the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "sim/search/prepare_job.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

constexpr const char* kPinnedConfig = R"({"model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 4096,
  "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 512})";

class PinnedMemory : public ::testing::Test {
 protected:
  PinnedMemory() : path_(testing::temporary_path("pinned_memory_config.json")) {
    std::ofstream(path_) << kPinnedConfig;
    job.model.source = path_;
    job.model.seq = 64;
    job.model.seq_given = true;
    job.cluster.world_size = 2;
    job.train.clip_grad_norm = 0;
    job.fsdp.cpu_offload = true;
  }
  ~PinnedMemory() override { std::remove(path_.c_str()); }

  Prediction predicted(SimDuration driver_ns) const {
    Prepared prepared = prepare(job).value();
    prepared.profile.driver_alloc_ns = driver_ns;
    SimulateOptions options;
    options.iterations = 2;
    options.timeline = true;
    return simulate(prepared.plan, prepared.model, prepared.lowered, job, prepared.profile, options).value();
  }
  Bytes pinned() const { return predicted(0).memory.pinned_host; }

  Job job;

 private:
  std::string path_;
};

constexpr Bytes kMi = 1 << 20;

TEST_F(PinnedMemory, Fsdp1PinsEachShardAndAGradientOfIt) {
  job.fsdp.runtime = Runtime::Fsdp1;
  // The root's shard has 4,194,816 bytes, a layer's 1,311,744; torch's allocator rounds up to powers of two.
  EXPECT_EQ(pinned(), 2 * (8 * kMi + 2 * 2 * kMi));
  job.fsdp.cpu_offload = false;
  EXPECT_EQ(pinned(), 0);
}

TEST_F(PinnedMemory, Fsdp2PinsByParameter) {
  job.fsdp.runtime = Runtime::Fsdp2;
  const Bytes embedding = 2 * kMi, attention = 128 << 10, mlp = 256 << 10, norm = 512;
  EXPECT_EQ(pinned(), 2 * (2 * embedding + 2 * (4 * attention + 3 * mlp + 2 * norm) + norm));
  job.fsdp.offload_pin_memory = false;
  EXPECT_EQ(pinned(), 0);
}

/// Pinning is a call of the driver. With one so slow that nothing else counts, the first step takes as long as its
/// calls: the device's segments, and two for each of the three handles.
TEST_F(PinnedMemory, TheFirstForwardOfFsdp1PaysForThem) {
  job.fsdp.runtime = Runtime::Fsdp1;
  constexpr SimDuration kSlow = 1'000'000'000;
  const Prediction slow = predicted(kSlow), quick = predicted(0);
  const auto& first = slow.iterations.at(0);
  const auto calls = (first.step_time - quick.iterations.at(0).step_time + kSlow / 2) / kSlow;
  const auto of_device = first.stats.device_allocs - slow.init.device_allocs;
  EXPECT_EQ(calls - of_device, 6);
}

/// Blocks' inputs, the final norm's tensors and the loss's travel; copies run beside the kernels.
TEST_F(PinnedMemory, ActivationOffloadPinsWhatTravelsAndCopiesBesideTheKernels) {
  job.fsdp.cpu_offload = false;
  job.checkpointing.policy = CheckpointPolicy::Block;
  EXPECT_EQ(pinned(), 0);
  job.checkpointing.offload_activations = true;
  const Prediction offloaded = predicted(0);
  // Two blocks' inputs of 64 x 256 in bfloat16, the norm's input in float32 and what its weight multiplies, the loss's
  // logarithms of 64 x 4096; labels and statistics are small.
  EXPECT_EQ(offloaded.memory.pinned_host, 2 * (32 << 10) + (64 << 10) + (32 << 10) + kMi);
  const auto& lanes = offloaded.timeline.lanes;
  const auto lane = std::find_if(lanes.begin(), lanes.end(), [](const Lane& one) { return one.stream == "O"; });
  ASSERT_NE(lane, lanes.end());
  const LaneId copies(static_cast<std::size_t>(lane - lanes.begin()));
  std::int64_t beside = 0;
  for (const Span& copy : offloaded.timeline.spans) {
    for (const Span& other : offloaded.timeline.spans) {
      const bool at_once = other.start < copy.start + copy.duration && copy.start < other.start + other.duration;
      beside += copy.lane == copies && other.kind == SpanKind::Compute && at_once ? 1 : 0;
    }
  }
  EXPECT_GT(beside, 0);
}

}  // namespace
}  // namespace foreshard
