// Parameters of two units that a script has tied once more when they were sharded (fsdp.tied).
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/model/families/config_model.h"
#include "core/plan/build_plan.h"
#include "core/plan/units/unit_params.h"

namespace foreshard {
namespace {

constexpr Numel kShare = 96 * 32 / 4;  // of the head

Job job_of() {
  Job job;
  job.model.batch = 2;
  job.model.seq = 24;
  job.model.seq_given = true;
  job.cluster.world_size = 4;
  job.fsdp.wrap.policy = WrapPolicyKind::Units;
  job.fsdp.wrap.units = {{"model.embed_tokens"}, {"model.layers.0"}, {"lm_head"}};
  job.train.clip_grad_norm = 0.0;
  return job;
}

Model model_of(const Job& job) {
  const auto config = nlohmann::json::parse(R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 96, "max_position_embeddings": 64})");
  return model_from_config_json(config, "config.json", job.model, {}).value();
}

struct Seen {
  std::vector<std::string> added;  // units whose reductions are added to a gradient that is there
  Numel stepped = 0;
};

Seen seen(const Job& job) {
  const Plan plan = build_plan(model_of(job), job).value();
  Seen seen;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (i.kind == InstructionKind::Add && i.unit.valid()) seen.added.push_back(plan.units[i.unit.index()].name);
    if (i.kind == InstructionKind::OptimizerStep) seen.stepped += i.numel;
  }
  return seen;
}

TEST(Tied, TheSecondReductionIsAddedToTheFirstOnesAndOneParameterIsStepped) {
  Job job = job_of();
  const Seen apart = seen(job);
  EXPECT_TRUE(apart.added.empty());
  job.fsdp.tied = {{"lm_head.weight", "model.embed_tokens.weight"}};
  const Seen tied = seen(job);
  EXPECT_EQ(tied.added, (std::vector<std::string>{"model.embed_tokens"}));  // backward comes to the head first
  EXPECT_EQ(apart.stepped - tied.stepped, kShare);
  job.fsdp.tied = {{"model.embed_tokens.weight", "lm_head.weight"}};  // whichever is named first
  EXPECT_EQ(seen(job).added, tied.added);
}

TEST(Tied, NamesAndShapesAreLookedAt) {
  Job job = job_of();
  for (const char* other : {"model.embed_token.weight", "lm_head.weight", "model.layers.0.self_attn.q_proj.weight"}) {
    job.fsdp.tied = {{"lm_head.weight", other}};
    const auto wrong = build_plan(model_of(job), job);
    ASSERT_FALSE(wrong.has_value()) << other;
    EXPECT_EQ(wrong.error().place, "fsdp.tied");
  }
  job.fsdp.tied = {{"lm_head.weight", "model.embed_tokens.weight"}, {"model.embed_tokens.weight", "lm_head.weight"}};
  EXPECT_FALSE(tied_when_sharded(model_of(job), job).has_value());
}

}  // namespace
}  // namespace foreshard
