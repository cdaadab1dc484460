#include "sim/search/explain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <numeric>

#include "core/job/job_file.h"
#include "sim/search/mesh_degrees.h"
#include "sim/search/sweep_axes.h"
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

TEST_F(ExplainTest, CopyEnginesWorkAgainstInterferenceInsideANode) {
  const auto works = [](const Explanation& e) {
    return std::any_of(e.changes.begin(), e.changes.end(), [](const ChangeEffect& change) {
      return change.cause == ExposureCause::Interference &&
             change.set == std::vector<std::string>{"fsdp.symmetric_memory=true"};
    });
  };
  job.cluster.world_size = 8;
  std::ofstream(job.model.source) << R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 3, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 1003,
    "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 8192})";
  job.model.seq = 4096;  // products beside which gathers run
  job.fsdp.mixed_precision.param = DType::BFloat16;
  EXPECT_TRUE(works(explained()));
  job.fsdp.symmetric_memory = true;
  EXPECT_FALSE(works(explained())) << "they work already";
  job.fsdp.symmetric_memory = false;
  job.cluster.world_size = 16;
  EXPECT_FALSE(works(explained())) << "over nodes the network carries it";
}

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

// Six heads, two of keys: two ranks divide them, four and eight do not.
TEST_F(ExplainTest, DegreesOfAMeshThatDivideAreTriedAndTheOthersNamed) {
  job.fsdp.runtime = Runtime::Fsdp2;
  job.fsdp.allow_traps = {45};
  const auto prepared = prepare(job);
  ASSERT_TRUE(prepared.has_value());
  MeshDegrees degrees = mesh_degrees(job, prepared->model, prepared->profile);
  ASSERT_EQ(degrees.axes.size(), 2u);  // no experts: without a word
  EXPECT_EQ(degrees.axes[0].key, "mesh.tensor");
  EXPECT_EQ(degrees.axes[0].degrees, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(degrees.axes[1].key, "mesh.context");
  EXPECT_EQ(degrees.axes[1].degrees, (std::vector<std::int64_t>{2, 4, 8}));
  ASSERT_EQ(degrees.refused.size(), 1u);
  EXPECT_EQ(degrees.refused[0].rfind("mesh.tensor = 4, 8: ", 0), 0u) << degrees.refused[0];
  EXPECT_EQ(explained().not_tried, degrees.refused);
  job.model.seq = 68;  // twice two ranks divide it, twice four do not
  degrees = mesh_degrees(job, prepared->model, prepared->profile);
  EXPECT_EQ(degrees.axes[1].degrees, (std::vector<std::int64_t>{2}));
  ASSERT_FALSE(degrees.refused.empty());
  EXPECT_EQ(degrees.refused.back().rfind("mesh.context = 4, 8: the ranks do not divide the sequence", 0), 0u);
  job.cluster.ranks_per_node = 1;
  EXPECT_TRUE(mesh_degrees(job, prepared->model, prepared->profile).axes.empty());
}

TEST_F(ExplainTest, ASweepThatChoosesItsAxesVariesDegrees) {
  job.fsdp.runtime = Runtime::Fsdp2;
  const auto prepared = prepare(job);
  ASSERT_TRUE(prepared.has_value());
  const auto given = parse_sweep_axis("mesh.context=1,2");
  ASSERT_TRUE(given.has_value());
  for (const bool own : {false, true}) {
    std::vector<SweepAxis> over;
    if (own) over.push_back(*given);
    const auto chosen = choose_sweep_axes(job, prepared->model, prepared->profile, over);
    ASSERT_TRUE(chosen.has_value());
    std::vector<std::string> varied;
    for (const SweepAxis& axis : chosen->axes) {
      if (!axis.key.starts_with("mesh.")) continue;
      varied.push_back(axis.key);
      for (const SweepValue& value : axis.values) varied.push_back(value.text);
    }
    EXPECT_EQ(varied, own ? (std::vector<std::string>{"mesh.tensor", "1", "2"})
                          : (std::vector<std::string>{"mesh.tensor", "1", "2", "mesh.context", "1", "2", "4", "8"}));
    EXPECT_EQ(chosen->refused.size(), 1u);
  }
}

TEST_F(ExplainTest, AnotherDegreeComesWithAsManyTokens) {
  EXPECT_EQ(settings_of_degree(job, "mesh.tensor", 2), (std::vector<std::string>{"mesh.tensor=2", "model.batch=6"}));
  EXPECT_EQ(settings_of_degree(job, "mesh.expert", 2), (std::vector<std::string>{"mesh.expert=2"}));
  job.mesh.context = 2;
  EXPECT_TRUE(settings_of_degree(job, "mesh.context", 1).empty());  // three sequences of two ranks
  job.model.batch = 4;
  EXPECT_EQ(settings_of_degree(job, "mesh.context", 1), (std::vector<std::string>{"mesh.context=1", "model.batch=2"}));
  job.cluster.world_size = 8;
  job.fsdp.runtime = Runtime::Fsdp2;
  job.train.clip_grad_norm = 0;
  const auto changes = explained().changes;
  for (const ChangeEffect& change : changes) EXPECT_GT(change.removed_time, 0);
}

}  // namespace
}  // namespace foreshard
