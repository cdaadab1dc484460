#include "core/job/import/import_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "core/job/import/import_tree.h"
#include "core/job/job_file.h"

namespace foreshard {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

std::string read(const std::string& name) {
  std::ifstream in(std::string(FORESHARD_TEST_DATA) + "/import/" + name);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

ImportedJob import_file(const std::string& name) {
  const auto imported = import_job(read(name), name);
  EXPECT_TRUE(imported) << (imported ? "" : to_text(imported.error()));
  return imported.value_or(ImportedJob{});
}

/// What is written reads back as the job that was imported.
void expect_round_trip(const ImportedJob& imported) {
  const std::string text = write_imported_job(imported, "x", "config.json");
  const auto job = parse_job(text, "", std::vector<std::string>{});
  ASSERT_TRUE(job) << to_text(job.error()) << "\n" << text;
  Job expected = imported.job;
  if (expected.model.source.empty()) expected.model.source = "config.json";
  EXPECT_EQ(job->job, expected) << text;
}

TEST(ImportJob, ReadsAcceleratesFirstVersion) {
  const ImportedJob imported = import_file("accelerate_fsdp1.yaml");
  EXPECT_EQ(imported.dialect, "accelerate");
  const Job& job = imported.job;
  EXPECT_EQ(job.fsdp.runtime, Runtime::Fsdp1);
  EXPECT_EQ(job.fsdp.strategy, Strategy::HybridShard);
  EXPECT_EQ(job.fsdp.backward_prefetch, BackwardPrefetch::Post);
  EXPECT_TRUE(job.fsdp.forward_prefetch);
  EXPECT_FALSE(job.fsdp.use_orig_params);
  EXPECT_EQ(job.fsdp.wrap.policy, WrapPolicyKind::ModuleClass);
  EXPECT_THAT(job.fsdp.wrap.classes, ElementsAre("LlamaDecoderLayer", "LlamaRMSNorm"));
  EXPECT_EQ(job.checkpointing.policy, CheckpointPolicy::Block);
  EXPECT_EQ(job.fsdp.mixed_precision.param, DType::BFloat16);
  EXPECT_EQ(job.fsdp.mixed_precision.reduce, DType::BFloat16);
  EXPECT_EQ(job.fsdp.mixed_precision.buffer, DType::BFloat16);
  EXPECT_EQ(job.model.autocast, DType::BFloat16) << "prepare_model wraps the forward";
  EXPECT_TRUE(job.model.float32_outputs);
  EXPECT_EQ(job.cluster.world_size, 16);
  EXPECT_EQ(job.cluster.ranks_per_node, 8);
  EXPECT_THAT(imported.notes, ElementsAre("fsdp_config.fsdp_future_switch = 3 is not understood"));
  expect_round_trip(imported);
}

TEST(ImportJob, ReadsAcceleratesSecondVersion) {
  const ImportedJob imported = import_file("accelerate_fsdp2.yaml");
  const Job& job = imported.job;
  EXPECT_EQ(job.fsdp.runtime, Runtime::Fsdp2);
  EXPECT_EQ(job.fsdp.reshard_after_forward.kind, ReshardAfterForward::Kind::False);
  EXPECT_EQ(job.fsdp.wrap.policy, WrapPolicyKind::Size);
  EXPECT_EQ(job.fsdp.wrap.min_num_params, 20'000'000);
  EXPECT_TRUE(job.fsdp.cpu_offload);
  EXPECT_EQ(job.fsdp.mixed_precision.param, std::nullopt);
  EXPECT_EQ(job.cluster.world_size, 4);
  EXPECT_EQ(job.cluster.ranks_per_node, 4);
  EXPECT_TRUE(job.model.compile) << "dynamo_backend = inductor";
  EXPECT_THAT(imported.notes, testing::IsEmpty());
  expect_round_trip(imported);
}

TEST(ImportJob, AutocastIsWhereTheTrainerPutsIt) {
  const auto autocast = [](const std::string& words) {
    const auto imported = import_job("{\"per_device_train_batch_size\": 1, " + words + "}", "args.json");
    return imported.value().job.model.autocast;
  };
  EXPECT_EQ(autocast(R"("fsdp": "full_shard", "bf16": true)"), DType::BFloat16);
  EXPECT_EQ(autocast(R"("fsdp": "full_shard", "fp16": true)"), DType::Float16);
  EXPECT_EQ(autocast(R"("fsdp": "", "bf16": true)"), DType::BFloat16) << "data-parallel replicas";
  EXPECT_EQ(autocast(R"("fsdp": "full_shard")"), std::nullopt);
  EXPECT_EQ(autocast(R"("fsdp": "full_shard", "bf16": true, "torch_compile": true)"), std::nullopt);
  const char* const second = R"("fsdp": "full_shard", "bf16": true, "fsdp_config": {"version": 2})";
  EXPECT_EQ(autocast(second), std::nullopt) << "fully_shard's module is left as it is";
}

TEST(ImportJob, AnEmptyFsdpOfTransformersIsNone) {
  const auto imported = import_job(
      R"({"output_dir": "out", "per_device_train_batch_size": 2, "fsdp": [], "fsdp_config": {"min_num_params": 0, "xla": false}})",
      "args.json");
  ASSERT_TRUE(imported) << to_text(imported.error());
  EXPECT_EQ(imported->job.fsdp.runtime, Runtime::None);
}

TEST(ImportJob, TransformersOptimizersOfTorchHaveTorchsArguments) {
  const auto imported = import_job(
      R"({"output_dir": "out", "per_device_train_batch_size": 2, "optim": "adagrad", "adam_epsilon": 1e-06})",
      "args.json");
  ASSERT_TRUE(imported) << to_text(imported.error());
  EXPECT_EQ(imported->job.train.optimizer.name, OptimizerKind::Adagrad);
  EXPECT_EQ(imported->job.train.optimizer.eps, 1e-10) << "adam_epsilon is Adam's";
}

TEST(ImportJob, ReadsTransformersArguments) {
  const ImportedJob imported = import_file("training_arguments.json");
  EXPECT_EQ(imported.dialect, "Transformers");
  const Job& job = imported.job;
  EXPECT_EQ(job.model.source, "llama-3-8b");
  EXPECT_EQ(job.model.batch, 4);
  EXPECT_EQ(job.fsdp.runtime, Runtime::Fsdp1);
  EXPECT_EQ(job.fsdp.strategy, Strategy::FullShard);
  EXPECT_TRUE(job.fsdp.cpu_offload);
  EXPECT_THAT(job.fsdp.wrap.classes, ElementsAre("LlamaDecoderLayer"));
  EXPECT_EQ(job.train.micro_batches, 8);
  EXPECT_EQ(job.train.steps, 1000);
  EXPECT_TRUE(job.checkpointing.reentrant);
  EXPECT_EQ(job.train.optimizer.impl, OptimizerImpl::Fused);
  EXPECT_DOUBLE_EQ(job.train.optimizer.beta2, 0.999);
  EXPECT_EQ(job.train.schedule.name, "cosine");
  EXPECT_THAT(imported.notes, ElementsAre("group_by_length = true is not understood"));
  expect_round_trip(imported);
}

TEST(ImportJob, PackedRowsAreJoinedAndMaskedWhereTheKernelNeedsIt) {
  const auto packed = [](const std::string& attention, const std::string& more) {
    const auto imported =
        import_job("per_device_train_batch_size: 4\nmax_length: 512\npacking: true\nattn_implementation: " + attention +
                       "\n" + more,
                   "trl.yaml");
    EXPECT_TRUE(imported);
    return imported.value_or(ImportedJob{});
  };
  const ImportedJob masked = packed("sdpa", "");
  EXPECT_TRUE(masked.job.model.packed);
  EXPECT_EQ(masked.job.model.batch, 1);
  EXPECT_EQ(masked.job.model.seq, 2048);
  expect_round_trip(masked);
  for (const char* const lengths : {"flash_attention_2", "flex_attention"}) {
    const ImportedJob told = packed(lengths, "");
    EXPECT_FALSE(told.job.model.packed) << lengths;
    EXPECT_EQ(told.job.model.seq, 2048);
    EXPECT_THAT(told.notes, Contains(HasSubstr("as long as the row")));
  }
  const ImportedJob pieces = packed("sdpa", "packing_strategy: wrapped\n");
  EXPECT_FALSE(pieces.job.model.packed);
  EXPECT_EQ(pieces.job.model.batch, 4);
  EXPECT_EQ(pieces.job.model.seq, 512);
}

TEST(ImportJob, ReadsAnFsdpConfigAlone) {
  const ImportedJob imported = import_file("fsdp_config.json");
  EXPECT_EQ(imported.dialect, "Transformers");
  EXPECT_THAT(imported.job.fsdp.wrap.classes, ElementsAre("T5Block"));
  EXPECT_EQ(imported.job.fsdp.backward_prefetch, BackwardPrefetch::Post);
  EXPECT_FALSE(imported.job.fsdp.limit_all_gathers);
  EXPECT_EQ(imported.job.checkpointing.policy, CheckpointPolicy::Block);
  EXPECT_TRUE(imported.notes.empty());
}

TEST(ImportJob, ReadsTorchtitan) {
  const ImportedJob imported = import_file("torchtitan.toml");
  EXPECT_EQ(imported.dialect, "torchtitan");
  const Job& job = imported.job;
  EXPECT_EQ(job.fsdp.runtime, Runtime::Fsdp2);
  EXPECT_EQ(job.fsdp.strategy, Strategy::HybridShard);
  EXPECT_EQ(job.cluster.shard_group, 8);
  EXPECT_EQ(job.mesh.tensor, 4);
  EXPECT_EQ(job.cluster.world_size, 64);
  EXPECT_EQ(job.fsdp.reshard_after_forward.kind, ReshardAfterForward::Kind::False);
  EXPECT_EQ(job.model.batch, 2);
  EXPECT_EQ(job.model.seq, 8192);
  EXPECT_EQ(job.checkpointing.policy, CheckpointPolicy::EveryK);
  EXPECT_EQ(job.checkpointing.k, 2);
  EXPECT_DOUBLE_EQ(job.train.schedule.min_ratio, 0.1);
  EXPECT_TRUE(job.model.compile);
  EXPECT_EQ(job.train.checkpoint.dir, "");
  expect_round_trip(imported);
}

ImportedJob titan(const std::string& parallelism) {
  auto imported = import_job("[training]\nseq_len = 8192\nsteps = 10\n[parallelism]\n" + parallelism, "titan.toml");
  EXPECT_TRUE(imported.has_value()) << to_text(imported.error());
  return imported ? std::move(*imported) : ImportedJob();
}

TEST(ImportJob, ReadsTorchtitansContextAndExperts) {
  const ImportedJob context = titan(
      "data_parallel_shard_degree = 4\ntensor_parallel_degree = 2\ncontext_parallel_degree = 8\n"
      "context_parallel_rotate_method = \"alltoall\"\n");
  EXPECT_EQ(context.job.mesh.context, 8);
  EXPECT_EQ(context.job.mesh.context_rotate, "alltoall");
  EXPECT_EQ(context.job.mesh.context_buffers, "whole");
  EXPECT_EQ(context.job.mesh.tensor, 2);
  EXPECT_EQ(context.job.cluster.world_size, 64);
  expect_round_trip(context);
  const ImportedJob asynchronous = titan("tensor_parallel_degree = 2\nenable_async_tensor_parallel = true\n");
  EXPECT_TRUE(asynchronous.job.mesh.async_tensor);
  EXPECT_THAT(asynchronous.notes, testing::Not(Contains(HasSubstr("async"))));
  const ImportedJob experts = titan("data_parallel_shard_degree = 16\nexpert_parallel_degree = 8\n");
  EXPECT_EQ(experts.job.mesh.expert, 8);
  EXPECT_EQ(experts.job.cluster.world_size, 16);
  EXPECT_THAT(experts.notes, testing::Not(Contains(HasSubstr("parallel_degree"))));
  const ImportedJob both =
      titan("data_parallel_shard_degree = 8\nexpert_parallel_degree = 8\ntensor_parallel_degree = 2\n");
  EXPECT_EQ(both.job.mesh.expert, 8);
  EXPECT_EQ(both.job.mesh.tensor, 2);
  EXPECT_EQ(both.job.cluster.world_size, 16);
  const ImportedJob replicas =
      titan("data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 8\nexpert_parallel_degree = 4\n");
  EXPECT_EQ(replicas.job.mesh.expert, 4);
  EXPECT_EQ(replicas.job.fsdp.strategy, Strategy::HybridShard);
  const ImportedJob alone = titan("data_parallel_shard_degree = 1\ntensor_parallel_degree = 4\n");
  EXPECT_EQ(alone.job.fsdp.runtime, Runtime::None);  // nothing is sharded
  EXPECT_EQ(alone.job.mesh.tensor, 4);
  EXPECT_EQ(alone.job.cluster.world_size, 4);
  EXPECT_EQ(titan("data_parallel_shard_degree = 1\nexpert_parallel_degree = 4\ntensor_parallel_degree = 4\n")
                .job.fsdp.runtime,
            Runtime::Fsdp2);  // experts are
  EXPECT_THAT(titan("pipeline_parallel_degree = 2\n").notes, Contains(HasSubstr("pipelines are not planned")));
}

TEST(ImportJob, ReadsWhatTheScriptWritesOfTorchtitansFunctions) {
  const ImportedJob imported = import_file("torchtitan_2026.json");
  EXPECT_EQ(imported.dialect, "torchtitan");
  const Job& job = imported.job;
  EXPECT_EQ(job.fsdp.runtime, Runtime::Fsdp2);
  EXPECT_EQ(job.model.seq, 8192);
  EXPECT_EQ(job.model.batch, 1);
  EXPECT_EQ(job.train.steps, 1000);
  EXPECT_EQ(job.train.optimizer.impl, OptimizerImpl::Fused);
  EXPECT_DOUBLE_EQ(job.train.optimizer.beta2, 0.95);
  EXPECT_EQ(job.fsdp.mixed_precision.param, DType::BFloat16);
  EXPECT_EQ(job.fsdp.mixed_precision.reduce, DType::Float32);
  // Recomputation by operators and the chunked loss are read where they are planned, else told.
  if (job.checkpointing.policy != CheckpointPolicy::Ops) {
    EXPECT_THAT(imported.notes, Contains(HasSubstr("checkpointing.policy")));
  }
  if (job.model.loss != "chunked_cross_entropy") {
    EXPECT_THAT(imported.notes, Contains(HasSubstr("model.loss")));
  }
  EXPECT_THAT(imported.notes, testing::Not(Contains(HasSubstr("not understood"))));
  expect_round_trip(imported);
}

TEST(ImportJob, TorchtitansFloat8LayersAndGathers) {
  const auto read = [](const std::string& settings) {
    const std::string head = "[model]\nconverters = [\"float8\"]\n[training]\nlocal_batch_size = 1\n[float8]\n";
    return import_job(head + settings, "titan.toml").value().job;
  };
  EXPECT_EQ(read("").model.float8, "tensorwise");
  EXPECT_EQ(read("").fsdp.float8_all_gather, "none") << "torchtitan gathers in 16 bits unless it is told";
  EXPECT_EQ(read("enable_fsdp_float8_all_gather = true").fsdp.float8_all_gather, "dynamic");
  const Job both = read("enable_fsdp_float8_all_gather = true\nprecompute_float8_dynamic_scale_for_fsdp = true");
  EXPECT_EQ(both.fsdp.float8_all_gather, "precomputed");
  EXPECT_EQ(read("recipe_name = \"rowwise_with_gw_hp\"").model.float8, "rowwise_with_gw_hp");
}

TEST(ImportJob, WhatConvertersMadeOfTorchtitansModel) {
  const ImportedJob imported = import_file("torchtitan_2026_lora.json");
  EXPECT_EQ(imported.job.adapters.kind, "lora");
  EXPECT_EQ(imported.job.adapters.rank, 8);
  EXPECT_EQ(imported.job.adapters.targets, (std::vector<std::string>{"wq", "wk", "wv", "wo"}));
  EXPECT_EQ(imported.job.model.float8, "rowwise");
  EXPECT_EQ(imported.job.mesh.tensor, 8);
  EXPECT_THAT(imported.notes, Contains(HasSubstr("\"n_layers\": 32")));
  EXPECT_THAT(imported.notes, testing::Not(Contains(HasSubstr("not understood"))));
  expect_round_trip(imported);
  const auto one = import_job(R"({"foreshard_torchtitan": 1, "training": {}, "model": {"name": "llama3", "config": [1],
                                  "lora": {"targets": "wkv", "rank": "x"}}})",
                              "one.json");
  ASSERT_TRUE(one);
  EXPECT_EQ(one->job.adapters.targets, (std::vector<std::string>{"wk", "wv"}));
  EXPECT_THAT(one->notes, Contains(HasSubstr("model.lora.rank")));
  EXPECT_THAT(one->notes, Contains(HasSubstr("give its config.json")));
}

TEST(ImportJob, ValuesThatNoJobTakesBecomeNotes) {
  const auto imported = import_job(
      "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n"
      "  fsdp_sharding_strategy: SIDEWAYS\n  fsdp_use_orig_params: 17\n",
      "c.yaml");
  ASSERT_TRUE(imported);
  EXPECT_EQ(imported->job.fsdp.strategy, Strategy::FullShard);
  EXPECT_THAT(imported->notes, Contains(HasSubstr("sideways is not known")));
  EXPECT_THAT(imported->notes, Contains(HasSubstr("fsdp_use_orig_params = 17 does not fit")));
}

TEST(ImportJob, WhatIsNoConfigurationIsAnErrorThatNamesThePlace) {
  const auto error = [](const std::string& text, const std::string& file) {
    const auto imported = import_job(text, file);
    EXPECT_FALSE(imported) << text;
    return imported ? std::string() : to_text(imported.error());
  };
  EXPECT_THAT(error("a: [1, 2", "x.yaml"), HasSubstr("no YAML"));
  EXPECT_THAT(error("a: 1\na: 2\n", "x.yaml"), HasSubstr("line 2"));
  EXPECT_THAT(error("a: &b 1\nc: *b\n", "x.yaml"), HasSubstr("aliases"));
  EXPECT_THAT(error(std::string(200, '[') + std::string(200, ']'), "x.yaml"), HasSubstr("nested too deep"));
  EXPECT_THAT(error("", "x.yaml"), HasSubstr("empty"));
  EXPECT_THAT(error("- 1\n- 2\n", "x.yaml"), HasSubstr("no configuration"));
  EXPECT_THAT(error("{\"a\": }", "x.json"), HasSubstr("x.json"));
  EXPECT_THAT(error("a = = 1", "x.toml"), HasSubstr("no TOML"));
  EXPECT_THAT(error("color: blue\n", "x.yaml"), HasSubstr("no configuration that is known"));
  EXPECT_THAT(error("[model]\nsource = \"config.json\"\n", "job.toml"), HasSubstr("job file already"));
}

TEST(ImportTree, PlainScalarsAreWhatPyYamlMakesOfThem) {
  const auto tree =
      read_import_tree("a: yes\nb: 'yes'\nc: 1.5\nd: 0x1f\ne: ~\nf: -3\ng: 1e-8\n", "x.yaml", ImportSyntax::Yaml);
  ASSERT_TRUE(tree);
  EXPECT_EQ(tree_text(*find_in_tree(*tree, "a")), "true");
  EXPECT_EQ(find_in_tree(*tree, "b")->text, "yes");
  EXPECT_DOUBLE_EQ(find_in_tree(*tree, "c")->number, 1.5);
  EXPECT_EQ(find_in_tree(*tree, "d")->text, "0x1f");
  EXPECT_EQ(find_in_tree(*tree, "e"), nullptr);
  EXPECT_EQ(find_in_tree(*tree, "f")->integer, -3);
  EXPECT_DOUBLE_EQ(find_in_tree(*tree, "g")->number, 1e-8);
}

}  // namespace
}  // namespace foreshard
