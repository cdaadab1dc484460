// Modules that stay whole beside cut ones, and experts whose matrices are cut: the rank's model, and what is said of
// it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "core/mesh/rank_model.h"
#include "core/model/families/config_model.h"
#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"

namespace foreshard {
namespace {

constexpr std::int64_t kLayers = 2;

Job job_of() {
  Job job;
  job.model.batch = 2;
  job.model.seq = 24;
  job.model.seq_given = true;
  job.model.loss = "cross_entropy_fp32";
  job.mesh.tensor = 2;
  job.cluster.world_size = 4;
  job.train.clip_grad_norm = 1.0;
  return job;
}

Model built(const Job& job, const char* config) {
  ProgramOptions program;
  program.compute_dtype = DType::BFloat16;
  return model_from_config_json(nlohmann::json::parse(config), "config.json", job.model, program).value();
}

Model latent_whole(const Job& job) {
  return built(job, R"({"model_type": "deepseek_v3", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 2, "vocab_size": 101, "max_position_embeddings": 64,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16})");
}

Model latent(const Job& job) { return rank_model(latent_whole(job), job).value(); }

/// Norms in latent attention as one operator, which nn.RMSNorm is on a card: the last product has its name.
void fuse_norms(Model& model) {
  for (Op& op : model.ops) {
    const std::string& module = model.modules[op.module.valid() ? op.module.index() : 0].fqn;
    if (!module.ends_with("_a_layernorm") || op.name != "aten.mul.Tensor") continue;
    const bool weighs = std::any_of(op.args.begin(), op.args.end(),
                                    [](const Arg& arg) { return std::holds_alternative<ParamRef>(arg.value); });
    if (weighs) op.name = "aten.rms_norm.default";
  }
}

Model mixture(const Job& job) {
  return built(job, R"({"model_type": "titan_llama", "dim": 48, "n_layers": 2, "n_heads": 6, "n_kv_heads": 2, "ffn": 56,
    "vocab_size": 101, "max_seq": 64, "moe": {"experts": 4, "top_k": 2, "ffn": 40}})");
}

const ParamInfo& param(const Model& model, const std::string& name) {
  return model.params[model.find_param(name).index()];
}

std::int64_t copies(const Model& model, const char* backward) {
  return std::count_if(model.ops.begin(), model.ops.end(), [&](const Op& op) {
    if (op.name != "mesh.copy") return false;
    return backward == nullptr ? op.args.size() == 2
                               : op.args.size() == 3 && std::get<std::string>(op.args[2].value) == backward;
  });
}

TEST(ReplicatedModel, TermsGoThroughANormOfSingleOperatorsToAllParameters) {
  const Model model = latent(job_of());
  for (const char* name : {"kv_a_proj_with_mqa", "kv_a_layernorm", "q_a_layernorm", "q_a_proj"}) {
    const MeshPart& part = param(model, std::string("model.layers.1.self_attn.") + name + ".weight").part;
    EXPECT_EQ(part.gradient, MeshPart::Gradient::Term) << name;
    EXPECT_GE(part.dimension, 0) << name;
    EXPECT_EQ(part.dim, -1) << name;
  }
  EXPECT_EQ(copies(model, nullptr) + copies(model, "share"), 0);
}

TEST(ReplicatedModel, OneOperatorOfANormTakesWholeGradients) {
  const Job job = job_of();
  Model whole = latent_whole(job);
  fuse_norms(whole);
  const Model model = rank_model(std::move(whole), job).value();
  const auto gradient = [&](const char* name) {
    return param(model, std::string("model.layers.1.self_attn.") + name + ".weight").part.gradient;
  };
  EXPECT_EQ(gradient("kv_a_proj_with_mqa"), MeshPart::Gradient::Term);  // the key of positions
  for (const char* name : {"kv_a_layernorm", "q_a_layernorm", "q_a_proj"})
    EXPECT_EQ(gradient(name), MeshPart::Gradient::Part) << name;
  EXPECT_EQ(copies(model, nullptr), 2 * kLayers);  // gradients of both norms' results are summed
  EXPECT_EQ(copies(model, "share"), 2 * kLayers);  // what meets terms: behind the latent's norm, and of the input
}

TEST(ReplicatedModel, HeadsShareAKeyThatIsExpandedToTheRanks) {
  const Model model = latent(job_of());
  std::int64_t expanded = 0;
  for (const Op& op : model.ops) {
    if (op.name != "aten.copy_.default") continue;
    for (const Arg& arg : op.args) {
      const auto* value = std::get_if<ValueRef>(&arg.value);
      if (value == nullptr) continue;
      EXPECT_EQ(model.values[value->id.index()].shape[1], 2);  // of four heads
      ++expanded;
    }
  }
  EXPECT_EQ(expanded, 4 * kLayers);
}

TEST(ReplicatedModel, MatricesOfExpertsAreCutAsTheirProductsReadThem) {
  Job job = job_of();
  job.mesh.plan = {
      {"layers.*.moe", "summed"}, {"layers.*.moe.gate", "replicate"}, {"layers.*.moe.experts", "expert_tensor"}};
  const Model whole = mixture(job);
  for (const ParallelStyle& row : whole.parallel)
    if (row.modules.find("moe") == row.modules.npos && row.modules.find("feed_forward") == row.modules.npos)
      job.mesh.plan.emplace(row.modules, row.style);
  const Model model = rank_model(whole, job).value();
  const ParamInfo &up = param(model, "layers.0.moe.experts.w1"), &down = param(model, "layers.0.moe.experts.w2");
  EXPECT_EQ(up.part.dim, 2);
  EXPECT_EQ(up.shape, (Shape{4, 48, 20}));
  EXPECT_EQ(down.part.dim, 1);
  EXPECT_EQ(down.shape, (Shape{4, 20, 48}));
  std::int64_t scattered = 0, sliced = 0;
  for (const Op& op : model.ops) {
    const bool moe = op.module.valid() && model.modules[op.module.index()].fqn == "layers.0.moe";
    scattered += moe && op.name == "mesh.reduce_scatter" ? 1 : 0;
    if (moe && op.name == "mesh.all_gather") sliced += std::get<std::string>(op.args[4].value) == "slice" ? 1 : 0;
  }
  EXPECT_EQ(scattered, 1);
  EXPECT_EQ(sliced, 1);

  const auto plan = build_plan(model, job);
  ASSERT_FALSE(plan.has_value());  // scores that weigh what experts make
  EXPECT_NE(plan.error().message.find("trap 54"), std::string::npos) << plan.error().message;
  EXPECT_NE(plan.error().place.find("layers.0.moe.gate.weight"), std::string::npos) << plan.error().place;
  job.fsdp.allow_traps = {54};
  EXPECT_TRUE(build_plan(model, job).has_value());
}

TEST(ReplicatedModel, ExpertsWithoutRanksOfTheirOwnAreCutByTheArchitecturesPlan) {
  Job job = job_of();
  const Model model = rank_model(built(job, R"({"model_type": "mixtral", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
    "num_experts_per_tok": 2, "vocab_size": 101, "max_position_embeddings": 64})"),
                                 job)
                          .value();
  EXPECT_EQ(param(model, "model.layers.0.mlp.experts.gate_up_proj").shape, (Shape{4, 48, 32}));  // of 96
  EXPECT_EQ(param(model, "model.layers.0.mlp.experts.down_proj").shape, (Shape{4, 32, 24}));
  EXPECT_EQ(param(model, "model.layers.0.mlp.gate.weight").part.dim, -1);
  const auto has = [&](const char* fqn, const char* style) {
    return std::find(model.parallel.begin(), model.parallel.end(), ParallelStyle{fqn, style}) != model.parallel.end();
  };
  EXPECT_TRUE(has("model.layers.0.mlp.experts", "packed")) << "gate and value are one matrix, cut part by part";
  EXPECT_TRUE(has("model.layers.0.mlp.experts.gate_up_proj", "halves"));
  EXPECT_FALSE(has("model.layers.0.mlp.experts", "fused"));
  EXPECT_TRUE(build_plan(model, job).has_value());
}

TEST(ReplicatedModel, OnlyStackedWeightsAreCutAsExperts) {
  Job job = job_of();
  job.mesh.plan = {{"model.layers.*.self_attn.q_b_proj", "expert_tensor"}};
  const auto made = rank_model(latent_whole(job), job);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().place, "mesh.plan");
  EXPECT_NE(made.error().got.find("q_b_proj"), std::string::npos) << made.error().got;
}

/// The architecture's plan with words of one's own, as Transformers' plans have them.
Job with_words(Job job, const Model& whole, const std::map<std::string, std::string>& words) {
  job.mesh.plan = words;
  for (const ParallelStyle& row : whole.parallel) job.mesh.plan.emplace(row.modules, row.style);
  return job;
}

TEST(ReplicatedModel, AHooksSumIsOverTheTensorRanksAndNoUnits) {
  Job job = job_of();
  job.mesh.sequence_parallel = job.mesh.loss_parallel = false;
  job.train.clip_grad_norm = 0.0;
  const Model whole = built(job, R"({"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 101,
    "max_position_embeddings": 64})");
  job = with_words(
      job, whole,
      {{"model.layers.*.self_attn.q_norm", "gradient_sum"}, {"model.layers.*.self_attn.k_norm", "gradient_sum"}});
  const Model model = rank_model(whole, job).value();
  const ParamInfo& norm = param(model, "model.layers.0.self_attn.q_norm.weight");
  EXPECT_EQ(norm.part.dimension, -1);  // a plain tensor
  EXPECT_EQ(norm.part.gradient, MeshPart::Gradient::Term);
  const auto plan = build_plan(model, job);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;  // no trap 54
  std::int64_t sums = 0;
  for (const Instruction& i : plan->iterations.back().instructions) {
    if (i.kind != InstructionKind::AllReduce || i.buffer.what != BufferWhat::MeshGrad) continue;
    EXPECT_FALSE(i.unit.valid());
    EXPECT_EQ(plan->communicators[i.communicator.index()].name, "tensor");
    EXPECT_EQ(i.numel, 8);
    ++sums;
  }
  EXPECT_EQ(sums, 2);
}

TEST(ReplicatedModel, PackedMatricesOfExpertsAreNoTrapAndTheirTermsAreSummedAtTheEnd) {
  Job job = job_of();
  job.mesh.sequence_parallel = job.mesh.loss_parallel = false;
  const Model whole = built(job, R"({"model_type": "mixtral", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
    "num_experts_per_tok": 2, "vocab_size": 101, "max_position_embeddings": 64})");
  job.mesh.plan = {{"model.layers.*.mlp.experts", "packed_expert_tensor"}};
  const Model model = rank_model(whole, job).value();
  const auto has = [&](const char* style) {
    return std::any_of(model.parallel.begin(), model.parallel.end(),
                       [&](const ParallelStyle& row) { return row.style == style; });
  };
  EXPECT_TRUE(has("packed"));
  EXPECT_FALSE(has("fused"));  // trap 53
  std::vector<std::int64_t> parts;
  for (const ParamInfo& param : model.params)
    if (param.fqn.find(".experts.") != std::string::npos) parts.push_back(packed_parts(model, param));
  EXPECT_EQ(parts, (std::vector<std::int64_t>{2, 1}));  // gate and value; what reads their product
  std::vector<Shape> summed;
  for (const Op& op : model.ops) {
    const bool experts = op.module.valid() && model.modules[op.module.index()].fqn == "model.layers.0.mlp.experts";
    if (experts && op.name == "mesh.all_reduce") summed.push_back(model.values[op.out.front().index()].shape);
  }
  EXPECT_EQ(summed, (std::vector<Shape>{{2 * 24, 32}}));  // tokens, not the rows that chose an expert
}

TEST(ReplicatedModel, APackedLayerHoldsHalvesWhereTwoEqualPartsAreTakenOfWhatItGives) {
  Job job = job_of();
  job.mesh.sequence_parallel = job.mesh.loss_parallel = false;
  const Model whole = built(job, R"({"model_type": "phi3", "hidden_size": 48, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 101,
    "max_position_embeddings": 64})");
  job.mesh.plan = {{"model.layers.*.mlp.gate_up_proj", "packed_colwise"}, {"model.layers.*.mlp.down_proj", "rowwise"}};
  const auto gated = rank_model(whole, job);
  ASSERT_TRUE(gated) << to_text(gated.error());
  EXPECT_TRUE(divides_packed(*gated, "model.layers.0.mlp.gate_up_proj"));
  job.mesh.plan = {{"transformer.h.*.attn.c_attn", "packed_colwise"}, {"transformer.h.*.attn.c_proj", "rowwise"}};
  job.model = {};
  job.model.source = FORESHARD_TEST_DATA "/captured/nanogpt.json";
  ProgramOptions program;
  program.compute_dtype = DType::BFloat16;
  const auto loaded = load_model(job.model, program);
  ASSERT_TRUE(loaded) << to_text(loaded.error());
  const auto attention = rank_model(*loaded, job);
  ASSERT_TRUE(attention) << to_text(attention.error());
  EXPECT_FALSE(divides_packed(*attention, "transformer.h.0.attn.c_attn")) << "three of them: run refuses it";
}

TEST(ReplicatedModel, WhatIsNotLinearInTermsIsRefused) {
  Job job = job_of();
  job.mesh.plan = {{"layers.*.feed_forward", "summed"}, {"layers.*.feed_forward.w1", "rowwise"}};
  const auto made = rank_model(built(job, R"({"model_type": "titan_llama", "dim": 48, "n_layers": 1, "n_heads": 6,
    "n_kv_heads": 2, "ffn": 56, "vocab_size": 101, "max_seq": 64})"),
                               job);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().place, "layers.0.feed_forward");
}

}  // namespace
}  // namespace foreshard
