// A sequence that ranks share: the rank's model and what its ring does.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/lowering/lowering.h"
#include "core/mesh/rank_model.h"
#include "core/model/families/config_model.h"
#include "core/plan/build_plan.h"

namespace foreshard {
namespace {

constexpr std::int64_t kRanks = 4, kLayers = 2;

Job job_of(std::int64_t rank) {
  Job job;
  job.model.batch = 2;
  job.model.seq = 64;
  job.model.seq_given = true;
  job.model.loss = "cross_entropy_fp32";
  job.mesh.context = kRanks;
  job.cluster.world_size = 8;
  job.cluster.rank = rank;
  return job;
}

Model whole_model(const Job& job) {
  const auto config = nlohmann::json::parse(R"({"model_type": "titan_llama", "dim": 48, "n_layers": 2, "n_heads": 6,
    "n_kv_heads": 6, "ffn": 56, "vocab_size": 101, "max_seq": 64})");
  ProgramOptions program;
  program.compute_dtype = DType::BFloat16;
  return model_from_config_json(config, "titan", rank_model_options(job), program).value();
}

struct Meetings {
  std::int64_t forward = 0, backward = 0;
};
Meetings meetings_of(const Model& model, KernelCollective kind) {
  const std::vector<bool> trainable(model.params.size(), true);
  const auto end = static_cast<std::int32_t>(model.ops.size());
  const LoweredProgram lowered = lower(model, {{0, end, false, -1}}, trainable).value();
  Meetings met;
  const SegmentTemplate& only = lowered.templates.front();
  for (const Kernel& kernel : only.forward.kernels) met.forward += kernel.collective == kind ? 1 : 0;
  for (const Kernel& kernel : only.backward.kernels) met.backward += kernel.collective == kind ? 1 : 0;
  return met;
}

TEST(ContextModel, KeysAreGatheredOnceAndTheirGradientsGoRound) {
  const Job job = job_of(1);
  const Model model = rank_model(whole_model(job), job).value();
  ASSERT_EQ(model.mesh.size(), 1U);
  EXPECT_EQ(model.mesh.front().ranks, (std::vector<std::int32_t>{0, 1, 2, 3}));
  const Meetings gathers = meetings_of(model, KernelCollective::AllGather);
  const Meetings turns = meetings_of(model, KernelCollective::Exchange);
  EXPECT_EQ(gathers.forward, kLayers);
  EXPECT_EQ(gathers.backward, kLayers);
  EXPECT_EQ(turns.forward, 0);
  EXPECT_EQ(turns.backward, kRanks * kLayers);
}

// context_parallel() resizes buffers in place, beside a clone to restore; torchtitan cuts inputs alone.
TEST(ContextModel, BuffersAreClonedOnlyWhereTheyAreResized) {
  Job job = job_of(1);
  const auto held = [&] {
    std::vector<std::string> names;
    const Model model = rank_model(whole_model(job), job).value();
    for (const ValueId id : model.inputs) names.push_back(model.values[id.index()].name);
    return std::count_if(names.begin(), names.end(),
                         [](const std::string& name) { return name.ends_with(".original"); });
  };
  EXPECT_EQ(held(), 1);
  job.mesh.context_buffers = "whole";
  EXPECT_EQ(held(), 0);
}

/// A dispatch mode sees one operator: the ring runs in DTensor's handler below it.
TEST(ContextModel, AttentionThatIsSavedByNameDoesNotGoRoundAgain) {
  const Job job = job_of(1);
  const Model model = rank_model(whole_model(job), job).value();
  const std::vector<bool> trainable(model.params.size(), true);
  const auto end = static_cast<std::int32_t>(model.ops.size());
  for (const bool saved : {true, false}) {
    LoweringOptions options;
    options.saved.names = {saved ? "aten._scaled_dot_product_flash_attention.default" : "aten.mm.default"};
    const LoweredProgram lowered = lower(model, {{0, end, true, 0}}, trainable, options).value();
    std::int64_t gathers = 0;
    for (const Kernel& kernel : lowered.templates.front().recompute.kernels)
      gathers += kernel.collective == KernelCollective::AllGather ? 1 : 0;
    EXPECT_EQ(gathers, saved ? 0 : kLayers);
  }
}

TEST(ContextModel, ARingPassesKeysOnInEachTurnButTheLast) {
  Job job = job_of(1);
  job.mesh.context_rotate = "alltoall";
  const Model model = rank_model(whole_model(job), job).value();
  const Meetings turns = meetings_of(model, KernelCollective::Exchange);
  EXPECT_EQ(turns.forward, (kRanks - 1) * kLayers);
  EXPECT_EQ(turns.backward, (2 * kRanks - 1) * kLayers);
}

// Keys of other ranks lie before a rank's queries, or are left out. In both directions it is FlashAttention's kernel.
TEST(ContextModel, OnlyTheFirstTurnIsMasked) {
  const Job job = job_of(1);
  const Model model = rank_model(whole_model(job), job).value();
  const std::vector<bool> trainable(model.params.size(), true);
  const auto end = static_cast<std::int32_t>(model.ops.size());
  const LoweredProgram lowered = lower(model, {{0, end, false, -1}}, trainable).value();
  const SegmentTemplate& only = lowered.templates.front();
  for (const KernelList* list : {&only.forward, &only.backward}) {
    std::vector<bool> causal;
    for (const Kernel& kernel : list->kernels) {
      if (kernel.kind != KernelClass::Attention) continue;
      EXPECT_EQ(kernel.attention, AttentionKind::Flash);
      EXPECT_EQ(kernel.backward, list == &only.backward);
      causal.push_back(kernel.causal);
    }
    EXPECT_EQ(causal, (std::vector<bool>{true, false, false, false, true, false, false, false})) << "of two layers";
  }
}

TEST(ContextModel, OnlyTheLastRankKeepsTheQuerysLayout) {
  const auto copies = [](const Model& model) {
    return std::count_if(model.ops.begin(), model.ops.end(),
                         [](const Op& op) { return op.name == "aten.clone.default"; });
  };
  Job job = job_of(1);
  const std::int64_t before = copies(whole_model(job));
  EXPECT_EQ(copies(rank_model(whole_model(job), job).value()), before + kLayers);
  job.cluster.rank = 3;
  EXPECT_EQ(copies(rank_model(whole_model(job), job).value()), before);
  EXPECT_TRUE(build_plan(rank_model(whole_model(job), job).value(), job).has_value());
}

/// torchtitan's mesh of replicas, shards and parts of the sequence; recorded: y56 in tests/data/meshes.
TEST(ContextModel, ASequenceIsSharedInsideAReplica) {
  Job job = job_of(1);
  job.fsdp.runtime = Runtime::Fsdp2;
  job.fsdp.strategy = Strategy::HybridShard;
  job.cluster.shard_group = kRanks;
  const Model model = rank_model(whole_model(job), job).value();
  const auto plan = build_plan(model, job);
  ASSERT_TRUE(plan.has_value()) << to_text(plan.error());
  EXPECT_EQ(plan->groups.shard, (std::vector<std::int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(plan->groups.replicate, (std::vector<std::int32_t>{1, 5}));
  job.cluster.shard_group = 2;
  EXPECT_EQ(check_mesh(job).error().place, "mesh.context");
  job.cluster.shard_group = 0;  // a node's ranks
  job.cluster.ranks_per_node = 2;
  EXPECT_EQ(check_mesh(job).error().place, "mesh.context");
  job.cluster.ranks_per_node = 4;
  EXPECT_TRUE(check_mesh(job).has_value());
}

/// Nothing shards: DDP sums the gradients of all ranks, or nobody does.
TEST(ContextModel, NothingNeedsToShardIt) {
  Job job = job_of(1);
  job.fsdp.runtime = Runtime::None;
  job.fsdp.mixed_precision = MixedPrecision::none();
  job.train.clip_grad_norm = 0;
  const auto reductions = [&] {
    const auto plan = build_plan(rank_model(whole_model(job), job).value(), job);
    const auto& all = plan.value().iterations.back().instructions;
    return std::count_if(all.begin(), all.end(),
                         [](const Instruction& i) { return i.kind == InstructionKind::AllReduce; });
  };
  EXPECT_GT(reductions(), 0);
  job.cluster.world_size = kRanks;
  job.fsdp.wrap.root = false;
  EXPECT_EQ(reductions(), 0);
  job.mesh.tensor = 2;  // beside cut layers DDP has no place
  job.cluster.world_size = 2 * kRanks;
  EXPECT_TRUE(rank_model(whole_model(job), job));
  job.fsdp.wrap.root = true;
  EXPECT_FALSE(rank_model(whole_model(job), job));
}

TEST(ContextModel, RefusesLengthsAndProgramsThatDoNotFit) {
  Job job = job_of(0);
  const Model model = whole_model(job);
  job.model.seq = 60;
  const auto uneven = check_mesh(job);
  ASSERT_FALSE(uneven.has_value());
  EXPECT_EQ(uneven.error().place, "mesh.context");
  job.model.seq = 128;
  const auto other = rank_model(model, job);
  ASSERT_FALSE(other.has_value());
  EXPECT_NE(other.error().message.find("built for a length"), std::string::npos);
}

}  // namespace
}  // namespace foreshard
