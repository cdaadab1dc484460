// Traps that follow from the program: what operator-level checkpointing misses, what adapters in a flat unit cost.
#include "core/plan/training_traps.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/adapters/adapted_model.h"
#include "core/plan/build_plan.h"
#include "core/plan/saved_ops.h"
#include "tests/core/adapters/small_models.h"

namespace foreshard {
namespace {

using testing::small_gpt2;
using testing::small_job;
using testing::small_llama;

const Trap* trap_of(const Plan& plan, std::int32_t number) {
  const auto at =
      std::find_if(plan.traps.begin(), plan.traps.end(), [&](const Trap& trap) { return trap.number == number; });
  return at == plan.traps.end() ? nullptr : &*at;
}

TEST(TrainingTraps, ASaveListWithoutAddmmKeepsNoProductOfGpt2) {
  Job job = small_job();
  job.checkpointing.policy = CheckpointPolicy::Ops;
  const Plan gpt2 = build_plan(small_gpt2(job), job).value();
  const Trap* trap = trap_of(gpt2, 28);
  ASSERT_NE(trap, nullptr);
  EXPECT_NE(trap->text.find("8 of 8 matrix products"), std::string::npos) << trap->text;
  EXPECT_FALSE(trap->refused);
  EXPECT_EQ(trap_of(build_plan(small_llama(job), job).value(), 28), nullptr);
  job.checkpointing.save.push_back("addmm");
  EXPECT_EQ(trap_of(build_plan(small_gpt2(job), job).value(), 28), nullptr);
}

TEST(TrainingTraps, OperatorLevelCheckpointingIsNotReentrant) {
  Job job = small_job();
  job.checkpointing.policy = CheckpointPolicy::Ops;
  job.checkpointing.reentrant = true;
  const auto plan = build_plan(small_llama(job), job);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().place, "checkpointing.reentrant");
}

Job lora_job(Runtime runtime, DType base) {
  Job job = small_job();
  job.model.dtype = base;
  job.adapters.kind = "lora";
  job.adapters.rank = 8;
  job.adapters.dtype = base;
  job.fsdp.runtime = runtime;
  return job;
}

Plan adapted_plan(const Job& job) { return build_plan(adapted_model(small_llama(job), job).value(), job).value(); }

TEST(TrainingTraps, AGroupOfRanksBehindForwardIsMadeForEveryUnit) {
  Job job = small_job();
  job.fsdp.runtime = Runtime::Fsdp2;
  job.cluster.world_size = 8;
  job.fsdp.reshard_after_forward = {.kind = ReshardAfterForward::Kind::GroupSize, .group_size = 4};
  EXPECT_NE(trap_of(build_plan(small_llama(job), job).value(), 38), nullptr);
  job.fsdp.reshard_after_forward = {};
  EXPECT_EQ(trap_of(build_plan(small_llama(job), job).value(), 38), nullptr);
}

TEST(TrainingTraps, AFlatUnitReducesItsFrozenWeights) {
  const Plan plan = adapted_plan(lora_job(Runtime::Fsdp1, DType::BFloat16));
  const Trap* trap = trap_of(plan, 29);
  ASSERT_NE(trap, nullptr);
  EXPECT_EQ(trap->units.size(), 2U);
  EXPECT_NE(trap->text.find(" 14 more products"), std::string::npos) << trap->text;
  EXPECT_EQ(trap_of(adapted_plan(lora_job(Runtime::Fsdp2, DType::BFloat16)), 29), nullptr);
}

TEST(TrainingTraps, FrozenTiedParametersThatAreNotShardedFailWherePyTorchDoes) {  // recorded on the virtual device
  Job job = lora_job(Runtime::Fsdp1, DType::Float32);
  job.adapters.targets = {"c_attn"};
  job.fsdp.mixed_precision.param = DType::Float32;
  job.fsdp.use_orig_params = true;
  job.fsdp.strategy = Strategy::NoShard;
  const auto error_of = [&] {
    const auto plan = build_plan(adapted_model(small_gpt2(job), job).value(), job);
    return plan ? std::string() : plan.error().message;
  };
  EXPECT_NE(error_of().find("AssertionError"), std::string::npos);
  job.train.steps = 1;
  EXPECT_EQ(error_of(), "");
  job.train.steps = 3;
  job.fsdp.strategy = Strategy::ShardGradOp;
  EXPECT_EQ(error_of(), "");
  job.fsdp.strategy = Strategy::NoShard;
  job.fsdp.mixed_precision.param = DType::BFloat16;
  EXPECT_EQ(error_of(), "");
}

/// Two norms of `head` numbers stand before a block's experts; whatever else does is aligned.
Model experts_behind_norms(const Job& job, std::int64_t head) {
  const nlohmann::json config = {{"model_type", "qwen3_moe"}, {"hidden_size", 48},      {"moe_intermediate_size", 24},
                                 {"intermediate_size", 80},   {"num_hidden_layers", 2}, {"num_attention_heads", 4},
                                 {"num_key_value_heads", 2},  {"head_dim", head},       {"num_experts", 8},
                                 {"num_experts_per_tok", 2},  {"vocab_size", 96},       {"tie_word_embeddings", false}};
  ProgramOptions program;
  program.compute_dtype = job.fsdp.mixed_precision.param;
  return model_from_config_json(config, "qwen3_moe", job.model, program).value();
}

TEST(TrainingTraps, AFlatParameterDoesNotAlignTheMatricesOfGroupedProducts) {  // recorded: gpt-oss, DeepSeek V4
  Job job = small_job();
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.use_orig_params = false;
  job.fsdp.mixed_precision.param = DType::BFloat16;
  const auto error_of = [&](std::int64_t head) {
    const auto plan = build_plan(experts_behind_norms(job, head), job);
    return plan ? std::string() : to_text(plan.error());
  };
  EXPECT_EQ(error_of(8), "");  // 32 bytes
  EXPECT_NE(error_of(10).find("expected data_ptr to be aligned to 16 bytes"), std::string::npos) << error_of(10);
  EXPECT_NE(error_of(10).find("trap 55"), std::string::npos);
  job.fsdp.use_orig_params = true;
  EXPECT_EQ(error_of(10), "");
  job.fsdp.runtime = Runtime::Fsdp2;
  EXPECT_EQ(error_of(10), "");
}

TEST(TrainingTraps, AFrozenBaseInFloat32IsNamed) {
  EXPECT_NE(trap_of(adapted_plan(lora_job(Runtime::Fsdp2, DType::Float32)), 30), nullptr);
  EXPECT_EQ(trap_of(adapted_plan(lora_job(Runtime::Fsdp2, DType::BFloat16)), 30), nullptr);
}

TEST(TrainingTraps, OffloadWithoutCheckpointsCopiesGatheredWeights) {
  Job job = small_job();
  job.checkpointing.offload_activations = true;
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2, Runtime::None}) {
    job.fsdp.runtime = runtime;
    job.checkpointing.policy = CheckpointPolicy::None;
    EXPECT_EQ(trap_of(build_plan(small_llama(job), job).value(), 52) != nullptr, runtime != Runtime::None);
    job.checkpointing.policy = CheckpointPolicy::Block;
    EXPECT_EQ(trap_of(build_plan(small_llama(job), job).value(), 52), nullptr);
  }
}

CheckpointingOptions saving(std::vector<std::string> words) {
  CheckpointingOptions options;
  options.policy = CheckpointPolicy::Ops;
  options.save = std::move(words);
  return options;
}

TEST(SavedOps, ReadsWordsAndNames) {
  const SavedOps titan = saved_ops(CheckpointingOptions{.policy = CheckpointPolicy::Ops}).value();
  EXPECT_EQ(titan.rerun_product, 2);
  EXPECT_TRUE(titan.lists("aten._scaled_dot_product_flash_attention.default"));
  EXPECT_FALSE(titan.lists("aten.addmm.default"));
  EXPECT_EQ(saved_ops(saving({"aten.mm"})).value(), saved_ops(saving({"mm", "mm"})).value());
  EXPECT_TRUE(saved_ops(CheckpointingOptions{}).value().none());
  for (const char* wrong : {"mm:1", "mm:x", "mn", "aten.adddmm"}) {
    const auto refused = saved_ops(saving({wrong}));
    ASSERT_FALSE(refused) << wrong;
    EXPECT_EQ(refused.error().place, "checkpointing.save");
  }
  EXPECT_NE(saved_ops(saving({"aten.adddmm"})).error().hint.find("addmm"), std::string::npos);
}

}  // namespace
}  // namespace foreshard
