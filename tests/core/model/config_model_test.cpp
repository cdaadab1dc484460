#include "core/model/families/config_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/model/json_input.h"
#include "core/model/sources/load_model.h"
#include "tests/oracle/models/model_truth.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

using Json = nlohmann::json;

const std::string kModels = std::string(FORESHARD_TEST_DATA) + "/models/";

Json toy_config() {
  return Json::parse(
      R"({"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 128,
    "max_position_embeddings": 128, "model_type": "llama", "num_attention_heads": 8, "num_hidden_layers": 2, "num_key_value_heads": 4,
    "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 256})");
}

Json toy_gpt2() {
  return Json::parse(
      R"({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64})");
}

Result<Model> build(const Json& config, ModelOptions options = {}, ProgramOptions program = {}) {
  return model_from_config_json(config, "config.json", options, program);
}

std::int64_t count(const Model& model, std::string_view name) {
  return std::count_if(model.ops.begin(), model.ops.end(), [&](const Op& op) { return op.name == name; });
}

void expect_truth(const oracle::RowResult& row, const std::string& what) {
  EXPECT_EQ(row.verdict, oracle::Verdict::Pass)
      << what << " at " << row.place << ": expected " << row.expected << ", got " << row.got << row.detail;
}

TEST(ConfigModel, StructureEqualsTheRecordedOne) {
  for (const char* name : {"llama-2-7b", "llama-3.2-1b", "mistral-7b-v0.1", "qwen2.5-0.5b", "gpt2"}) {
    expect_truth(oracle::compare_structure(kModels + name), name);
  }
}

TEST(ConfigModel, OperatorsEqualTheRecordedOnes) {
  const std::vector<std::array<const char*, 3>> rows{{"llama-3.2-1b", "cuda", "bf16"}, {"llama-3.2-1b", "cuda", "f32"},
                                                     {"llama-2-7b", "cuda", "f32"},    {"gpt2", "cuda", "f32"},
                                                     {"gpt2", "meta_math", "bf16"},    {"gpt2", "cpu", "bf16"},
                                                     {"qwen2.5-0.5b", "cuda", "bf16"}, {"qwen2.5-0.5b", "cpu", "f32"}};
  for (const auto& [name, route, dtype] : rows) {
    expect_truth(oracle::compare_route(kModels + name, route, dtype), std::string(name) + " " + route + " " + dtype);
  }
}

TEST(ConfigModel, LossTailEqualsTheRecordedOne) {
  for (const char* name : {"llama-3.2-1b", "gpt2"}) expect_truth(oracle::compare_loss_tail(kModels + name), name);
}

TEST(ConfigModel, TiedHeadSharesTheEmbeddingAndIsUsedByItsOwnName) {
  const auto model = model_from_config(kModels + "llama-3.2-1b/config.json", {});
  ASSERT_TRUE(model.has_value());
  const ParamId head = model->find_param("lm_head.weight");
  ASSERT_TRUE(head.valid());
  EXPECT_EQ(model->storage_of(head), model->find_param("model.embed_tokens.weight"));
  bool used = false;
  for (const Op& op : model->ops) {
    for (const Arg& arg : op.args) used = used || arg == Arg{ParamRef{head}};
  }
  EXPECT_TRUE(used);
}

TEST(ConfigModel, ModulesAndParametersKnowEachOther) {
  const auto model = build(toy_config());
  ASSERT_TRUE(model.has_value());
  for (std::size_t i = 0; i < model->modules.size(); ++i) {
    for (const ModuleId child : model->modules[i].children)
      EXPECT_EQ(model->modules[child.index()].parent, ModuleId(i));
    for (const ParamId param : model->modules[i].params) EXPECT_EQ(model->params[param.index()].owner, ModuleId(i));
    if (i > 0) {
      EXPECT_LT(model->modules[i].parent.index(), i);
    }
  }
  EXPECT_EQ(model->block_class, "LlamaDecoderLayer");
  EXPECT_EQ(model->architecture, "llama");
}

TEST(ConfigModel, SequenceIsClampedUnlessItWasAskedFor) {
  ModelOptions options;
  options.batch = 3;
  auto model = build(toy_config(), options);
  ASSERT_TRUE(model.has_value());
  EXPECT_EQ(model->values[0].shape, (Shape{3, 128}));
  EXPECT_EQ(model->tokens_per_batch, 3 * 128);
  options.seq_given = true;
  model = build(toy_config(), options);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code, ErrorCode::OutOfRange);
  EXPECT_NE(to_text(model.error()).find("128"), std::string::npos);
}

TEST(ConfigModel, LossesAreWhatTheJobAsksFor) {
  ModelOptions options;
  for (const auto& [loss, casts, labels] : std::vector<std::tuple<std::string, int, int>>{{"auto", 1, 1},
                                                                                          {"cross_entropy", 0, 0},
                                                                                          {"cross_entropy_fp32", 1, 0},
                                                                                          {"cross_entropy_flat", 1, 0},
                                                                                          {"none", 0, 0}}) {
    options.loss = loss;
    const auto model = build(toy_config(), options, {.compute_dtype = DType::BFloat16});
    ASSERT_TRUE(model.has_value()) << loss;
    EXPECT_EQ(model->has_loss, true);
    EXPECT_EQ(model->inputs.size(), 1u + static_cast<std::size_t>(labels));
    EXPECT_EQ(count(*model, "aten.nll_loss_forward.default"), loss == "none" ? 0 : 1);
    EXPECT_EQ(model->values[model->outputs[0].index()].shape, Shape{});
    EXPECT_EQ(model->values[model->outputs[0].index()].dtype, casts == 1 ? DType::Float32 : DType::BFloat16) << loss;
  }
  options.loss = "hinge";
  EXPECT_EQ(build(toy_config(), options).error().place, "model.loss");
}

TEST(ConfigModel, AttentionIsPyTorchsChoiceOrTheOneAskedFor) {
  const auto kernel = [&](std::string asked, DType dtype, ProgramDevice device, std::int64_t heads) {
    ModelOptions options;
    options.attention = std::move(asked);
    Json config = toy_config();
    config["num_key_value_heads"] = heads;
    const auto model = build(config, options, {.compute_dtype = dtype, .device = device});
    if (!model) return std::string(error_code_name(model.error().code));
    for (const Op& op : model->ops) {
      if (op.name.find("_scaled_dot_product_") != std::string::npos) return op.name.substr(5);
      if (op.name.find("softmax") != std::string::npos) return op.name.substr(5);
    }
    return std::string("none");
  };
  using enum DType;
  EXPECT_EQ(kernel("sdpa", BFloat16, ProgramDevice::Cuda, 4), "_scaled_dot_product_flash_attention.default");
  EXPECT_EQ(kernel("sdpa", Float32, ProgramDevice::Cuda, 8), "_scaled_dot_product_efficient_attention.default");
  EXPECT_EQ(kernel("sdpa", Float32, ProgramDevice::Cuda, 4), "_safe_softmax.default");  // grouped heads
  EXPECT_EQ(kernel("sdpa", Float32, ProgramDevice::Cpu, 4), "_scaled_dot_product_flash_attention_for_cpu.default");
  EXPECT_EQ(kernel("sdpa", BFloat16, ProgramDevice::Meta, 4), "_safe_softmax.default");
  EXPECT_EQ(kernel("sdpa_math", BFloat16, ProgramDevice::Cuda, 4), "_safe_softmax.default");
  EXPECT_EQ(kernel("sdpa_efficient", BFloat16, ProgramDevice::Cuda, 8),
            "_scaled_dot_product_efficient_attention.default");
  EXPECT_EQ(kernel("eager", BFloat16, ProgramDevice::Cuda, 4), "_softmax.default");
  EXPECT_EQ(kernel("sdpa_flash", Float32, ProgramDevice::Cuda, 4), "inconsistent");
  EXPECT_EQ(kernel("sdpa_efficient", BFloat16, ProgramDevice::Cuda, 4), "inconsistent");
  EXPECT_EQ(kernel("magic", BFloat16, ProgramDevice::Cuda, 4), "out_of_range");
}

TEST(ConfigModel, OnAGpuDropoutIsFusedAndTheHostReadsOneAnswer) {
  const auto model = build(toy_gpt2());
  ASSERT_TRUE(model.has_value());
  EXPECT_EQ(count(*model, "aten.native_dropout.default"), 1 + 2 * 2);
  EXPECT_EQ(count(*model, "aten._local_scalar_dense.default"), 1);
  const auto recorded = build(toy_gpt2(), {}, {.recorded = true});
  ASSERT_TRUE(recorded.has_value());
  EXPECT_EQ(count(*recorded, "aten.native_dropout.default"), 0);
  EXPECT_EQ(count(*recorded, "aten._local_scalar_dense.default"), 0);
}

TEST(ConfigModel, DtypeOfParametersIsTheJobsOrTheFiles) {
  ModelOptions options;
  EXPECT_EQ(build(toy_config(), options)->params[0].dtype, DType::Float32);
  options.dtype.reset();
  EXPECT_EQ(build(toy_config(), options)->params[0].dtype, DType::BFloat16);
  const auto mixed = build(toy_config(), {}, {.compute_dtype = DType::Float16, .buffer_dtype = DType::BFloat16});
  EXPECT_EQ(mixed->params[0].dtype, DType::Float32);
  EXPECT_EQ(mixed->compute_dtype, DType::Float16);
  EXPECT_EQ(mixed->buffers[0].dtype, DType::BFloat16);
}

TEST(ConfigModel, PaddingIsAbsentNullOrCountedFromTheEnd) {
  const auto padding = [](Json config, const Json& pad) -> std::optional<std::int64_t> {
    if (pad.is_discarded()) config.erase("pad_token_id");
    if (!pad.is_discarded()) config["pad_token_id"] = pad;
    const auto model = build(config);
    EXPECT_TRUE(model) << to_text(model.error());
    if (!model) return std::nullopt;
    const auto op = std::find_if(model->ops.begin(), model->ops.end(),
                                 [](const Op& o) { return o.name == "aten.embedding.default"; });
    return op->args.size() > 2 ? std::get<std::int64_t>(op->args[2].value) : -1;
  };
  const Json absent = Json(Json::value_t::discarded);
  const Json bert = Json::parse(R"({"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1,
      "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100})");
  EXPECT_EQ(padding(bert, absent), 0);  // the library's default
  EXPECT_EQ(padding(bert, nullptr), -1);
  EXPECT_EQ(padding(bert, -1), 99);
  EXPECT_EQ(padding(toy_config(), absent), -1);
  EXPECT_EQ(padding(toy_config(), 7), 7);
  EXPECT_EQ(padding(toy_config(), -1), 255);  // the first Llama's file
  Json beyond = toy_config();
  beyond["pad_token_id"] = 256;
  EXPECT_FALSE(build(beyond));
}

TEST(ConfigModel, TheNumberOfExpertsHasTwoNames) {
  const auto experts = [](const char* type, const char* architecture, const char* key) -> std::int64_t {
    Json config = toy_config();
    config["model_type"] = type;
    config["architectures"] = {architecture};
    config["num_experts_per_tok"] = 2;
    config[key] = 6;
    const auto model = build(config);
    EXPECT_TRUE(model) << to_text(model.error());
    return model ? model->params[model->find_param("model.layers.0.mlp.gate.weight").index()].shape[0] : 0;
  };
  EXPECT_EQ(experts("qwen3_moe", "Qwen3MoeForCausalLM", "num_experts"), 6);
  EXPECT_EQ(experts("qwen3_moe", "Qwen3MoeForCausalLM", "num_local_experts"), 6);  // as the library saves it
  EXPECT_EQ(experts("mixtral", "MixtralForCausalLM", "num_local_experts"), 6);
  EXPECT_EQ(experts("mixtral", "MixtralForCausalLM", "num_experts"), 6);
  EXPECT_EQ(experts("qwen2_moe", "Qwen2MoeForCausalLM", "num_local_experts"), 60);  // another key there
}

TEST(ConfigModel, WhatIsNoModelOfOursIsRefusedByItsKey) {
  const auto refused = [](std::string_view key, const Json& value) {
    Json config = toy_config();
    config[std::string(key)] = value;
    const auto model = build(config);
    return model ? "accepted" : model.error().place;
  };
  EXPECT_EQ(refused("quantization_config", {{"quant_method", "gptq"}}), "quantization_config");
  EXPECT_EQ(refused("quantization_config", nullptr), "accepted");
  EXPECT_EQ(refused("rope_theta", 0), "rope_theta");
  EXPECT_EQ(refused("rope_theta", "10000"), "rope_theta");
  EXPECT_EQ(refused("rope_theta", 5e5), "accepted");
  for (const char* kind : {"linear", "dynamic", "llama3"})
    EXPECT_EQ(refused("rope_scaling", {{"rope_type", kind}}), "rope_scaling.factor") << kind;
}

TEST(ConfigModel, Qwen3NormalisesEveryHead) {
  Json config = toy_config();
  config["model_type"] = "qwen3";
  config["architectures"] = {"Qwen3ForCausalLM"};
  config["head_dim"] = 16;
  const auto model = build(config);
  ASSERT_TRUE(model.has_value()) << to_text(model.error());
  EXPECT_TRUE(model->find_param("model.layers.1.self_attn.q_norm.weight").valid());
  EXPECT_FALSE(model->find_param("model.layers.0.self_attn.q_proj.bias").valid());
  EXPECT_EQ(model->params[model->find_param("model.layers.0.self_attn.q_proj.weight").index()].shape, (Shape{128, 64}));
  EXPECT_EQ(model->params[model->find_param("model.layers.0.self_attn.o_proj.weight").index()].shape, (Shape{64, 128}));
  EXPECT_EQ(count(*model, "aten.rsqrt.default"), 2 * 4 + 1);
}

TEST(ConfigModel, BiasesAreWhereTheFamilyHasThem) {
  Json config = toy_config();
  config["attention_bias"] = true;
  config["mlp_bias"] = true;
  const auto llama = build(config);
  EXPECT_TRUE(llama->find_param("model.layers.0.self_attn.o_proj.bias").valid());
  EXPECT_TRUE(llama->find_param("model.layers.0.mlp.down_proj.bias").valid());
  config["model_type"] = "qwen2";
  config["architectures"] = {"Qwen2ForCausalLM"};
  const auto qwen2 = build(config);
  EXPECT_TRUE(qwen2->find_param("model.layers.0.self_attn.q_proj.bias").valid());
  EXPECT_FALSE(qwen2->find_param("model.layers.0.self_attn.o_proj.bias").valid());
}

Json toy_phi3() {
  return Json::parse(
      R"({"model_type": "phi3", "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 3, "num_hidden_layers": 1,
    "vocab_size": 100, "pad_token_id": 0, "max_position_embeddings": 160, "original_max_position_embeddings": 40})");
}

/// The number that the cosines are multiplied by.
double rotary_factor(const Model& model) {
  for (std::size_t i = 0; i + 1 < model.ops.size(); ++i) {
    if (model.ops[i].name == "aten.cos.default") return std::get<double>(model.ops[i + 1].args[1].value);
  }
  return 0.0;
}

TEST(ConfigModel, RotaryKindsDifferInTheirFactorAndInWhatAForwardDoes) {
  struct Row {
    const char* rope;
    double factor;         // on cos and sin
    std::int64_t reads;    // of the host
    std::int64_t updates;  // of the frequencies
  };
  const double yarn = 0.1 * std::log(4.0) + 1;
  const Row rows[] = {{R"({"rope_type": "linear", "factor": 2})", 1.0, 0, 0},
                      {R"({"rope_type": "llama3", "factor": 8})", 1.0, 0, 0},
                      {R"({"type": "dynamic", "factor": 2})", 1.0, 2, 0},
                      {R"({"rope_type": "yarn", "factor": 4})", yarn, 0, 0},
                      {R"({"rope_type": "yarn", "factor": 4, "mscale": 1, "mscale_all_dim": 1})", 1.0, 0, 0},
                      {R"({"rope_type": "longrope", "factor": 4, "original_max_position_embeddings": 40,
           "short_factor": [1, 1, 1, 1], "long_factor": [2, 2, 2, 2]})",
                       std::sqrt(1 + std::log(4.0) / std::log(40.0)), 0, 1}};
  const auto plain = build(toy_config());
  ASSERT_TRUE(plain) << to_text(plain.error());
  for (const Row& row : rows) {
    Json config = toy_config();
    config["rope_scaling"] = Json::parse(row.rope);
    const auto model = build(config);
    ASSERT_TRUE(model) << row.rope << to_text(model.error());
    EXPECT_DOUBLE_EQ(rotary_factor(*model), row.factor) << row.rope;
    EXPECT_EQ(count(*model, "aten._local_scalar_dense.default") - count(*plain, "aten._local_scalar_dense.default"),
              row.reads)
        << row.rope;
    EXPECT_EQ(count(*model, "aten.copy_.default"), row.updates) << row.rope;
  }
}

TEST(ConfigModel, Phi3KnowsLongropeByItsOldNamesAndNothingElse) {
  for (const char* kind : {"longrope", "su", "yarn"}) {
    Json config = toy_phi3();
    config["rope_scaling"] = {{"type", kind},
                              {"short_factor", Json(std::vector<double>(8, 1.0))},
                              {"long_factor", Json(std::vector<double>(8, 2.0))}};
    const auto model = build(config);
    ASSERT_TRUE(model) << kind << to_text(model.error());
    EXPECT_DOUBLE_EQ(rotary_factor(*model), std::sqrt(1 + std::log(4.0) / std::log(40.0))) << kind;
    EXPECT_EQ(model->buffers.back().fqn, "model.rotary_emb.long_inv_freq");
  }
  struct Row {
    Json rope;
    const char* place;
  };
  const Row rows[] = {
      {{{"type", "linear"}, {"factor", 2}}, "rope_scaling.rope_type"},
      {{{"type", "longrope"}, {"short_factor", Json(std::vector<double>(8, 1.0))}}, "rope_scaling.long_factor"},
      {{{"type", "longrope"},
        {"short_factor", Json(std::vector<double>(8, 1.0))},
        {"long_factor", Json(std::vector<double>(7, 1.0))}},
       "rope_scaling.long_factor"},
      {{{"type", "longrope"},
        {"short_factor", Json(std::vector<double>(7, 1.0))},
        {"long_factor", Json(std::vector<double>(7, 1.0))}},
       "rope_scaling"},
      {{{"type", "longrope"}, {"short_factor", "much"}, {"long_factor", Json(std::vector<double>(8, 1.0))}},
       "rope_scaling.short_factor"}};
  for (const Row& row : rows) {
    Json config = toy_phi3();
    config["rope_scaling"] = row.rope;
    const auto model = build(config);
    ASSERT_FALSE(model) << row.rope;
    EXPECT_EQ(model.error().place, row.place) << to_text(model.error());
  }
}

TEST(ConfigModel, ActivationsAreTheLibrarysAndUnknownOnesAreToldThem) {
  Json config = toy_config();
  config["hidden_act"] = "swish";  // the same kernel under another class than silu
  EXPECT_EQ(build(config)->modules[build(config)->find_module("model.layers.0.mlp.act_fn").index()].class_name, "SiLU");
  config["hidden_act"] = "relu2";
  EXPECT_EQ(count(*build(config), "aten.pow.Tensor_Scalar"), count(*build(toy_config()), "aten.pow.Tensor_Scalar") + 2);
  config["hidden_act"] = "swoosh";
  const auto model = build(config);
  ASSERT_FALSE(model);
  EXPECT_NE(to_text(model.error()).find("mish"), std::string::npos);
}

TEST(ConfigModel, EveryKeyOfAWrongTypeIsAnErrorOrDoesNotMatter) {
  for (const Json& base : {toy_config(), toy_gpt2()}) {
    for (const auto& [key, unused] : base.items()) {
      for (const Json& wrong : {Json("x"), Json(-1), Json(0), Json(1.5), Json(true), Json::array({1}), Json::object(),
                                Json(1e300), Json(std::numeric_limits<std::uint64_t>::max()),
                                Json(std::numeric_limits<std::int64_t>::min()), Json(1'000'000'000)}) {
        Json config = base;
        config[key] = wrong;
        const auto model = build(config);
        if (!model) {
          EXPECT_NE(to_text(model.error()).find(key == "torch_dtype" ? "dtype" : key), std::string::npos)
              << key << " " << wrong << to_text(model.error());
        }
      }
      Json config = base;
      config.erase(key);
      build(config);
    }
  }
}

TEST(ConfigModel, EveryTruncationOfAFileIsAnError) {
  const std::string text = toy_config().dump(1);
  for (std::size_t n = 0; n < text.size(); n += 5) EXPECT_FALSE(parse_json(text.substr(0, n), "x")) << n;
}

TEST(ConfigModel, HugeSizesAreRefusedBeforeAnythingIsAllocated) {
  ModelOptions options;
  options.batch = 1'000'000;
  Json config = toy_config();
  config["max_position_embeddings"] = 100'000'000;
  options.seq = 100'000'000;
  options.seq_given = true;
  const auto model = build(config, options);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code, ErrorCode::TooLarge);
  for (const char* key :
       {"num_hidden_layers", "hidden_size", "vocab_size", "intermediate_size", "num_attention_heads"}) {
    config = toy_config();
    config[key] = std::int64_t{1} << 40;
    const auto huge = build(config);
    ASSERT_FALSE(huge.has_value());
    EXPECT_EQ(huge.error().code, ErrorCode::TooLarge) << key;
    EXPECT_EQ(huge.error().place, key);
  }
}

TEST(ConfigModel, SlidingWindowsNeedAMaskOnlyForLongerRows) {
  Json config = toy_config();
  config["model_type"] = "mistral";
  config["architectures"] = {"MistralForCausalLM"};
  config["sliding_window"] = 64;
  ModelOptions options;
  options.seq_given = true;
  options.seq = 63;
  const ProgramOptions half{.compute_dtype = DType::BFloat16};
  const auto shorter = build(config, options, half);
  ASSERT_TRUE(shorter.has_value()) << to_text(shorter.error());
  EXPECT_EQ(count(*shorter, "aten._scaled_dot_product_flash_attention.default"), 2);
  options.seq = 64;
  const auto longer = build(config, options, half);
  ASSERT_TRUE(longer.has_value()) << to_text(longer.error());
  EXPECT_EQ(count(*longer, "aten._scaled_dot_product_efficient_attention.default"), 2);  // flash takes no mask
  EXPECT_EQ(count(*longer, "aten.bitwise_and.Tensor"), 2);
  config["model_type"] = "qwen2";
  config["architectures"] = {"Qwen2ForCausalLM"};
  config["use_sliding_window"] = true;
  config["max_window_layers"] = 1;
  const auto mixed = build(config, options, half);
  ASSERT_TRUE(mixed.has_value()) << to_text(mixed.error());
  EXPECT_EQ(count(*mixed, "aten._scaled_dot_product_flash_attention.default"), 1);
  EXPECT_EQ(count(*mixed, "aten._scaled_dot_product_efficient_attention.default"), 1);
}

TEST(ConfigModel, EagerAttentionAddsAMaskAndKeepsTheSoftmaxWide) {
  ModelOptions options;
  options.attention = "eager";
  const auto llama = build(toy_config(), options, {.compute_dtype = DType::BFloat16});
  ASSERT_TRUE(llama.has_value()) << to_text(llama.error());
  EXPECT_EQ(count(*llama, "aten.where.self"), 1);
  EXPECT_EQ(count(*llama, "aten.bmm.default"), 4);
  for (const Op& op : llama->ops) {
    if (op.name == "aten._softmax.default") {
      EXPECT_EQ(llama->values[op.out[0].index()].dtype, DType::Float32);
    }
  }
  const auto gpt2 = build(toy_gpt2(), options, {.compute_dtype = DType::BFloat16});
  ASSERT_TRUE(gpt2.has_value()) << to_text(gpt2.error());
  EXPECT_EQ(count(*gpt2, "aten.native_dropout.default"), 1 + 3 * 2);
}

TEST(LoadModel, FindsTheFormatByContent) {
  ModelOptions options;
  options.source = kModels + "gpt2";
  const auto folder = load_model(options);
  ASSERT_TRUE(folder.has_value()) << to_text(folder.error());
  EXPECT_EQ(folder->name, "gpt2");
  options.source = FORESHARD_TEST_DATA;
  EXPECT_EQ(load_model(options).error().code, ErrorCode::NotFound);
  options.source = "";
  EXPECT_EQ(load_model(options).error().place, "model.source");
  options.source = kModels + "gpt2/structure.json.gz";
  EXPECT_EQ(load_model(options).error().code, ErrorCode::BadSyntax);
}

TEST(LoadModel, BytesThatOnlyBeginLikeAnArchiveAreRefusedWithTheFile) {
  const std::string path = testing::temporary_path("archive.bin");
  std::ofstream(path) << "PK\x03\x04 rest";
  ModelOptions options;
  options.source = path;
  const Result<Model> model = load_model(options);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().file, path);
  EXPECT_NE(model.error().code, ErrorCode::Unsupported);
  std::filesystem::remove(path);
}

TEST(ConfigModel, AllRecordedModelsOfTheFamiliesAgree) {
  const std::string shared = std::string(FORESHARD_SHARED) + "/models/configs/";
  if (!std::filesystem::exists(shared)) GTEST_SKIP() << "../shared is not here";
  for (const char* name :
       {"llama-2-7b", "llama-2-70b", "llama-3-8b", "llama-3.1-405b", "qwen2-7b", "gpt2-medium", "gpt2-large"}) {
    expect_truth(oracle::compare_structure(shared + name), name);
    for (const char* route : {"cuda", "meta_math"})
      expect_truth(oracle::compare_route(shared + name, route, "bf16"), name);
  }
}

}  // namespace
}  // namespace foreshard
