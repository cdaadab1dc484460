// Layers over tensor ranks in scripts' own ways: heads of keys that are whole, tables beside a parallel loss, weights
// that are tied behind the plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/lowering/lowering.h"
#include "core/mesh/rank_model.h"
#include "core/model/families/config_model.h"
#include "core/model/model_json.h"
#include "core/plan/build_plan.h"

namespace foreshard {
namespace {

Job job_of() {
  Job job;
  job.model.batch = 2;
  job.model.seq = 32;
  job.model.seq_given = true;
  job.mesh.tensor = 2;
  job.mesh.sequence_parallel = false;
  job.cluster.world_size = 4;
  job.train.clip_grad_norm = 0;
  job.mesh.plan = {{"model.layers.*.self_attn.q_proj", "colwise"}, {"model.layers.*.self_attn.o_proj", "rowwise"}};
  return job;
}

Model llama(const Job& job, bool tied = false) {
  auto config = nlohmann::json::parse(R"({"model_type": "llama", "hidden_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 6, "intermediate_size": 56, "vocab_size": 100,
    "max_position_embeddings": 64})");
  config["tie_word_embeddings"] = tied;
  ProgramOptions program;
  program.compute_dtype = DType::BFloat16;  // flash attention
  return model_from_config_json(config, "llama", job.model, program).value();
}

const ParamInfo& param(const Model& model, const char* name) { return model.params[model.find_param(name).index()]; }

bool has_row(const Model& model, const std::string& modules, const std::string& style) {
  return std::any_of(model.parallel.begin(), model.parallel.end(),
                     [&](const ParallelStyle& row) { return row.modules == modules && row.style == style; });
}

std::int64_t count_of(const Model& model, const std::string& name, const std::string& module) {
  return std::count_if(model.ops.begin(), model.ops.end(), [&](const Op& op) {
    return op.name == name && op.module.valid() && model.modules[op.module.index()].fqn == module;
  });
}

/// Everything along the sequence but what the test says otherwise.
Job along_the_sequence(std::map<std::string, std::string> otherwise) {
  Job job = job_of();
  job.mesh.sequence_parallel = true;
  const std::string block = "model.layers.*.";
  for (const char* layer : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"})
    job.mesh.plan[block + layer] = "colwise";
  for (const char* layer : {"self_attn.o_proj", "mlp.down_proj"}) job.mesh.plan[block + layer] = "rowwise";
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) job.mesh.plan[block + norm] = "sequence";
  job.mesh.plan["model.layers.0"] = "part";
  job.mesh.plan["model.layers.1"] = "gather_output";
  for (auto& [name, style] : otherwise) job.mesh.plan[name] = style;
  return job;
}

std::int64_t gathers_in(const Model& model, const std::string& module) {
  return std::count_if(model.ops.begin(), model.ops.end(), [&](const Op& op) {
    return op.name == "mesh.all_gather" && op.module.valid() && model.modules[op.module.index()].fqn == module;
  });
}

/// Pairs of neighbouring elements are turned (rotary positions of GLM, Cohere and others).
constexpr const char* kTurned =
    R"({"schema": "foreshard.model/2", "name": "turned", "lifetimes": "recorded", "has_loss": true,
 "inputs": [{"name": "x", "shape": [2, 6, 8], "dtype": "float32"}],
 "modules": [{"fqn": "", "class": "Net"}, {"fqn": "q", "class": "Linear"}, {"fqn": "o", "class": "Linear"}],
 "params": [{"fqn": "q.weight", "shape": [8, 8], "dtype": "float32"}, {"fqn": "o.weight", "shape": [8, 16], "dtype": "float32"}],
 "ops": [{"op": "aten.linear.default", "module": "q", "args": ["%x", "@q.weight"], "out": [{"name": "h", "shape": [2, 6, 8], "dtype": "float32"}]},
         {"op": "aten.stack.default", "module": "", "args": [["%h", "%h"], -1], "out": [{"name": "s", "shape": [2, 6, 8, 2], "dtype": "float32"}]},
         {"op": "aten.view.default", "module": "", "args": ["%s", [2, 6, 16]], "out": [{"name": "v", "shape": [2, 6, 16], "dtype": "float32"}]},
         {"op": "aten.linear.default", "module": "o", "args": ["%v", "@o.weight"], "out": [{"name": "y", "shape": [2, 6, 8], "dtype": "float32"}]},
         {"op": "aten.sum.default", "module": "", "args": ["%y"], "out": [{"name": "loss", "shape": [], "dtype": "float32"}]}],
 "module_calls": [{"module": "", "args": ["x"]}, {"module": "q", "args": ["x"]}, {"module": "o", "args": ["v"]}],
 "outputs": ["loss"]})";

TEST(OwnStyles, WhatIsStackedStaysCut) {
  Job job = job_of();
  job.mesh.plan = {{"q", "colwise"}, {"o", "rowwise"}};
  const auto model = rank_model(parse_model_json(kTurned, "model.json").value(), job);
  ASSERT_TRUE(model) << model.error().message;
  const auto stacked =
      std::find_if(model->ops.begin(), model->ops.end(), [](const Op& op) { return op.name == "aten.stack.default"; });
  EXPECT_EQ(model->values[stacked->out.front().index()].shape, (Shape{2, 6, 4, 2}));
  EXPECT_EQ(param(*model, "o.weight").shape, (Shape{8, 8}));
}

/// Layers that gather the rows that each rank brings, and scatter what they make (PyTorch's sequence_parallel_example).
constexpr const char* kRows =
    R"({"schema": "foreshard.model/2", "name": "rows", "lifetimes": "recorded", "has_loss": true,
 "inputs": [{"name": "x", "shape": [6, 4], "dtype": "float32"}],
 "modules": [{"fqn": "", "class": "Net"}, {"fqn": "norm", "class": "LayerNorm"}, {"fqn": "a", "class": "Linear"}, {"fqn": "b", "class": "Linear"}],
 "params": [{"fqn": "norm.weight", "shape": [4], "dtype": "float32"}, {"fqn": "a.weight", "shape": [8, 4], "dtype": "float32"},
            {"fqn": "b.weight", "shape": [4, 8], "dtype": "float32"}],
 "ops": [{"op": "aten.mul.Tensor", "module": "norm", "args": ["%x", "@norm.weight"], "out": [{"name": "n", "shape": [6, 4], "dtype": "float32"}]},
         {"op": "aten.linear.default", "module": "a", "args": ["%n", "@a.weight"], "out": [{"name": "h", "shape": [6, 8], "dtype": "float32"}]},
         {"op": "aten.linear.default", "module": "b", "args": ["%h", "@b.weight"], "out": [{"name": "y", "shape": [6, 4], "dtype": "float32"}]},
         {"op": "aten.mean.default", "module": "", "args": ["%y"], "out": [{"name": "loss", "shape": [], "dtype": "float32"}]}],
 "module_calls": [{"module": "", "args": ["x"]}, {"module": "norm", "args": ["x"]}, {"module": "a", "args": ["n"]}, {"module": "b", "args": ["h"]}],
 "outputs": ["loss"]})";

TEST(OwnStyles, RowsThatEachRankBringsAreGatheredAndScattered) {
  Job job = job_of();
  job.mesh.plan = {{"", "rows"}, {"a", "colwise"}, {"b", "rowwise"}};
  const Model whole = parse_model_json(kRows, "model.json").value();
  const auto model = rank_model(whole, job);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->values[model->inputs.front().index()].shape, (Shape{3, 4}));
  std::vector<std::string> names;
  for (const Op& op : model->ops) {
    names.push_back(op.name);
    if (op.name == "mesh.all_gather" || op.name == "mesh.reduce_scatter") {
      EXPECT_EQ(std::get<std::int64_t>(op.args[2].value), 0) << op.name;
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"aten.mul.Tensor", "mesh.all_gather", "aten.linear.default",
                                             "aten.linear.default", "mesh.reduce_scatter", "aten.mean.default"}));
  EXPECT_TRUE(has_row(*model, "norm.weight", "partial"));  // each rank has the gradient of its own rows
  EXPECT_TRUE(has_row(*model, "", "rows"));
  job.cluster.world_size = job.mesh.tensor = 4;
  EXPECT_EQ(rank_model(whole, job).error().place, "x");
  job = job_of();
  job.mesh.plan = {{"a", "rows"}, {"b", "rowwise"}};
  EXPECT_EQ(rank_model(whole, job).error().place, "mesh.plan");
}

TEST(OwnStyles, WrongPlansAreToldWhatWouldBeRight) {
  Job job = job_of();
  const auto told = [&](std::map<std::string, std::string> plan) {
    job.mesh.plan = std::move(plan);
    auto model = rank_model(llama(job), job);
    EXPECT_FALSE(model);
    return model ? Error{} : model.error();
  };
  EXPECT_NE(told({{"layers.*.wq", "colwise"}}).hint.find("model.layers.*.self_attn.q_proj"), std::string::npos);
  const Error experts = told({{"model.layers.*.mlp", "experts"}});
  EXPECT_EQ(experts.place, "mesh.plan");
  EXPECT_NE(experts.expected.find("mesh.expert"), std::string::npos);
  EXPECT_NE(told({{"model.layers.*.mlp.up_proj", "colwise"}}).hint.find("other operands"), std::string::npos);
  job.mesh.sequence_parallel = true;
  EXPECT_NE(told({{"model.layers.*.mlp.down_proj", "rowwise"}}).hint.find("rowwise_reduced"), std::string::npos);
}

TEST(OwnStyles, TheFirstBlockTakesItsPartAndTheLastOneGathers) {
  const Job job = along_the_sequence({});
  const auto model = rank_model(llama(job), job);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(count_of(*model, "mesh.part", "model.layers.0"), 1);
  EXPECT_EQ(count_of(*model, "mesh.part", "model.layers.1"), 0);
  EXPECT_EQ(gathers_in(*model, "model.layers.0"), 0);
  EXPECT_EQ(gathers_in(*model, "model.layers.1"), 1);
  const ParamInfo& norm = param(*model, "model.norm.weight");  // reads what is whole again
  EXPECT_EQ(norm.part.dimension, -1);
  EXPECT_FALSE(has_row(*model, "model.norm", "lacks"));
  EXPECT_TRUE(build_plan(*model, job));
}

TEST(OwnStyles, WhatAModuleGathersAsALocalTensorIsSummedLayerByLayer) {
  const auto copies_and_scatters = [](const char* style) {
    const Job job = along_the_sequence({{"model.layers.*.mlp", style}});
    const auto model = rank_model(llama(job), job);
    EXPECT_TRUE(model) << model.error().message;
    std::pair<std::int64_t, std::string> found;
    for (const Op& op : model->ops) {
      if (!op.module.valid()) continue;
      const std::string& module = model->modules[op.module.index()].fqn;
      if (op.name == "mesh.copy" && module.starts_with("model.layers.0.mlp.")) ++found.first;
      if (op.name == "mesh.all_gather" && module == "model.layers.0.mlp")
        found.second = std::get<std::string>(op.args[4].value);
    }
    return found;
  };
  EXPECT_EQ(copies_and_scatters("gather"), (std::pair<std::int64_t, std::string>{0, "reduce_scatter"}));
  EXPECT_EQ(copies_and_scatters("gather_local"), (std::pair<std::int64_t, std::string>{2, "slice"}));
}

/// The sum of a layer is gathered by the module around it, and read by others as that.
TEST(OwnStyles, WhatWasScatteredIsGatheredByTheModuleAroundIt) {
  const Job job = along_the_sequence({{"model.layers.*.mlp", "gather_output"},
                                      {"model.layers.*.self_attn.o_proj", "rowwise_reduced"},
                                      {"model.layers.*.input_layernorm", "replicate"},
                                      {"model.layers.*.post_attention_layernorm", "replicate"},
                                      {"model.layers.0", "gather"},
                                      {"model.layers.1", "gather"}});
  const auto model = rank_model(llama(job), job);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(count_of(*model, "mesh.all_reduce", "model.layers.0.self_attn.o_proj"), 1);
  EXPECT_EQ(count_of(*model, "mesh.reduce_scatter", "model.layers.0.mlp.down_proj"), 1);
  EXPECT_EQ(gathers_in(*model, "model.layers.0.mlp"), 1);
}

TEST(OwnStyles, AttentionTakesItsQueriesHeadsOfKeysThatAreWhole) {
  const Job job = job_of();
  const auto model = rank_model(llama(job), job);
  ASSERT_TRUE(model) << model.error().message;
  std::int64_t attended = 0;
  for (const Op& op : model->ops) {
    if (op.name.find("scaled_dot_product") == std::string::npos) continue;
    ++attended;
    for (std::size_t k = 0; k < 3; ++k) {
      const auto* value = std::get_if<ValueRef>(&op.args[k].value);
      ASSERT_NE(value, nullptr);
      EXPECT_EQ(model->values[value->id.index()].shape[1], 3) << k;
    }
  }
  EXPECT_EQ(attended, 2);
  // Each rank has the gradient of its own heads alone.
  EXPECT_TRUE(has_row(*model, "model.layers.0.self_attn.k_proj.weight", "partial"));
  EXPECT_TRUE(has_row(*model, "model.layers.1.self_attn.v_proj.weight", "partial"));
  EXPECT_FALSE(has_row(*model, "model.layers.0.self_attn.q_proj.weight", "partial"));
  EXPECT_FALSE(build_plan(*model, job));  // trap 54
}

TEST(OwnStyles, ARowwiseLayerTakesItsPartOfWhatIsWhole) {
  Job job = job_of();
  job.mesh.plan = {{"model.layers.*.self_attn.o_proj", "rowwise"}};
  const auto model = rank_model(llama(job), job);
  ASSERT_TRUE(model) << model.error().message;
  std::int64_t parts = 0;
  for (const Op& op : model->ops) {
    if (op.name != "mesh.part") continue;
    ++parts;
    EXPECT_EQ(model->values[op.out.front().index()].shape.back(), 24);
    EXPECT_EQ(model->modules[op.module.index()].fqn.substr(0, 13), "model.layers.");
  }
  EXPECT_EQ(parts, 2);
  const std::vector<bool> trainable(model->params.size(), true);
  const auto end = static_cast<std::int32_t>(model->ops.size());
  const LoweredProgram lowered = lower(*model, {{0, end, false, -1}}, trainable).value();
  std::int64_t gathered = 0, copied = 0;  // gradients of the layers' inputs; parts
  for (const Kernel& kernel : lowered.templates.front().backward.kernels)
    gathered += kernel.collective == KernelCollective::AllGather ? 1 : 0;
  for (const Kernel& kernel : lowered.templates.front().forward.kernels)
    copied += kernel.collective == KernelCollective::AllGather ? 1 : 0;
  EXPECT_EQ(gathered, 2);
  EXPECT_EQ(copied, 0);
}

TEST(OwnStyles, ATableHandsOnNoLogits) {
  Job job = job_of();
  job.mesh.loss_parallel = true;
  job.mesh.plan = {{"model.embed_tokens", "head"}, {"lm_head", "head"}};
  const auto model = rank_model(llama(job), job);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(gathers_in(*model, "model.embed_tokens"), 1);
  EXPECT_EQ(gathers_in(*model, "lm_head"), 0);
}

TEST(OwnStyles, WeightsThatAreTiedBehindThePlanAreOneTensorsPart) {
  Job job = job_of();
  job.mesh.plan = {{"model.embed_tokens", "rowwise"}, {"lm_head", "head"}};
  const Model untied = rank_model(llama(job, true), job).value();
  EXPECT_FALSE(param(untied, "lm_head.weight").shares.valid());
  EXPECT_TRUE(has_row(untied, "lm_head.weight", "untied:model.embed_tokens.weight"));
  job.fsdp.tied = {{"lm_head.weight", "model.embed_tokens.weight"}};
  const Model tied = rank_model(llama(job, true), job).value();
  EXPECT_TRUE(param(tied, "lm_head.weight").shares.valid());
  EXPECT_TRUE(tied.parallel.empty());
  EXPECT_EQ(param(tied, "model.embed_tokens.weight").shape, (Shape{50, 48}));
  EXPECT_EQ(param(tied, "model.embed_tokens.weight").part.gradient, MeshPart::Gradient::Part);
  EXPECT_TRUE(build_plan(tied, job));
  job.mesh.plan = {{"model.embed_tokens", "head"}, {"lm_head", "head"}};  // of other parts
  EXPECT_TRUE(has_row(rank_model(llama(job, true), job).value(), "lm_head.weight", "untied:model.embed_tokens.weight"));
}

TEST(OwnStyles, WordsOfScriptsSayWhichStyleTheyAre) {
  const auto hint = [](const char* word) {
    Job job = job_of();
    job.mesh.plan = {{"lm_head", word}};
    const auto model = rank_model(llama(job), job);
    return model ? std::string() : model.error().hint;
  };
  const auto asks = [](const char* style) {
    return "did you mean \"" + std::string(style) + "\"? docs/meshes.md says what each does";
  };
  EXPECT_EQ(hint("ColwiseParallel"), asks("colwise"));
  EXPECT_EQ(hint("RowwiseParallel()"), asks("rowwise"));
  EXPECT_EQ(hint("sequence_parallel"), asks("sequence"));
  EXPECT_EQ(hint("colwise_gather_output"), asks("colwise"));
  EXPECT_EQ(hint("colwsie"), asks("colwise"));
  EXPECT_EQ(hint("diagonal"), "docs/meshes.md says what each does");
}

}  // namespace
}  // namespace foreshard
