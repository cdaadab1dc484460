#include "sim/search/auto_wrap.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "sim/search/prepare_job.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

/// Embedding and head are larger than a block; five blocks, so that groups of two leave one over.
constexpr const char* kConfig = R"({"model_type": "llama", "hidden_size": 256, "intermediate_size": 520,
  "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 16003,
  "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 512})";

class AutoWrapTest : public ::testing::Test {
 protected:
  AutoWrapTest() : path_(testing::temporary_path("wrap_config.json")) {
    std::ofstream(path_) << kConfig;
    job.model.source = path_;
    job.model.batch = 2;
    job.model.seq = 96;
    job.model.seq_given = true;
    job.cluster.world_size = 4;
    job.cluster.ranks_per_node = 4;
    job.fsdp.wrap.policy = WrapPolicyKind::Auto;
  }
  ~AutoWrapTest() override { std::remove(path_.c_str()); }

  WrapSearch found() {
    const auto profile = load_profile(job.cluster.profile);
    const auto model = load_job_model(job, *profile);
    auto search = settle_wrap(job, *model, *profile);
    EXPECT_TRUE(search.has_value()) << (search ? "" : to_text(search.error()));
    return search ? *search : WrapSearch{};
  }
  static double step(const Job& of) {
    const auto prepared = prepare(of);
    EXPECT_TRUE(prepared.has_value());
    const auto p =
        simulate(prepared->plan, prepared->model, prepared->lowered, of, prepared->profile, simulate_options(of));
    return p && p->fits ? p->step_time_ns.value : 1e30;
  }
  Job with_units(const std::vector<std::vector<std::string>>& units) const {
    Job other = job;
    other.fsdp.wrap.policy = WrapPolicyKind::Units;
    other.fsdp.wrap.units = units;
    return other;
  }

  Job job;

 private:
  std::string path_;
};

TEST_F(AutoWrapTest, NoGroupingOfItsFamilyIsFaster) {
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2}) {
    job.fsdp.runtime = runtime;
    const WrapSearch search = found();
    const double best = step(search.job);
    for (const bool embedding : {false, true}) {
      for (const bool head : {false, true}) {
        for (const int blocks : {1, 2}) {
          if (blocks > 1 && runtime == Runtime::Fsdp1) continue;
          std::vector<std::vector<std::string>> units;
          for (int b = 0; b < 5; ++b) {
            if (b % blocks == 0) units.emplace_back();
            units.back().push_back("model.layers." + std::to_string(b));
          }
          if (embedding) units.push_back({"model.embed_tokens"});
          if (head) units.push_back({"lm_head"});
          EXPECT_LE(best, step(with_units(units))) << blocks << embedding << head;
        }
      }
    }
    EXPECT_GT(search.simulated, 3U);
  }
}

TEST_F(AutoWrapTest, SimulateAndSweepUseWhatItFinds) {
  const WrapSearch search = found();
  const auto by_auto = prepare(job), by_units = prepare(search.job);
  ASSERT_TRUE(by_auto.has_value() && by_units.has_value());
  EXPECT_EQ(by_auto->plan.units, by_units->plan.units);
  EXPECT_EQ(by_auto->plan.iterations, by_units->plan.iterations);
  EXPECT_EQ(by_auto->plan.warnings.back(), search.text);
  SharedParts shared;
  Workbench bench(shared);
  const auto swept = bench.predict(job);
  ASSERT_TRUE(swept.has_value());
  EXPECT_EQ(swept->step_time_ns.value, step(search.job));
}

TEST_F(AutoWrapTest, WhereMemoryIsShortItTakesWhatFits) {
  const WrapSearch wide = found();
  const auto roomy = prepare(wide.job);
  const auto p = simulate(roomy->plan, roomy->model, roomy->lowered, wide.job, roomy->profile, {});
  ASSERT_TRUE(p.has_value());
  // A little less than the fastest needs, beside what lies outside the allocator.
  job.cluster.memory = static_cast<Bytes>(p->memory.outside_allocator.value) + p->memory.reserved * 97 / 100;
  const WrapSearch tight = found();
  const auto other = prepare(tight.job);
  const auto fits =
      simulate(other->plan, other->model, other->lowered, tight.job, other->profile, simulate_options(tight.job));
  ASSERT_TRUE(fits.has_value());
  if (fits->fits) {
    EXPECT_GE(fits->step_time_ns.value, p->step_time_ns.value);
  }
}

TEST_F(AutoWrapTest, OtherPoliciesAreLeftAlone) {
  job.fsdp.wrap.policy = WrapPolicyKind::ModuleClass;
  const WrapSearch search = found();
  EXPECT_EQ(search.job, job);
  EXPECT_EQ(search.simulated, 0U);
  EXPECT_TRUE(search.text.empty());
}

TEST_F(AutoWrapTest, SameJobSameUnits) { EXPECT_EQ(found().job, found().job); }

}  // namespace
}  // namespace foreshard
