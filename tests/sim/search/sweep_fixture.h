// What the tests of sweeps share: a small model that a job names, and predictions that are compared in all that a
// search could look at. For one thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "sim/search/prepare_job.h"
#include "sim/search/shared_parts.h"
#include "sim/search/sweep.h"
#include "tests/support/temporary_path.h"

namespace foreshard {

/// Three uneven blocks, so that nothing divides by accident.
inline constexpr const char* kConfig = R"({"model_type": "llama", "hidden_size": 192, "intermediate_size": 520,
  "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 1003,
  "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 512})";

/// One bench for all jobs against a fresh one each.
inline void expect_as_fresh(const SweepGrid& over, const Job& base) {
  SharedParts shared;
  Workbench kept(shared);
  kept.keep_tapes();
  int predicted = 0;
  std::string refused;
  for (std::size_t k = 0; k < over.size(); ++k) {
    const auto job = over.job_of(k, base);
    if (!job) continue;  // refused as a job
    SharedParts others;
    Workbench fresh(others);
    const auto a = kept.predict(*job), b = fresh.predict(*job);
    ASSERT_EQ(a.has_value(), b.has_value()) << k << (a ? to_text(b.error()) : to_text(a.error()));
    if (!a) {
      refused = to_text(b.error());
      continue;
    }
    EXPECT_EQ(a->step_time_ns.value, b->step_time_ns.value) << k;
    EXPECT_EQ(a->memory.reserved, b->memory.reserved) << k;
    EXPECT_EQ(a->memory.allocated, b->memory.allocated) << k;
    ++predicted;
  }
  EXPECT_GT(predicted, 1) << refused;
}

class SweepTest : public ::testing::Test {
 protected:
  SweepTest() : path_(testing::temporary_path("sweep_config.json")) {
    std::ofstream(path_) << kConfig;
    base.model.source = path_;
    base.model.seq = 96;
    base.model.seq_given = true;
    base.cluster.world_size = 4;
    base.cluster.ranks_per_node = 4;
  }
  ~SweepTest() override { std::remove(path_.c_str()); }

  static SweepGrid grid(const std::vector<std::string>& axes) {
    std::vector<SweepAxis> parsed;
    for (const std::string& text : axes) {
      auto axis = parse_sweep_axis(text);
      EXPECT_TRUE(axis.has_value()) << (axis ? "" : to_text(axis.error()));
      if (axis) parsed.push_back(std::move(*axis));
    }
    auto made = SweepGrid::make(std::move(parsed));
    EXPECT_TRUE(made.has_value());
    return *made;
  }

  SweepResult run(const SweepGrid& over, SweepOptions options = {}) const {
    auto result = sweep(base, over, options);
    EXPECT_TRUE(result.has_value()) << (result ? "" : to_text(result.error()));
    return result ? *result : SweepResult{};
  }

  Job base;

 private:
  std::string path_;
};

/// All that a search could look at, and more.
inline void expect_same(const Prediction& a, const Prediction& b) {
  ASSERT_EQ(a.fits, b.fits);
  EXPECT_EQ(a.deadlock, b.deadlock);
  EXPECT_EQ(a.step_time_ns.value, b.step_time_ns.value);
  EXPECT_EQ(a.tokens_per_s.value, b.tokens_per_s.value);
  EXPECT_EQ(a.mfu.value, b.mfu.value);
  EXPECT_EQ(a.hfu.value, b.hfu.value);
  EXPECT_EQ(a.events, b.events);
  EXPECT_EQ(a.memory.allocated, b.memory.allocated);
  EXPECT_EQ(a.memory.active, b.memory.active);
  EXPECT_EQ(a.memory.reserved, b.memory.reserved);
  EXPECT_EQ(a.memory.instruction.value, b.memory.instruction.value);
  EXPECT_EQ(a.memory.unit, b.memory.unit);
  EXPECT_EQ(a.memory.phase, b.memory.phase);
  ASSERT_EQ(a.memory.categories.size(), b.memory.categories.size());
  for (std::size_t c = 0; c < a.memory.categories.size(); ++c) {
    EXPECT_EQ(a.memory.categories[c].category, b.memory.categories[c].category);
    EXPECT_EQ(a.memory.categories[c].bytes, b.memory.categories[c].bytes);
  }
  ASSERT_EQ(a.comm.size(), b.comm.size());
  for (std::size_t c = 0; c < a.comm.size(); ++c) {
    EXPECT_EQ(a.comm[c].busy, b.comm[c].busy);
    EXPECT_EQ(a.comm[c].exposed, b.comm[c].exposed);
  }
  ASSERT_EQ(a.exposed.size(), b.exposed.size());
  for (std::size_t c = 0; c < a.exposed.size(); ++c) {
    EXPECT_EQ(a.exposed[c].cause, b.exposed[c].cause);
    EXPECT_EQ(a.exposed[c].time, b.exposed[c].time);
  }
  ASSERT_EQ(a.oom.has_value(), b.oom.has_value());
  if (a.oom) {
    EXPECT_EQ(a.oom->instruction.value, b.oom->instruction.value);
    EXPECT_EQ(a.oom->requested, b.oom->requested);
    EXPECT_EQ(a.oom->free, b.oom->free);
  }
  ASSERT_EQ(a.iterations.size(), b.iterations.size());
  for (std::size_t n = 0; n < a.iterations.size(); ++n) {
    const IterationResult &x = a.iterations[n], &y = b.iterations[n];
    EXPECT_EQ(x.step_time, y.step_time);
    EXPECT_EQ(x.exposed_comm, y.exposed_comm);
    EXPECT_EQ(x.host_wait, y.host_wait);
    EXPECT_EQ(x.compute, y.compute);
    EXPECT_EQ(x.idle, y.idle);
    EXPECT_EQ(x.peak_allocated, y.peak_allocated);
    EXPECT_EQ(x.peak_active, y.peak_active);
    EXPECT_EQ(x.peak_reserved, y.peak_reserved);
    EXPECT_EQ(x.peak_requested, y.peak_requested);
    EXPECT_EQ(x.end_allocated, y.end_allocated);
    EXPECT_EQ(x.end_active, y.end_active);
    EXPECT_EQ(x.end_reserved, y.end_reserved);
    EXPECT_EQ(x.end_requested, y.end_requested);
    EXPECT_EQ(x.alloc_retries, y.alloc_retries);
    ASSERT_EQ(x.phases.size(), y.phases.size());
    for (std::size_t p = 0; p < x.phases.size(); ++p) {
      EXPECT_EQ(x.phases[p].name, y.phases[p].name);
      EXPECT_EQ(x.phases[p].peak_allocated, y.phases[p].peak_allocated);
      EXPECT_EQ(x.phases[p].end_allocated, y.phases[p].end_allocated);
      EXPECT_EQ(x.phases[p].peak_reserved, y.phases[p].peak_reserved);
    }
  }
}

/// One bench over all points against parts made for each alone; how many fit.
inline std::size_t expect_alone(const SweepGrid& over, const Job& base) {
  SharedParts shared;
  Workbench bench(shared);
  bench.keep_tapes();
  std::size_t fitting = 0;
  for (const std::size_t k : over.sharing_order()) {
    SCOPED_TRACE("point " + std::to_string(k));
    const auto job = over.job_of(k, base);
    if (!job) continue;
    const auto kept = bench.predict(*job);
    const auto parts = prepare(*job);
    if (!parts) {
      EXPECT_EQ(kept.error(), parts.error());
      continue;
    }
    SimulateOptions options = simulate_options(*job);
    options.per_kernel = false;
    const auto plain = simulate(parts->plan, parts->model, parts->lowered, *job, parts->profile, options);
    EXPECT_EQ(kept.has_value(), plain.has_value());
    if (!kept || !plain) continue;
    fitting += plain->fits ? 1 : 0;
    expect_same(*kept, *plain);
  }
  return fitting;
}

}  // namespace foreshard
