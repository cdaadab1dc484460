// A small Llama on eight L40S whose schedule is searched for.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "sim/schedule/schedule_search.h"
#include "sim/search/prepare_job.h"
#include "tests/support/temporary_path.h"

namespace foreshard {

inline constexpr const char* kScheduleConfig = R"({"model_type": "llama", "hidden_size": 512, "intermediate_size": 1408,
  "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8000,
  "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 4096})";

inline constexpr const char* kExpertsConfig =
    R"({"model_type": "titan_llama", "vocab_size": 2000, "dim": 256, "ffn": 512,
  "n_layers": 2, "n_heads": 4, "n_kv_heads": 4, "max_seq": 4096, "moe": {"experts": 8, "top_k": 2, "ffn": 256}})";

class ScheduleSearchTest : public ::testing::Test {
 protected:
  ScheduleSearchTest() : path_(testing::temporary_path("schedule_config.json")) {
    std::ofstream(path_) << kScheduleConfig;
    job.model.source = path_;
    job.model.batch = 2;
    job.model.seq = 512;
    job.model.seq_given = true;
    job.fsdp.runtime = Runtime::Planned;
    job.cluster.profile = "l40s";
    job.cluster.world_size = 8;
    job.cluster.ranks_per_node = 8;
    job.checkpointing.policy = CheckpointPolicy::Block;
  }
  ~ScheduleSearchTest() override { std::remove(path_.c_str()); }

  Model model() const { return load_job_model(job, load_profile(job.cluster.profile).value()).value(); }
  FoundSchedule found(int threads = 1, double seconds = 0) const {
    const HardwareProfile profile = load_profile(job.cluster.profile).value();
    SharedParts shared;
    Workbench bench(shared);
    auto result = find_schedule(job, model(), profile, bench, {.threads = threads, .seconds = seconds, .progress = {}});
    EXPECT_TRUE(result.has_value()) << (result ? "" : to_text(result.error()));
    return result ? *result : FoundSchedule{};
  }
  /// Simulated alone, as `simulate` does it.
  static Prediction predicted(const Job& of) {
    const auto prepared = prepare(of);
    EXPECT_TRUE(prepared.has_value()) << (prepared ? "" : to_text(prepared.error()));
    return simulate(prepared->plan, prepared->model, prepared->lowered, of, prepared->profile, simulate_options(of))
        .value();
  }

  Job job;

 private:
  std::string path_;
};

}  // namespace foreshard
