// DeepSeek V2 and V3: latent attention, first some dense layers, then experts beside an MLP that sees every token.
//
// As Transformers runs them in training (modeling_deepseek_v2.py, modeling_deepseek_v3.py): V3's modules that predict
// further tokens exist in checkpoints, not in its model.
#include <algorithm>
#include <cmath>
#include <optional>

#include "core/model/families/deepseek/grouped_router.h"
#include "core/model/families/deepseek/latent_attention.h"
#include "core/model/families/experts.h"
#include "core/model/families/losses.h"
#include "core/model/json_input.h"

namespace foreshard::families {
namespace {

struct DeepseekConfig {
  LatentConfig attention;
  ExpertsConfig experts;
  GroupedRouterConfig router;
  std::string experts_class;
  std::int64_t hidden = 0, intermediate = 0, layers = 0, vocabulary = 0, max_positions = 0;
  std::int64_t dense_layers = 0;  // the first ones
  std::int64_t shared_width = 0;  // of the MLP beside the experts
  std::int64_t padding_index = -1;
  double eps = 1e-6;
  bool mlp_bias = false, tied = false;
  RopeScaling rope;
  Activation activation = Activation::Silu;
  DType dtype = DType::Float32;

  const std::string& prefix() const { return attention.prefix; }
};

void read_attention(ConfigReader& config, bool third, DeepseekConfig& c) {
  LatentConfig& a = c.attention;
  a.hidden = c.hidden;
  a.heads = config.integer("num_attention_heads", 1, 1 << 16);
  a.query_rank = config.is_null("q_lora_rank") ? 0 : config.integer_or("q_lora_rank", 1536, 1, kMaxWidth);
  a.latent_rank = config.integer_or("kv_lora_rank", 512, 1, kMaxWidth);
  a.still = config.integer_or("qk_nope_head_dim", 128, 1, 1 << 16);
  a.turning = config.integer_or("qk_rope_head_dim", 64, 2, 1 << 16);
  a.value = config.integer_or("v_head_dim", 128, 1, 1 << 16);
  a.dropout = config.number_or("attention_dropout", 0.0, 0.0, 1.0);
  a.bias = config.boolean_or("attention_bias", false);
  const bool interleaved = config.boolean_or("rope_interleave", true);
  a.turn = !third        ? LatentConfig::Turn::Complex
           : interleaved ? LatentConfig::Turn::Interleaved
                         : LatentConfig::Turn::Halves;
  const std::int64_t usual = third && !config.is_null("num_key_value_heads") ? 128 : a.heads;
  const std::int64_t key_heads = config.integer_or("num_key_value_heads", usual, 1, 1 << 16);
  if (config.failed()) return;
  if (key_heads != a.heads) {
    config.fail_with(ErrorCode::Inconsistent, "num_key_value_heads",
                     "latent attention makes keys for every head: others fail in the library's attention",
                     "num_attention_heads = " + std::to_string(a.heads), std::to_string(key_heads));
  } else if (!third && c.hidden % a.heads != 0) {
    config.fail_with(ErrorCode::Inconsistent, "num_attention_heads",
                     "the library takes no hidden_size that is not a multiple of num_attention_heads",
                     "a divisor of hidden_size = " + std::to_string(c.hidden), std::to_string(a.heads));
  } else if (a.turning % 2 != 0) {
    config.fail_with(ErrorCode::Inconsistent, "qk_rope_head_dim", "rotary embeddings need an even width",
                     "an even number", std::to_string(a.turning));
  } else if (a.heads * std::max(a.head_dim(), a.still + a.value) > kMaxWidth) {
    config.fail_with(ErrorCode::TooLarge, "qk_nope_head_dim", "heads x head size is too large",
                     "at most " + std::to_string(kMaxWidth),
                     std::to_string(a.heads * std::max(a.head_dim(), a.still + a.value)));
  }
}

void read_router(ConfigReader& config, bool third, DeepseekConfig& c) {
  GroupedRouterConfig& r = c.router;
  r.hidden = c.hidden;
  r.experts = c.experts.experts;
  r.chosen = c.experts.chosen;
  r.scale = config.number_or("routed_scaling_factor", third ? 2.5 : 1.0, 0.0, 1e9);
  r.groups = config.integer_or("n_group", third ? 8 : 1, 1, 1 << 16);
  r.chosen_groups = config.integer_or("topk_group", third ? 4 : 1, 1, 1 << 16);
  if (third) {
    r.scoring = GroupedRouterConfig::Scoring::CorrectedSigmoid;
    r.normalized = config.boolean_or("norm_topk_prob", true);
  } else {
    const std::string method = config.text_or("topk_method", "greedy");
    if (method != "greedy" && method != "group_limited_greedy") {
      config.fail_with(ErrorCode::Unsupported, "topk_method", "the library's model knows no such way to choose experts",
                       "greedy or group_limited_greedy", in_quotes(method));
    }
    r.scoring =
        method == "greedy" ? GroupedRouterConfig::Scoring::Softmax : GroupedRouterConfig::Scoring::GroupedSoftmax;
  }
  if (config.failed() || r.scoring == GroupedRouterConfig::Scoring::Softmax) return;
  if (r.experts % r.groups != 0) {
    config.fail_with(ErrorCode::Inconsistent, "n_group", "the groups do not divide the experts",
                     "a divisor of n_routed_experts = " + std::to_string(r.experts), std::to_string(r.groups));
  } else if (r.chosen_groups > r.groups) {
    config.fail_with(ErrorCode::Inconsistent, "topk_group", "more groups are chosen than there are",
                     "at most " + std::to_string(r.groups), std::to_string(r.chosen_groups));
  } else if (third && r.experts / r.groups < 2) {
    config.fail_with(ErrorCode::Inconsistent, "n_group", "a group is judged by its best two experts",
                     "at most " + std::to_string(r.experts / 2) + " groups", std::to_string(r.groups));
  }
}

void read_experts(ConfigReader& config, bool third, DeepseekConfig& c) {
  ExpertsConfig& e = c.experts;
  e.prefix = c.prefix();
  e.hidden = c.hidden;
  e.activation = c.activation;
  e.experts = config.integer_or("n_routed_experts", third ? 256 : 64, 1, 1 << 16);
  e.chosen = third ? config.integer_or("num_experts_per_tok", 8, 1, 1 << 16)
                   : config.integer("num_experts_per_tok", 1, 1 << 16);
  e.width = config.integer_or("moe_intermediate_size", third ? 2048 : 1407, 1, kMaxWidth);
  c.shared_width = e.width * config.integer_or("n_shared_experts", third ? 1 : 2, 1, 1 << 12);
  c.dense_layers = config.integer_or("first_k_dense_replace", third ? 3 : 0, 0, kMaxLayers);
  if (config.failed()) return;
  if (e.chosen > e.experts) {
    config.fail_with(ErrorCode::Inconsistent, "num_experts_per_tok", "a token goes to more experts than there are",
                     "at most " + std::to_string(e.experts), std::to_string(e.chosen));
  } else if (c.shared_width > kMaxWidth) {
    config.fail_with(ErrorCode::TooLarge, "n_shared_experts", "the shared experts are too wide",
                     "at most " + std::to_string(kMaxWidth), std::to_string(c.shared_width));
  } else {
    read_router(config, third, c);
  }
}

DeepseekConfig read_deepseek_config(const FamilyInput& input, bool third) {
  ConfigReader& config = input.config;
  DeepseekConfig c;
  c.attention.prefix = third ? "DeepseekV3" : "DeepseekV2";
  c.experts_class = third ? "DeepseekV3MoE" : "DeepseekV2Moe";
  check_architecture(config, c.prefix() + "ForCausalLM");
  c.layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  c.hidden = config.integer("hidden_size", 1, kMaxWidth);
  c.intermediate = config.integer("intermediate_size", 1, kMaxWidth);
  c.vocabulary = config.integer("vocab_size", 1, kMaxVocabulary);
  c.max_positions = config.integer_or("max_position_embeddings", third ? 4096 : 2048, 1, kMaxPositions);
  c.eps = config.number_or("rms_norm_eps", 1e-6, 0.0, 1.0);
  c.padding_index = config.padding_index(-1, c.vocabulary);
  c.tied = config.boolean_or("tie_word_embeddings", false);
  c.mlp_bias = !third && config.boolean_or("mlp_bias", false);
  c.activation = read_activation(config, "hidden_act", "silu");
  c.rope = read_rope(config, {.positions = c.max_positions});
  if (!config.failed()) read_attention(config, third, c);
  if (!config.failed()) read_experts(config, third, c);
  check_rope_factors(config, c.rope, c.attention.turning);
  c.dtype = config.parameter_dtype();
  return c;
}

struct DeepseekLayerModules {
  ModuleId block;
  LatentModules attention;
  GatedMlpModules mlp;  // the shared one where there are experts
  std::optional<ExpertsModules> experts;
  GroupedRouterModules router;
  RmsNormModule input_norm, post_norm;
};

struct DeepseekModules : DecoderModules {
  std::vector<DeepseekLayerModules> layers;
};

DeepseekLayerModules add_layer(ModelTree& tree, const DeepseekConfig& c, ModuleId list, std::int64_t index,
                               const ProgramOptions& program) {
  DeepseekLayerModules m;
  const std::string mlp = c.prefix() + "MLP", norm = c.prefix() + "RMSNorm";
  m.block = tree.module(list, std::to_string(index), c.prefix() + "DecoderLayer", {"GradientCheckpointingLayer"});
  m.attention = add_latent_attention(tree, c.attention, m.block);
  if (index < c.dense_layers) {
    m.mlp = add_gated_mlp(tree, m.block, mlp, {c.hidden, c.intermediate, c.mlp_bias, c.activation});
  } else {
    const ModuleId block = tree.module(m.block, "mlp", c.experts_class);
    m.experts = add_routed_experts(tree, c.experts, block);
    m.router = add_grouped_router(tree, c.router, block, c.prefix() + "TopkRouter", program);
    m.mlp = add_gated_mlp(tree, block, mlp, {c.hidden, c.shared_width, c.mlp_bias, c.activation, "shared_experts"});
  }
  m.input_norm = add_rms_norm(tree, m.block, "input_layernorm", norm, c.hidden);
  m.post_norm = add_rms_norm(tree, m.block, "post_attention_layernorm", norm, c.hidden);
  return m;
}

DeepseekModules add_modules(Model& model, const DeepseekConfig& c, DType dtype, const ProgramOptions& program) {
  ModelTree tree(model, dtype);
  DeepseekModules m;
  const std::vector<std::string> pretrained{c.prefix() + "PreTrainedModel", "PreTrainedModel"};
  m.root = tree.module({}, "", c.prefix() + "ForCausalLM", pretrained);
  m.model = tree.module(m.root, "model", c.prefix() + "Model", pretrained);
  m.embedding = tree.module(m.model, "embed_tokens", "Embedding");
  m.embedding_weight = tree.param(m.embedding, "weight", {c.vocabulary, c.hidden});
  const ModuleId list = tree.module(m.model, "layers", "ModuleList");
  m.layers.reserve(static_cast<std::size_t>(c.layers));
  for (std::int64_t i = 0; i < c.layers; ++i) m.layers.push_back(add_layer(tree, c, list, i, program));
  m.norm = add_rms_norm(tree, m.model, "norm", c.prefix() + "RMSNorm", c.hidden);
  m.rotary = add_rotary(tree, m.model, c.prefix() + "RotaryEmbedding", c.attention.turning, c.rope, program);
  m.head = add_language_head(tree, m.root, c.vocabulary, c.hidden, c.tied, m.embedding_weight);
  return m;
}

class DeepseekProgram {
 public:
  DeepseekProgram(ProgramWriter& writer, const DeepseekConfig& config, const LatentKernel& how)
      : w_(writer), c_(config), how_(how) {}

  void rotary(const DeepseekModules& m, const Tensor& positions) {
    rotation_ = write_latent_rotation(w_, c_.attention, m.rotary, positions);
    positions_ = positions;
  }

  Tensor layer(const DeepseekLayerModules& m, const Tensor& x) {
    const bool complex = c_.attention.turn == LatentConfig::Turn::Complex;
    const Tensor& first = complex ? rotation_.complex : rotation_.halves.cos;
    w_.call(m.block, {&x, how_.mask, &positions_, &first, complex ? nullptr : &rotation_.halves.sin});
    const Tensor attended =
        write_latent_attention(w_, c_.attention, m.attention, norm(m.input_norm, x), rotation_, how_);
    w_.enter(m.block);
    const Tensor middle = w_.add(x, attended);
    const Tensor y = mlp(m, norm(m.post_norm, middle));
    w_.enter(m.block);
    return w_.add(middle, y);
  }

  Tensor norm(const RmsNormModule& m, const Tensor& x) { return write_rms_norm(w_, m, x, c_.eps); }

 private:
  Tensor mlp(const DeepseekLayerModules& m, const Tensor& x) {
    if (!m.experts) return write_gated_mlp(w_, m.mlp, c_.activation, x);
    const Routing routing = write_grouped_router(w_, c_.router, m.router, x, m.experts->block);
    w_.enter(m.experts->block);
    const Tensor rows = w_.view(x, {-1, c_.hidden});
    const Tensor chosen = write_routed_experts(w_, c_.experts, *m.experts, rows, routing);
    w_.enter(m.experts->block);
    const Tensor y = w_.view(chosen, x.sizes);
    const Tensor shared = write_gated_mlp(w_, m.mlp, c_.activation, x);
    w_.enter(m.experts->block);
    return w_.add(y, shared);
  }

  ProgramWriter& w_;
  const DeepseekConfig& c_;
  LatentKernel how_;
  LatentRotation rotation_;
  Tensor positions_;
};

}  // namespace

Result<Model> build_deepseek(const FamilyInput& input, std::string_view model_type) {
  const bool third = model_type == "deepseek_v3";
  const DeepseekConfig c = read_deepseek_config(input, third);
  const LatentConfig& a = c.attention;
  const std::int64_t seq = choose_seq(input, c.max_positions, "max_position_embeddings");
  const std::int64_t width = std::max(
      {c.hidden, c.intermediate, c.vocabulary, a.heads * (a.still + a.value), a.heads * a.head_dim(), c.shared_width});
  check_products(input, seq, c.experts.chosen * std::max(2 * c.experts.width, c.hidden), 1);
  check_products(input, seq, width, a.heads);
  if (input.config.failed()) return fail(input.config.error());

  const DType created = input.options.dtype.value_or(c.dtype);
  Model model = start_model(input, model_type, c.prefix() + "DecoderLayer", created, seq);
  AttentionShape shape{a.heads, a.heads, a.head_dim(), a.dropout, std::pow(static_cast<double>(a.head_dim()), -0.5)};
  shape.scale = shape.scale * c.rope.stretch * c.rope.stretch;
  shape.value_dim = a.value;
  Result<AttentionKernel> kernel = choose_attention(input, shape, model.compute_dtype, needs_mask(input, seq, 0));
  if (!kernel) return fail(std::move(kernel.error()));
  const DeepseekModules m = add_modules(model, c, created, input.program);

  ProgramWriter w(model, model.compute_dtype, kernels_of(input));
  auto [tokens, x, positions] =
      write_decoder_start(w, input, seq, {m.model, m.embedding, m.embedding_weight, c.padding_index});
  const std::optional<Tensor> mask = write_mask(w, input, tokens.mask, positions, 0);
  DeepseekProgram program(w, c, {*kernel, shape, mask ? &*mask : nullptr});
  program.rotary(m, positions);
  for (const DeepseekLayerModules& layer : m.layers) x = program.layer(layer, x);
  x = program.norm(m.norm, x);
  finish_with_head(model, w, input, tokens, {m.root, m.head}, x);
  model.parallel = decoder_plan({{"q_proj", "colwise"},  // NoParallel around what heads share
                                 {"q_a_proj", "replicate"},
                                 {"q_a_layernorm", "replicate"},
                                 {"q_b_proj", "colwise"},
                                 {"kv_a_proj_with_mqa", "replicate"},
                                 {"kv_a_layernorm", "replicate"},
                                 {"kv_b_proj", "colwise"}},
                                "shared_experts");
  return model;
}

}  // namespace foreshard::families
