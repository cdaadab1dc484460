// Layers over tensor ranks that nothing shards: what a step does to gradients that lie otherwise than parameters.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/mesh/rank_model.h"
#include "core/model/families/config_model.h"
#include "core/plan/build_plan.h"

namespace foreshard {
namespace {

constexpr int kNorms = 5;  // two a block, one behind them

Job job_of(OptimizerImpl impl) {
  Job job;
  job.model.batch = 2;
  job.model.seq = 32;
  job.model.seq_given = true;
  job.mesh.tensor = 2;
  job.mesh.loss_parallel = true;
  job.cluster.world_size = 2;
  job.fsdp.runtime = Runtime::None;
  job.fsdp.mixed_precision = MixedPrecision::none();
  job.train.clip_grad_norm = 0;
  job.train.optimizer.impl = impl;
  return job;
}

Model llama(const Job& job) {
  const auto config = nlohmann::json::parse(R"({"model_type": "llama", "hidden_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 56, "vocab_size": 100,
    "max_position_embeddings": 64})");
  return model_from_config_json(config, "llama", job.model, ProgramOptions()).value();
}

Result<Plan> plan_of(const Job& job) {
  auto cut = rank_model(llama(job), job);
  if (!cut) return tl::unexpected(cut.error());
  return build_plan(*cut, job);
}

std::int64_t count(const Plan& plan, Phase phase, InstructionKind kind) {
  const auto& all = plan.iterations.back().instructions;
  return std::count_if(all.begin(), all.end(),
                       [&](const Instruction& i) { return i.phase == phase && i.kind == kind; });
}

std::vector<std::int32_t> traps_of(const Plan& plan) {
  std::vector<std::int32_t> numbers;
  for (const Trap& trap : plan.traps)
    if (trap.refused) numbers.push_back(trap.number);
  return numbers;
}

TEST(TensorAlone, SumsTermsForEveryOperatorOfTheStepThatReadsThem) {
  for (const auto& [impl, reads] :
       {std::pair(OptimizerImpl::Fused, 1), {OptimizerImpl::Foreach, 3}, {OptimizerImpl::ForLoop, 3}}) {
    const auto plan = plan_of(job_of(impl));
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(count(*plan, Phase::Optimizer, InstructionKind::AllReduce), reads * kNorms);
    // This rank's rows of the table are taken out of the gradient of all of them.
    EXPECT_EQ(count(*plan, Phase::Optimizer, InstructionKind::CopyIn), reads * (kNorms + 1));
    EXPECT_TRUE(traps_of(*plan).empty());
  }
}

TEST(TensorAlone, OptimizersReadGradientsAsOftenAsTheirMomentsDo) {  // counted in scripts
  for (const auto& [kind, reads] : {std::pair(OptimizerKind::RAdam, 3),
                                    {OptimizerKind::NAdam, 4},
                                    {OptimizerKind::RMSprop, 3},
                                    {OptimizerKind::Adagrad, 3},
                                    {OptimizerKind::Adamax, 2},
                                    {OptimizerKind::Sgd, 1}}) {
    Job job = job_of(OptimizerImpl::Foreach);
    job.train.optimizer.name = kind;
    const auto plan = plan_of(job);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(count(*plan, Phase::Optimizer, InstructionKind::AllReduce), reads * kNorms);
  }
}

TEST(TensorAlone, ScalesSumsThatNobodyKeeps) {
  Job job = job_of(OptimizerImpl::Fused);
  job.train.clip_grad_norm = 1;
  const auto refused = plan_of(job);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("trap 58"), std::string::npos);
  job.fsdp.allow_traps = {58};
  const auto plan = plan_of(job);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(count(*plan, Phase::Clip, InstructionKind::AllReduce), 2 * kNorms + 1);  // ... and the norm's
}

TEST(TensorAlone, LosesTheMomentumOfTerms) {
  Job job = job_of(OptimizerImpl::Foreach);
  job.train.optimizer.name = OptimizerKind::Sgd;
  EXPECT_TRUE(plan_of(job));
  job.train.optimizer.momentum = 0.9;
  EXPECT_FALSE(plan_of(job));
  job.fsdp.allow_traps = {58};
  const auto plan = plan_of(job);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(count(*plan, Phase::Optimizer, InstructionKind::AllReduce), 4 * kNorms);
  job.train.optimizer.impl = OptimizerImpl::ForLoop;
  job.fsdp.allow_traps = {};
  EXPECT_TRUE(plan_of(job));
}

TEST(TensorAlone, KeepsTheGradientOfAllRowsUntilTheNextStep) {
  const auto plan = plan_of(job_of(OptimizerImpl::Fused));
  ASSERT_TRUE(plan) << plan.error().message;
  const auto& all = plan->iterations.back().instructions;
  const auto is_table = [&](const Instruction& i) {
    return i.kind == InstructionKind::Free && i.buffer.what == BufferWhat::Grad &&
           plan->param_names[i.buffer.param.index()] == "model.embed_tokens.weight";
  };
  const auto freed = std::find_if(all.begin(), all.end(), is_table);
  ASSERT_NE(freed, all.end());
  EXPECT_EQ(freed->bytes, 100 * 48 * 4);
}

TEST(TensorAlone, HooksSumGradientsWhereAutogradMakesThem) {
  Job job = job_of(OptimizerImpl::ForLoop);
  job.mesh.sequence_parallel = false;
  job.mesh.plan = {{"model.layers.*.self_attn.q_proj", "colwise"},
                   {"model.layers.*.self_attn.k_proj", "colwise"},
                   {"model.layers.*.self_attn.v_proj", "colwise"},
                   {"model.layers.*.self_attn.o_proj", "rowwise"},
                   {"model.layers.*.input_layernorm", "gradient_sum"}};
  const auto plan = plan_of(job);
  ASSERT_TRUE(plan) << plan.error().message;
  std::int64_t summed = 0;
  for (const Instruction& i : plan->iterations.back().instructions) {
    if (i.kind != InstructionKind::AllReduce || i.buffer.what != BufferWhat::Grad) continue;
    ++summed;
    EXPECT_EQ(i.phase, Phase::Backward);
    EXPECT_EQ(i.bytes, 48 * 4);
  }
  EXPECT_EQ(summed, 2);
}

TEST(TensorAlone, RefusesListsOfDTensorsAndPlainTensorsAsPyTorchDoes) {
  Job job = job_of(OptimizerImpl::Foreach);
  job.mesh.sequence_parallel = false;  // norms stay plain
  const auto mixed = plan_of(job);
  ASSERT_FALSE(mixed);
  EXPECT_NE(mixed.error().message.find("got mixed torch.Tensor and DTensor"), std::string::npos);
  job.train.optimizer.impl = OptimizerImpl::ForLoop;
  EXPECT_TRUE(plan_of(job));
  job.train.clip_grad_norm = 1;
  EXPECT_FALSE(plan_of(job));
}

TEST(TensorAlone, HasNoOtherDimension) {
  Job job = job_of(OptimizerImpl::Fused);
  job.cluster.world_size = 4;
  const auto beside = plan_of(job);
  ASSERT_FALSE(beside);
  EXPECT_EQ(beside.error().place, "fsdp.runtime");
}

}  // namespace
}  // namespace foreshard
