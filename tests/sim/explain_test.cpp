#include "sim/search/explain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <numeric>

#include "core/job/job_file.h"
#include "tests/sim/hand_made_plan.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

using enum InstructionKind;

constexpr const char* kConfig = R"({"model_type": "llama", "hidden_size": 192, "intermediate_size": 520,
  "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 1003,
  "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 512})";

class ExplainTest : public ::testing::Test {
 protected:
  ExplainTest() : path_(testing::temporary_path("explain_config.json")) {
    std::ofstream(path_) << kConfig;
    job.model.source = path_;
    job.model.batch = 3;
    job.model.seq = 96;
    job.model.seq_given = true;
    job.cluster.world_size = 16;
  }
  ~ExplainTest() override { std::remove(path_.c_str()); }

  Explanation explained() const {
    const auto prepared = prepare(job);
    EXPECT_TRUE(prepared.has_value()) << (prepared ? "" : to_text(prepared.error()));
    if (!prepared) return {};
    auto explanation = explain(job, *prepared);
    EXPECT_TRUE(explanation.has_value());
    return explanation ? *explanation : Explanation{};
  }
  static bool has_need(const Explanation& e, int need) {
    return std::any_of(e.findings.begin(), e.findings.end(), [&](const Finding& f) { return f.need == need; });
  }

  Job job;

 private:
  std::string path_;
};

TEST_F(ExplainTest, HoldersAddUpToThePeakOfEachCategory) {
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2, Runtime::None}) {
    job.fsdp.runtime = runtime;
    const auto prepared = prepare(job);
    ASSERT_TRUE(prepared.has_value());
    SimulateOptions options;
    options.holders = true;
    const auto p = simulate(prepared->plan, prepared->model, prepared->lowered, job, prepared->profile, options);
    ASSERT_TRUE(p.has_value());
    Bytes all = 0;
    for (const CategoryBytes& category : p->memory.categories) {
      Bytes held = 0;
      for (const MemoryHolder& holder : p->memory.holders)
        held += holder.category == category.category ? holder.bytes : 0;
      EXPECT_EQ(held, category.bytes) << category.category;
      all += held;
    }
    EXPECT_EQ(all, p->memory.allocated);
    for (std::size_t k = 1; k < p->memory.holders.size(); ++k)
      EXPECT_GE(p->memory.holders[k - 1].bytes, p->memory.holders[k].bytes);
  }
}

TEST_F(ExplainTest, AskingForHoldersChangesNoNumber) {
  const auto prepared = prepare(job);
  ASSERT_TRUE(prepared.has_value());
  SimulateOptions with;
  with.holders = true;
  const auto a = simulate(prepared->plan, prepared->model, prepared->lowered, job, prepared->profile, {});
  const auto b = simulate(prepared->plan, prepared->model, prepared->lowered, job, prepared->profile, with);
  ASSERT_TRUE(a.has_value() && b.has_value());
  EXPECT_EQ(a->step_time_ns.value, b->step_time_ns.value);
  EXPECT_EQ(a->memory.reserved, b->memory.reserved);
  EXPECT_TRUE(a->memory.holders.empty());
}

TEST_F(ExplainTest, ShardsAndOptimizerStateBelongToTheirUnits) {
  const Explanation e = explained();
  bool shard = false, state = false;
  for (const MemoryHolder& holder : e.holders) {
    shard = shard || (holder.category == "sharded_params" && holder.unit == "model.layers.1");
    state = state || (holder.category == "optimizer_state" && holder.unit == "model.layers.1");
  }
  EXPECT_TRUE(shard);
  EXPECT_TRUE(state);
}

TEST_F(ExplainTest, EveryChangeIsWhatSimulationSaysOfIt) {
  const Explanation e = explained();
  ASSERT_FALSE(e.changes.empty());
  for (const ChangeEffect& change : e.changes) {
    EXPECT_GT(change.removed_time, 0) << change.text;
    if (change.set.empty()) continue;
    Job changed = job;
    for (const std::string& set : change.set) {
      const auto settings = parse_setting(set);
      ASSERT_TRUE(settings.has_value());
      for (const JobSetting& setting : *settings) ASSERT_TRUE(apply_setting(setting, changed).has_value());
    }
    const auto prepared = prepare(changed);
    ASSERT_TRUE(prepared.has_value());
    const auto p = simulate(prepared->plan, prepared->model, prepared->lowered, changed, prepared->profile, {});
    ASSERT_TRUE(p.has_value());
    EXPECT_EQ(e.step_time - change.removed_time, static_cast<SimDuration>(p->step_time_ns.value)) << change.text;
    EXPECT_EQ(change.peak_reserved, p->memory.reserved) << change.text;
  }
}

TEST_F(ExplainTest, ExposedCollectivesCoverTheExposedTime) {
  const Explanation e = explained();
  ASSERT_GT(e.exposed_time, 0);
  const SimDuration sum = std::accumulate(e.exposed.begin(), e.exposed.end(), SimDuration{0},
                                          [](SimDuration all, const ExposedCollective& c) { return all + c.exposed; });
  // Collectives of two communicators may run at once; each instant then counts for both.
  EXPECT_GE(sum, e.exposed_time * 95 / 100);
  EXPECT_LE(sum, e.exposed_time * 2);
}

TEST_F(ExplainTest, NothingWrappedIsNamed) {
  job.fsdp.wrap.policy = WrapPolicyKind::None;
  const Explanation e = explained();
  EXPECT_TRUE(std::any_of(e.findings.begin(), e.findings.end(), [](const Finding& f) { return f.trap == 12; }));
}

TEST_F(ExplainTest, AccumulationShowsBothBudgets) {
  EXPECT_FALSE(has_need(explained(), 9));
  job.train.micro_batches = 3;
  const Explanation e = explained();
  ASSERT_TRUE(has_need(e, 9));
}

TEST_F(ExplainTest, GathersOfACheckpointAroundUnitsAreCounted) {
  job.fsdp.runtime = Runtime::Fsdp1;
  EXPECT_FALSE(has_need(explained(), 10));
  job.checkpointing.policy = CheckpointPolicy::Block;
  job.checkpointing.reentrant = true;
  job.checkpointing.outside = true;
  EXPECT_TRUE(has_need(explained(), 10));
}

TEST_F(ExplainTest, ReplicationIsNamedWhereItIsFaster) {
  const auto step = [this](Runtime runtime) {
    Job other = job;
    other.fsdp.runtime = runtime;
    const auto prepared = prepare(other);
    return simulate(prepared->plan, prepared->model, prepared->lowered, other, prepared->profile, {})
        ->step_time_ns.value;
  };
  for (const std::int64_t ranks : {2, 8, 16}) {
    job.cluster.world_size = ranks;
    EXPECT_EQ(has_need(explained(), 13), step(Runtime::None) < step(job.fsdp.runtime)) << ranks;
  }
}

TEST_F(ExplainTest, AJobThatDoesNotFitStillSaysWhoHoldsWhat) {
  job.model.batch = 512;
  job.cluster.memory = 2 * kGiB;
  const Explanation e = explained();
  EXPECT_FALSE(e.holders.empty());
  EXPECT_TRUE(e.changes.empty());
}

/// Units "a", "b": instructions as given.
struct GatherOrder {
  testing_sim::HandMadePlan hand;
  UnitId root = hand.unit("", 100), a = hand.unit("a", 100), b = hand.unit("b", 100);

  void gather(UnitId unit) {
    hand.collective(AllGather, Stream::U, 4'000);
    hand.plan.iterations.back().instructions.back().unit = unit;
  }
  void run(UnitId unit) { hand.add(Forward, Stream::D).unit = unit; }
  std::vector<Mistarget> mistargets() { return find_mistargets(hand.plan, hand.plan.iterations.back()); }
};

TEST(FindMistargets, InOrderOfUseNothingIsWrong) {
  GatherOrder order;
  order.gather(order.root);
  order.gather(order.a);
  order.gather(order.b);
  order.run(order.a);
  order.run(order.b);
  order.run(order.root);  // around both: its own work comes last
  EXPECT_TRUE(order.mistargets().empty());
}

TEST(FindMistargets, AGatherAheadOfWhatIsNeededFirst) {
  GatherOrder order;
  order.gather(order.b);
  order.gather(order.a);
  order.run(order.a);
  order.run(order.b);
  const auto wrong = order.mistargets();
  ASSERT_EQ(wrong.size(), 1U);
  EXPECT_EQ(wrong[0].unit, order.b);
  EXPECT_EQ(wrong[0].needed_first, order.a);
  EXPECT_FALSE(wrong[0].wasted);
}

TEST(FindMistargets, AGatherWithoutUseIsWasted) {
  GatherOrder order;
  order.gather(order.a);
  order.run(order.a);
  order.gather(order.b);
  const auto wrong = order.mistargets();
  ASSERT_EQ(wrong.size(), 1U);
  EXPECT_TRUE(wrong[0].wasted);
  EXPECT_EQ(wrong[0].unit, order.b);
}

}  // namespace
}  // namespace foreshard
