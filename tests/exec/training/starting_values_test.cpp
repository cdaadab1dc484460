#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/model/sources/load_model.h"
#include "exec/run/buffers.h"
#include "exec/run/init_params.h"
#include "exec/run/weight_source.h"
#include "exec/training/starting_weights.h"
#include "tests/support/temporary_path.h"

namespace foreshard::exec {
namespace {

using nlohmann::json;
const std::string kData = FORESHARD_TEST_DATA;

/// A config.json of its own in a folder, and the model of it.
struct OnDisk {
  std::string file;
  Model model;
};
OnDisk model_of(const json& config) {
  static int number = 0;
  OnDisk result{foreshard::testing::temporary_path("config" + std::to_string(++number) + ".json"), {}};
  std::ofstream(result.file) << config.dump();
  ModelOptions options;
  options.source = result.file;
  options.seq = 8;
  options.seq_given = true;
  result.model = load_model(options).value();
  return result;
}

json llama(const json& rope) {
  return {{"model_type", "llama"},         {"hidden_size", 64},      {"num_attention_heads", 4},
          {"num_hidden_layers", 1},        {"vocab_size", 32},       {"intermediate_size", 64},
          {"max_position_embeddings", 64}, {"rope_parameters", rope}};
}

std::vector<float> floats(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kFloat).contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

void expect_frequencies(const json& rope, const std::vector<float>& expected) {
  const OnDisk disk = model_of(llama(rope));
  const auto buffers = initial_buffers(disk.model, disk.file, nullptr);
  ASSERT_TRUE(buffers) << to_text(buffers.error());
  ASSERT_EQ(buffers->size(), 2U);
  const std::vector<float> got = floats((*buffers)[0]);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_FLOAT_EQ(got[i], expected[i]) << i;
  EXPECT_TRUE((*buffers)[0].equal((*buffers)[1]));
}

// Values of transformers 5.23's LlamaRotaryEmbedding.
TEST(Buffers, RotaryFrequenciesOfEveryKindAreTheLibrarys) {
  expect_frequencies({{"rope_type", "default"}, {"rope_theta", 500000.0}},
                     {1.0F, 0.193922758F, 0.0376060307F, 0.00729266508F, 0.00141421345F, 0.000274248188F,
                      5.31829573e-05F, 1.03133852e-05F});
  expect_frequencies({{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 10000.0}},
                     {0.25F, 0.079056941F, 0.0250000004F, 0.00790569466F, 0.00249999994F, 0.000790569466F,
                      0.000250000012F, 7.90569466e-05F});
  expect_frequencies({{"rope_type", "llama3"},
                      {"factor", 8.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 32},
                      {"rope_theta", 10000.0}},
                     {1.0F, 0.0958399773F, 0.0125000002F, 0.00395284733F, 0.00124999997F, 0.000395284733F,
                      0.000125000006F, 3.95284733e-05F});
  expect_frequencies(
      {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}, {"rope_theta", 10000.0}},
      {1.0F, 0.197642356F, 0.0250000004F, 0.00790569466F, 0.00249999994F, 0.000790569466F, 0.000250000012F,
       7.90569466e-05F});
}

TEST(Buffers, BertsPositionsCountAndItsTypesAreZero) {
  const OnDisk disk = model_of({{"model_type", "bert"},
                                {"hidden_size", 16},
                                {"num_attention_heads", 2},
                                {"num_hidden_layers", 1},
                                {"intermediate_size", 16},
                                {"vocab_size", 20},
                                {"max_position_embeddings", 12}});
  const auto buffers = initial_buffers(disk.model, disk.file, nullptr);
  ASSERT_TRUE(buffers) << to_text(buffers.error());
  EXPECT_TRUE((*buffers)[0].equal(at::arange(12, at::kLong).unsqueeze(0)));
  EXPECT_TRUE((*buffers)[1].equal(at::zeros({1, 12}, at::kLong)));
}

TEST(Buffers, AnUnknownBufferIsNamed) {
  Model model;
  model.modules.push_back({});
  model.buffers.push_back({"enc.window", {3}, DType::Float32, ModuleId(0), true});
  const auto buffers = initial_buffers(model, "model.json", nullptr);
  ASSERT_FALSE(buffers);
  EXPECT_EQ(buffers.error().place, "enc.window");
}

TEST(Buffers, EachCallGivesTensorsOfItsOwn) {
  Model model;
  model.modules.push_back({});
  model.buffers.push_back({"bn.running_var", {3}, DType::Float32, ModuleId(0), true});
  const auto first = initial_buffers(model, "model.json", nullptr),
             second = initial_buffers(model, "model.json", nullptr);
  (*first)[0].zero_();
  EXPECT_TRUE((*second)[0].equal(at::ones({3})));
}

TEST(InitParams, SpreadAndConstantsAreTheLibrarys) {
  const OnDisk disk = model_of({{"model_type", "gpt2"},
                                {"n_embd", 64},
                                {"n_head", 4},
                                {"n_layer", 2},
                                {"n_positions", 32},
                                {"vocab_size", 96},
                                {"initializer_range", 0.05}});
  const auto initializer = ParamInitializer::create(disk.model, disk.file, 1);
  ASSERT_TRUE(initializer);
  const auto whole = [&](const char* name) { return initializer->whole(disk.model.find_param(name)); };
  EXPECT_NEAR(whole("transformer.wte.weight").std().item<double>(), 0.05, 0.003);
  EXPECT_NEAR(whole("transformer.h.1.mlp.c_fc.weight").std().item<double>(), 0.05, 0.003);
  EXPECT_NEAR(whole("transformer.h.1.mlp.c_proj.weight").std().item<double>(), 0.025, 0.002);  // / sqrt(2 layers)
  EXPECT_TRUE(whole("transformer.h.0.ln_1.weight").equal(at::ones({64})));
  EXPECT_TRUE(whole("transformer.h.0.attn.c_attn.bias").equal(at::zeros({192})));
  EXPECT_TRUE(whole("lm_head.weight").equal(whole("transformer.wte.weight"))) << "one tensor, one value";
}

TEST(InitParams, TheSeedAndTheNameDecideNotTheOrder) {
  const OnDisk disk = model_of(llama({{"rope_type", "default"}}));
  const auto first = ParamInitializer::create(disk.model, disk.file, 1),
             again = ParamInitializer::create(disk.model, disk.file, 1),
             other = ParamInitializer::create(disk.model, disk.file, 2);
  const ParamId up = disk.model.find_param("model.layers.0.mlp.up_proj.weight"),
                gate = disk.model.find_param("model.layers.0.mlp.gate_proj.weight");
  const at::Tensor value = first->whole(up);
  again->whole(gate);
  EXPECT_TRUE(value.equal(again->whole(up)));
  EXPECT_FALSE(value.equal(first->whole(gate)));
  EXPECT_FALSE(value.equal(other->whole(up)));
}

/// One module of a class, with its parameters; no config.json says anything of it.
Model module_of(const std::string& class_name, const std::vector<std::pair<std::string, Shape>>& params,
                const std::vector<std::string>& bases = {}) {
  Model model;
  model.modules.push_back({"", "Net", {}, {}, {}, {}, {}});
  ModuleInfo module{"m", class_name, bases, ModuleId(0), {}, {}, {}};
  for (const auto& [leaf, shape] : params) {
    module.params.push_back(ParamId(model.params.size()));
    model.params.push_back({"m." + leaf, shape, DType::Float32, true, ModuleId(1), {}});
  }
  model.modules.push_back(module);
  return model;
}

double largest(const Model& model, const std::string& init = "default", std::size_t param = 0) {
  const auto initializer = ParamInitializer::create(model, "", 3, init);
  EXPECT_TRUE(initializer) << to_text(initializer.error());
  return initializer->whole(ParamId(param)).abs().max().item<double>();
}

// torch.nn's reset_parameters: bounds that a thousand elements come close to.
TEST(InitParams, EachKindOfModuleInitialisesItself) {
  EXPECT_NEAR(largest(module_of("Linear", {{"weight", {64, 25}}})), 0.2, 0.01);
  EXPECT_NEAR(largest(module_of("Mine", {{"weight", {64, 25}}}, {"Linear"})), 0.2, 0.01);
  EXPECT_NEAR(largest(module_of("Linear", {{"weight", {640, 25}}, {"bias", {640}}}), "default", 1), 0.2, 0.01);
  EXPECT_NEAR(largest(module_of("ConvTranspose2d", {{"weight", {64, 5, 5, 2}}})), std::sqrt(1.0 / 50), 0.01);
  EXPECT_NEAR(largest(module_of("LSTM", {{"weight_ih_l0", {400, 64}}})), 0.1, 0.005);
  EXPECT_NEAR(largest(module_of("LSTM", {{"bias_hh_l0", {400}}})), 0.1, 0.005);
  EXPECT_NEAR(largest(module_of("GRU", {{"weight_hh_l0", {300, 100}}})), 0.1, 0.005);
  EXPECT_NEAR(largest(module_of("MultiheadAttention", {{"in_proj_weight", {96, 54}}})), 0.2, 0.01);  // xavier
  EXPECT_EQ(largest(module_of("MultiheadAttention", {{"in_proj_bias", {96}}})), 0);
  EXPECT_EQ(largest(module_of("NonDynamicallyQuantizableLinear", {{"weight", {8, 8}}, {"bias", {8}}}), "default", 1),
            0);
  EXPECT_EQ(largest(module_of("PReLU", {{"weight", {8}}})), 0.25);
  EXPECT_EQ(largest(module_of("MyNorm", {{"weight", {8}}}, {"BatchNorm2d", "_NormBase"})), 1);
  EXPECT_GT(largest(module_of("EmbeddingBag", {{"weight", {100, 8}}})), 2.5);  // N(0, 1)
}

TEST(InitParams, PaddingRowsOfEmbeddingsAreZero) {
  Model model = module_of("Embedding", {{"weight", {5, 8}}});
  Op look_up;
  look_up.name = "aten.embedding.default";
  look_up.args = {Arg{ParamRef{ParamId(0)}}, Arg{ValueRef{ValueId(0)}}, Arg{std::int64_t{3}}};
  model.ops.push_back(look_up);
  const at::Tensor table = ParamInitializer::create(model, "", 3)->whole(ParamId(0));
  EXPECT_EQ(table[3].abs().max().item<double>(), 0);
  EXPECT_GT(table[2].abs().max().item<double>(), 0.1);
}

TEST(InitParams, TheJobSaysHow) {
  const Model model = module_of("Linear", {{"weight", {100, 100}}, {"bias", {100}}});
  const auto drawn = ParamInitializer::create(model, "", 3, "normal:0.5");
  EXPECT_NEAR(drawn->whole(ParamId(0)).std().item<double>(), 0.5, 0.02);
  EXPECT_LT(largest(model, "normal:0.5", 1), 0.11) << "a bias stays as its module makes it";
  EXPECT_EQ(largest(model, "zeros"), 0);
  for (const char* wrong : {"normal:", "normal:x", "normal:-1", "ones", ""})
    EXPECT_EQ(ParamInitializer::create(model, "", 3, wrong).error().place, "train.init") << wrong;
}

TEST(WeightSource, AnArchivesPayloadsAreReadOneByOne) {
  const std::string file = kData + "/pt2/user_mlp_shared.pt2";
  const auto source = open_weights(file);
  ASSERT_TRUE(source) << to_text(source.error());
  ModelOptions options;
  options.source = file;
  const Model model = load_model(options).value();
  for (std::size_t p = 0; p < model.params.size(); ++p) {
    const auto whole = whole_param(model, ParamId(p), **source);
    ASSERT_TRUE(whole) << to_text(whole.error());
    EXPECT_EQ(whole->sizes().vec(), model.params[p].shape);
    EXPECT_GT(whole->abs().sum().item<double>(), 0.0);
  }
}

TEST(WeightSource, BaseModelsPrefixesAndTiedNamesAreTried) {
  const auto source = open_weights(kData + "/exec/llama_tiny/model.safetensors");
  ASSERT_TRUE(source) << to_text(source.error());
  Model model;
  model.modules.push_back({});
  model.params.push_back({"wrapped.model.norm.weight", {64}, DType::Float32, true, ModuleId(0), {}});
  model.params.push_back({"head.weight", {64}, DType::Float32, true, ModuleId(0), {}});
  model.params.push_back({"model.norm.weight", {64}, DType::Float32, true, ModuleId(0), ParamId(1)});
  model.params.push_back({"absent", {64}, DType::Float32, true, ModuleId(0), {}});
  model.params.push_back({"lm_head.weight", {64}, DType::Float32, true, ModuleId(0), {}});
  const at::Tensor norm = (*source)->tensor("model.norm.weight").value();
  EXPECT_TRUE(whole_param(model, ParamId(0), **source)->equal(norm)) << "without its first part";
  EXPECT_TRUE(whole_param(model, ParamId(1), **source)->equal(norm)) << "by the name that shares it";
  EXPECT_EQ(whole_param(model, ParamId(3), **source).error().place, "absent");
  EXPECT_EQ(whole_param(model, ParamId(4), **source).error().got, "[96, 64]");
}

TEST(WeightSource, DamagedArchivesAreErrors) {
  for (const char* name : {"truncated", "weight_path_traversal"}) {
    EXPECT_FALSE(open_weights(kData + "/pt2/" + name + ".pt2")) << name;
  }
}

TEST(StartingWeights, AnArchiveOfMetaTensorsStartsFresh) {
  Job job;
  job.model.source = kData + "/pt2/resnet50_meta.pt2";
  const Model model = load_model(job.model).value();
  const auto start = starting_weights(model, job);
  ASSERT_TRUE(start) << to_text(start.error());
  EXPECT_EQ(start->origin, "fresh values, as their modules initialise themselves, seed 0");
  EXPECT_EQ(start->params(ParamId(0)).sizes().vec(), model.params[0].shape);
  job.train.init = "zeros";
  EXPECT_EQ(starting_weights(model, job)->params(ParamId(0)).abs().max().item<double>(), 0);
}

TEST(StartingWeights, TheJobNamesThem) {
  Job job;
  job.model.source = kData + "/exec/llama_tiny/config.json";
  const Model model = load_model(job.model).value();
  EXPECT_EQ(starting_weights(model, job)->origin, "fresh values, as their modules initialise themselves, seed 0");
  job.model.weights = kData + "/exec/llama_tiny/model.safetensors";
  const auto start = starting_weights(model, job);
  ASSERT_TRUE(start) << to_text(start.error());
  EXPECT_EQ(start->origin, "the weights of " + job.model.weights);
  const ParamId norm = model.find_param("model.norm.weight");
  EXPECT_TRUE(start->params(norm).equal(open_weights(job.model.weights).value()->tensor("model.norm.weight").value()));
  job.model.weights = kData + "/exec/no_such_folder";
  EXPECT_FALSE(starting_weights(model, job));
}

}  // namespace
}  // namespace foreshard::exec
