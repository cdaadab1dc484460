#include "core/job/export/export_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "core/job/export/export_tree.h"
#include "core/job/import/import_job.h"
#include "core/job/import/import_tree.h"
#include "core/job/job_file.h"

namespace foreshard {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr ExportTool kAll[] = {ExportTool::Torchtitan, ExportTool::Accelerate, ExportTool::Transformers,
                               ExportTool::Trl};

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::int64_t below(std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random_); }
  bool coin() { return below(2) == 1; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + below(static_cast<std::int64_t>(values.size())));
  }

 private:
  std::mt19937_64 random_;
};

void draw_training(Dice& dice, Job& job) {
  job.model.batch = 1 + dice.below(64);
  job.model.seq = 1 + dice.below(100'000);
  job.train.steps = 1 + dice.below(1'000'000);
  job.train.seed = dice.below(1 << 30);
  job.train.micro_batches = 1 + dice.below(16);
  job.train.clip_grad_norm = dice.one_of({0.0, 1.0, 0.3});
  OptimizerOptions& optimizer = job.train.optimizer;
  optimizer.lr = dice.one_of({3e-4, 1e-5, 2.5e-7, 1.0});
  optimizer.beta1 = dice.one_of({0.9, 0.8});
  optimizer.beta2 = dice.one_of({0.95, 0.999});
  optimizer.eps = dice.one_of({1e-8, 1e-6});
  optimizer.weight_decay = dice.one_of({0.0, 0.1});
  optimizer.impl = dice.one_of({OptimizerImpl::Foreach, OptimizerImpl::Fused});
  job.train.schedule.name = dice.one_of<const char*>({"constant", "cosine"});
  if (job.train.schedule.name == "cosine") job.train.schedule.min_ratio = dice.one_of({0.0, 0.1});
  job.train.schedule.warmup = dice.below(500);
  if (dice.coin()) job.checkpointing.policy = CheckpointPolicy::Block;
}

void draw_cluster(Dice& dice, Job& job) {
  job.cluster.ranks_per_node = dice.one_of<std::int64_t>({4, 8});
  job.cluster.world_size = job.cluster.ranks_per_node * dice.one_of<std::int64_t>({1, 2, 6});
}

/// Of the jobs that torchtitan's TOML can say.
Job titan_job(Dice& dice) {
  Job job;
  draw_training(dice, job);
  draw_cluster(dice, job);
  job.fsdp.runtime = dice.one_of({Runtime::Fsdp2, Runtime::Fsdp2, Runtime::None});
  if (job.fsdp.runtime == Runtime::Fsdp2) {
    job.mesh.tensor = dice.one_of<std::int64_t>({1, 2, 4});
    if (job.mesh.tensor == job.cluster.world_size) job.mesh.tensor = 2;  // nothing is sharded there, and told
    if (dice.coin()) job.fsdp.reshard_after_forward.kind = ReshardAfterForward::Kind::False;
    // A shard group of one rank is plain data parallel training there, and told.
    const bool groups = job.mesh.tensor < job.cluster.ranks_per_node;
    if (groups && job.cluster.world_size > job.cluster.ranks_per_node && dice.coin())
      job.fsdp.strategy = Strategy::HybridShard;
    job.fsdp.cpu_offload = dice.coin();
    const bool alone = job.fsdp.strategy == Strategy::FullShard;
    if (alone && job.mesh.tensor == 1 && dice.coin()) job.mesh.expert = job.cluster.ranks_per_node;
    if (alone && job.mesh.expert == 1 && job.cluster.world_size / job.mesh.tensor % 2 == 0 && dice.coin()) {
      job.mesh.context = 2;
      job.mesh.context_rotate = dice.coin() ? "alltoall" : "allgather";
      job.mesh.context_buffers = "whole";
    }
  }
  if (job.mesh.tensor > 1) job.mesh.loss_parallel = dice.coin();
  job.fsdp.mixed_precision.param = dice.coin() ? std::optional(DType::BFloat16) : std::nullopt;
  job.fsdp.mixed_precision.reduce = dice.one_of({DType::BFloat16, DType::Float32});
  if (dice.coin()) job.model.dtype = DType::BFloat16;
  if (dice.coin()) {
    job.checkpointing.policy = CheckpointPolicy::EveryK;
    job.checkpointing.k = 1 + dice.below(9);
  }
  job.model.float8 = dice.one_of<const char*>({"none", "tensorwise", "rowwise", "rowwise_with_gw_hp"});
  job.fsdp.float8_all_gather = dice.one_of<const char*>({"none", "dynamic", "precomputed"});
  if (dice.coin()) job.train.checkpoint = {"checkpoints", 1 + dice.below(1000), dice.below(10)};
  if (dice.coin()) job.train.optimizer.impl = OptimizerImpl::ForLoop;
  return job;
}

void draw_plugin(Dice& dice, Job& job) {
  job.fsdp.runtime = dice.one_of({Runtime::Fsdp1, Runtime::Fsdp2});
  if (job.fsdp.runtime == Runtime::Fsdp1) {
    job.fsdp.strategy = dice.one_of({Strategy::FullShard, Strategy::ShardGradOp, Strategy::NoShard,
                                     Strategy::HybridShard, Strategy::HybridShardZero2});
    job.fsdp.backward_prefetch = dice.one_of({BackwardPrefetch::Pre, BackwardPrefetch::Post, BackwardPrefetch::None});
    job.fsdp.forward_prefetch = dice.coin();
    job.fsdp.use_orig_params = dice.coin();
  } else if (dice.coin()) {
    job.fsdp.reshard_after_forward.kind = ReshardAfterForward::Kind::False;
  }
  job.fsdp.cpu_offload = dice.coin();
  job.fsdp.wrap.policy = dice.one_of({WrapPolicyKind::ModuleClass, WrapPolicyKind::Size, WrapPolicyKind::None});
  if (job.fsdp.wrap.policy == WrapPolicyKind::ModuleClass && dice.coin())
    job.fsdp.wrap.classes = {"LlamaDecoderLayer", "LlamaMLP"};
  if (job.fsdp.wrap.policy == WrapPolicyKind::Size) job.fsdp.wrap.min_num_params = 1 + dice.below(1 << 30);
  const auto dtype = dice.one_of<std::optional<DType>>({DType::BFloat16, DType::Float16, std::nullopt});
  MixedPrecision& precision = job.fsdp.mixed_precision;
  precision.param = precision.reduce = dtype;
  (job.fsdp.runtime == Runtime::Fsdp1 ? precision.buffer : precision.output) = dtype;
  if (job.fsdp.runtime == Runtime::Fsdp1) job.model.autocast = dtype;
  job.model.float32_outputs = job.model.autocast.has_value();
}

Job accelerate_job(Dice& dice) {
  Job job;
  draw_cluster(dice, job);
  draw_plugin(dice, job);
  if (dice.coin()) job.checkpointing.policy = CheckpointPolicy::Block;
  if (job.fsdp.runtime == Runtime::Fsdp2 && job.cluster.world_size > job.cluster.ranks_per_node && dice.coin()) {
    job.fsdp.strategy = Strategy::HybridShard;
    if (dice.coin()) job.cluster.shard_group = job.cluster.ranks_per_node / 2;
  }
  return job;
}

Job trainer_job(Dice& dice, bool trl) {
  Job job;
  draw_training(dice, job);
  draw_cluster(dice, job);
  draw_plugin(dice, job);
  job.model.source = dice.one_of<const char*>({"meta-llama/Llama-3.1-8B", "here/config.json", "here"});
  if (job.fsdp.runtime == Runtime::Fsdp1) job.fsdp.limit_all_gathers = trl || dice.coin();
  if (job.train.micro_batches > 1) job.train.no_sync = dice.coin();
  if (dice.below(3) == 0) job.model.loss = "fused_linear_cross_entropy";
  if (dice.coin()) job.checkpointing.reentrant = job.checkpointing.policy == CheckpointPolicy::Block;
  if (!job.fsdp.mixed_precision.param) job.model.dtype = dice.one_of<std::optional<DType>>({DType::BFloat16, {}});
  if (trl && dice.coin()) job.model.attention = "eager";
  if (dice.below(4) == 0) {
    job.train.optimizer = {};
    job.train.optimizer.name = OptimizerKind::Sgd;
  }
  return job;
}

Job job_for(ExportTool tool, Dice& dice) {
  switch (tool) {
    case ExportTool::Torchtitan: return titan_job(dice);
    case ExportTool::Accelerate: return accelerate_job(dice);
    case ExportTool::Transformers: return trainer_job(dice, false);
    case ExportTool::Trl: break;
  }
  return trainer_job(dice, true);
}

TEST(ExportJob, JobsThatAFormatCanSayComeBackWhole) {
  for (const ExportTool tool : kAll) {
    Dice dice(17);
    for (int round = 0; round < 300; ++round) {
      Job job = job_for(tool, dice);
      ASSERT_TRUE(validate_job(job)) << job_to_toml(job);
      const auto exported = export_job(job, tool);
      ASSERT_TRUE(exported) << to_text(exported.error());
      const ExportedFile& file = exported->files.front();
      ASSERT_THAT(file.untold, IsEmpty()) << file.text << job_to_toml(job);
      const auto back = import_job(file.text, file.name);
      ASSERT_TRUE(back) << to_text(back.error()) << file.text;
      for (const std::string& note : back->notes) EXPECT_THAT(note, StartsWith("model ")) << file.text;
      EXPECT_EQ(back->job.fsdp.mixed_precision, job.fsdp.mixed_precision) << file.text;
      EXPECT_EQ(back->job.checkpointing, job.checkpointing) << file.text;
      EXPECT_EQ(back->job.model.float8, job.model.float8) << file.text;
      EXPECT_EQ(gathers_float8(back->job), gathers_float8(job)) << file.text;
      if (gathers_float8(job)) EXPECT_EQ(back->job.fsdp.float8_all_gather, job.fsdp.float8_all_gather) << file.text;
      EXPECT_EQ(back->job.model.loss, job.model.loss) << file.text;
      EXPECT_EQ(back->job.train.micro_batches, job.train.micro_batches) << file.text;
    }
  }
}

TEST(ExportJob, TransformersHasTwoOfTorchsOtherOptimizers) {
  Job job;
  job.model.source = "config.json";
  const auto untold = [&job](OptimizerKind name) {
    job.train.optimizer.name = name;
    return export_job(job, ExportTool::Transformers)->files.front().untold;
  };
  EXPECT_THAT(untold(OptimizerKind::RMSprop), Not(Contains(HasSubstr("optimizer.name"))));
  EXPECT_THAT(untold(OptimizerKind::Adamax), Contains(HasSubstr("train.optimizer.name = \"adamax\"")));
}

TEST(ExportJob, WhatAFormatCannotSayIsToldByItsKey) {
  Job job;
  job.model.source = "config.json";
  job.fsdp.overrides.push_back({.units = {""}, .reshard_after_forward = ReshardAfterForward{}});
  job.fsdp.wrap.policy = WrapPolicyKind::Units;
  job.fsdp.wrap.units = {{"layers.*"}};
  job.checkpointing.policy = CheckpointPolicy::Selective;
  job.checkpointing.units = {"layers.1"};
  for (const ExportTool tool : kAll) {
    const auto exported = export_job(job, tool);
    ASSERT_TRUE(exported);
    const std::vector<std::string>& untold = exported->files.front().untold;
    for (const char* key : {"fsdp.overrides = ", "fsdp.wrap.policy = ", "fsdp.wrap.units = ", "checkpointing.policy = ",
                            "checkpointing.units = "})
      EXPECT_THAT(untold, Contains(StartsWith(key))) << export_tool_name(tool);
    if (tool != ExportTool::Torchtitan) {
      EXPECT_THAT(untold, Contains(HasSubstr("fsdp.mixed_precision.reduce = \"float32\" is not in")));
    }
    if (tool != ExportTool::Transformers) {
      EXPECT_THAT(exported->files.front().text, HasSubstr("# fsdp.wrap.units"));
    }
  }
  job = Job{};
  job.fsdp.runtime = Runtime::Planned;
  const auto planned = export_job(job, ExportTool::Trl);
  ASSERT_TRUE(planned);
  EXPECT_THAT(planned->files.front().untold, Contains(HasSubstr("foreshard schedule --emit fsdp2")));
}

TEST(ExportJob, TheCommandSaysRanksAndAllocator) {
  Job job;
  job.cluster.world_size = 16;
  job.allocator.expandable_segments = true;
  const auto exported = export_job(job, ExportTool::Torchtitan);
  ASSERT_TRUE(exported);
  EXPECT_THAT(exported->start, StartsWith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun"));
  EXPECT_THAT(exported->start, HasSubstr("--nproc_per_node 8 --nnodes 2"));
  EXPECT_THAT(exported->files.front().untold, Not(Contains(HasSubstr("allocator"))));
}

TEST(ExportJob, ToolsAreNamed) {
  const auto tools = parse_export_tools("trl,torchtitan,trl");
  ASSERT_TRUE(tools);
  EXPECT_THAT(*tools, testing::ElementsAre(ExportTool::Trl, ExportTool::Torchtitan));
  const auto none = parse_export_tools("torchtitan,deepspeed");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().got, "deepspeed");
}

TEST(ExportTree, WhatIsWrittenReadsBackEqual) {
  JobValue tree;
  const std::vector<std::string> texts = {"yes",       "",    "a b", "1e5", "x: y",   "\"q\"",
                                          "tab\there", "0.5", "-",   "~",   "m/L-3.1"};
  for (std::size_t t = 0; t < texts.size(); ++t)
    put_in_tree(tree, "a.t" + std::to_string(t), tree_text_value(texts[t]));
  put_in_tree(tree, "a.list", tree_texts(texts));
  put_in_tree(tree, "b.c.small", tree_number(1e-7));
  put_in_tree(tree, "b.c.whole", tree_number(3.0));
  put_in_tree(tree, "b.c.flag", tree_flag(false));
  for (const auto& [text, name] : {std::pair{write_yaml(tree, {"top"}), "x.yaml"},
                                   {write_json(tree), "x.json"},
                                   {write_toml(tree, {"top"}), "x.toml"}}) {
    const auto back = read_import_tree(text, name, import_syntax(text, name));
    ASSERT_TRUE(back) << to_text(back.error()) << text;
    for (std::size_t t = 0; t < texts.size(); ++t) {
      const JobValue* value = find_in_tree(*back, "a.t" + std::to_string(t));
      ASSERT_NE(value, nullptr) << text;
      EXPECT_EQ(value->kind, JobValue::Kind::Text) << text;
      EXPECT_EQ(value->text, texts[t]) << text;
      EXPECT_EQ(find_in_tree(*back, "a.list")->items.at(t).text, texts[t]) << text;
    }
    EXPECT_DOUBLE_EQ(find_in_tree(*back, "b.c.small")->number, 1e-7);
    EXPECT_EQ(find_in_tree(*back, "b.c.whole")->kind, JobValue::Kind::Float);
    EXPECT_FALSE(find_in_tree(*back, "b.c.flag")->boolean);
  }
}

TEST(ExportJob, ActivationOffloadIsTrlsAndReadBack) {
  Job job;
  job.model.source = "config.json";
  job.checkpointing.policy = CheckpointPolicy::Block;
  job.checkpointing.offload_activations = true;
  const auto trl = export_job(job, ExportTool::Trl);
  ASSERT_TRUE(trl) << to_text(trl.error());
  EXPECT_THAT(trl->files.front().text, HasSubstr("activation_offloading: true"));
  EXPECT_THAT(trl->files.front().untold, Not(Contains(HasSubstr("offload_activations"))));
  const auto again = import_job(trl->files.front().text, "trl.yaml");
  ASSERT_TRUE(again) << to_text(again.error());
  EXPECT_TRUE(again->job.checkpointing.offload_activations);
  for (const ExportTool tool : {ExportTool::Torchtitan, ExportTool::Transformers}) {
    const auto other = export_job(job, tool);
    ASSERT_TRUE(other) << to_text(other.error());
    EXPECT_THAT(other->files.front().untold, Contains(StartsWith("checkpointing.offload_activations")));
  }
}

/// TRL joins packed rows of several sequences to one; pieces of one text stay rows.
TEST(ExportJob, PackedRowsAreTrlsAndReadBack) {
  Job job;
  job.model.source = "config.json";
  job.model.batch = 1;
  job.model.seq = 4096;
  job.model.packed = true;
  const auto packed = export_job(job, ExportTool::Trl);
  ASSERT_TRUE(packed) << to_text(packed.error());
  EXPECT_THAT(packed->files.front().text, HasSubstr("packing_strategy: bfd"));
  EXPECT_THAT(packed->files.front().untold, Not(Contains(HasSubstr("model."))));
  job.model.batch = 2;
  const auto joined = export_job(job, ExportTool::Trl);
  ASSERT_TRUE(joined) << to_text(joined.error());
  EXPECT_THAT(joined->files.front().untold, Contains(StartsWith("model.batch")));
  const auto again = import_job(joined->files.front().text, "trl.yaml");
  ASSERT_TRUE(again) << to_text(again.error());
  EXPECT_TRUE(again->job.model.packed);
  EXPECT_EQ(again->job.model.batch, 1);
  EXPECT_EQ(again->job.model.seq, 8192);
  job.model.packed = false;
  const auto plain = export_job(job, ExportTool::Trl);
  ASSERT_TRUE(plain) << to_text(plain.error());
  EXPECT_THAT(plain->files.front().text, HasSubstr("packing_strategy: wrapped"));
  EXPECT_THAT(plain->files.front().untold, Not(Contains(StartsWith("model.batch"))));
}

}  // namespace
}  // namespace foreshard
