// Gemma 2: norms before and after each half of a layer, soft-capped scores and logits, every second layer windowed.
#include <algorithm>
#include <cmath>

#include "core/model/families/decoder_parts.h"
#include "core/model/families/losses.h"
#include "core/model/json_input.h"

namespace foreshard::families {
namespace {

struct GemmaConfig {
  std::int64_t hidden = 0, intermediate = 0, layers = 0, vocabulary = 0, positions = 0;
  std::int64_t heads = 0, key_value_heads = 0, head_dim = 256, window = 4096, padding_index = 0;
  double eps = 1e-6, attention_dropout = 0.0, score_cap = 50.0, logit_cap = 30.0, query_scalar = 256.0;
  bool bias = false, tied = true;
  std::vector<std::string> layer_types;  // empty: windowed, full, windowed, ...
  RopeScaling rope;
  Activation activation = Activation::GeluTanh;
  DType dtype = DType::Float32;

  bool windowed(std::size_t layer) const {
    return layer < layer_types.size() ? layer_types[layer] == "sliding_attention" : layer % 2 == 0;
  }
};

GemmaConfig read_gemma2_config(const FamilyInput& input) {
  ConfigReader& config = input.config;
  GemmaConfig c;
  check_architecture(config, "Gemma2ForCausalLM");
  c.layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  c.hidden = config.integer("hidden_size", 1, kMaxWidth);
  c.intermediate = config.integer("intermediate_size", 1, kMaxWidth);
  c.vocabulary = config.integer("vocab_size", 1, kMaxVocabulary);
  c.heads = config.integer("num_attention_heads", 1, 1 << 16);
  c.key_value_heads = config.integer("num_key_value_heads", 1, 1 << 16);
  c.head_dim = config.integer_or("head_dim", 256, 2, 1 << 16);
  c.positions = config.integer_or("max_position_embeddings", 8192, 1, kMaxPositions);
  c.window = config.integer_or("sliding_window", 4096, 1, kMaxPositions);
  c.padding_index = config.padding_index(0, c.vocabulary);
  c.eps = config.number_or("rms_norm_eps", 1e-6, 0.0, 1.0);
  c.attention_dropout = config.number_or("attention_dropout", 0.0, 0.0, 1.0);
  const auto cap = [&](std::string_view key, double otherwise) {
    return config.number_or(key, config.is_null(key) ? 0.0 : otherwise, 0.0, 1e9);
  };
  c.score_cap = cap("attn_logit_softcapping", 50.0);
  c.logit_cap = cap("final_logit_softcapping", 30.0);
  c.query_scalar = config.number_or("query_pre_attn_scalar", 256.0, 1e-9, 1e9);
  c.bias = config.boolean_or("attention_bias", false);
  c.tied = config.boolean_or("tie_word_embeddings", true);
  c.layer_types = config.texts("layer_types");
  c.rope = read_rope(config, {.positions = c.positions});
  check_rope_factors(config, c.rope, c.head_dim);
  c.activation = read_activation(config, "hidden_activation", "gelu_pytorch_tanh");
  c.dtype = config.parameter_dtype();
  if (config.failed()) return c;
  if (c.heads % c.key_value_heads != 0) {
    config.fail_with(
        ErrorCode::Inconsistent, "num_key_value_heads", "num_attention_heads is not a multiple of num_key_value_heads",
        "a divisor of num_attention_heads = " + std::to_string(c.heads), std::to_string(c.key_value_heads));
  } else if (c.head_dim % 2 != 0 || c.heads * c.head_dim > kMaxWidth) {
    config.fail_with(ErrorCode::Inconsistent, "head_dim", "rotary embeddings need an even head size, not too large",
                     "an even number", std::to_string(c.head_dim));
  } else if (input.options.attention != "sdpa" && input.options.attention != "eager") {
    config.fail_with(ErrorCode::Unsupported, "attn_logit_softcapping",
                     "no fused kernel of PyTorch caps scores: this model runs in the eager form", "sdpa or eager",
                     in_quotes(input.options.attention));
  }
  return c;
}

struct Gemma2LayerModules {
  ModuleId block, attention;
  LinearModule q, k, v, o;
  GatedMlpModules mlp;
  RmsNormModule input_norm, post_attention, pre_feed_forward, post_feed_forward;
};

struct GemmaModules : DecoderModules {
  std::int32_t scale = -1;
  std::vector<Gemma2LayerModules> layers;
};

RmsNormModule add_gemma2_norm(ModelTree& tree, ModuleId parent, std::string_view name, std::int64_t width) {
  return add_rms_norm(tree, parent, name, "Gemma2RMSNorm", width);
}

Gemma2LayerModules add_layer(ModelTree& tree, const GemmaConfig& c, ModuleId list, std::int64_t index) {
  Gemma2LayerModules m;
  const std::int64_t query_width = c.heads * c.head_dim, key_width = c.key_value_heads * c.head_dim;
  m.block = tree.module(list, std::to_string(index), "Gemma2DecoderLayer", {"GradientCheckpointingLayer"});
  m.attention = tree.module(m.block, "self_attn", "Gemma2Attention");
  m.q = tree.linear(m.attention, "q_proj", c.hidden, query_width, c.bias);
  m.k = tree.linear(m.attention, "k_proj", c.hidden, key_width, c.bias);
  m.v = tree.linear(m.attention, "v_proj", c.hidden, key_width, c.bias);
  m.o = tree.linear(m.attention, "o_proj", query_width, c.hidden, c.bias);
  m.mlp = add_gated_mlp(tree, m.block, "Gemma2MLP", {c.hidden, c.intermediate, false, c.activation});
  m.input_norm = add_gemma2_norm(tree, m.block, "input_layernorm", c.hidden);
  m.post_attention = add_gemma2_norm(tree, m.block, "post_attention_layernorm", c.hidden);
  m.pre_feed_forward = add_gemma2_norm(tree, m.block, "pre_feedforward_layernorm", c.hidden);
  m.post_feed_forward = add_gemma2_norm(tree, m.block, "post_feedforward_layernorm", c.hidden);
  return m;
}

GemmaModules add_modules(Model& model, const GemmaConfig& c, DType dtype, const ProgramOptions& program) {
  ModelTree tree(model, dtype);
  GemmaModules m;
  const std::vector<std::string> pretrained{"Gemma2PreTrainedModel", "PreTrainedModel"};
  m.root = tree.module({}, "", "Gemma2ForCausalLM", pretrained);
  m.model = tree.module(m.root, "model", "Gemma2Model", pretrained);
  m.embedding = tree.module(m.model, "embed_tokens", "Gemma2TextScaledWordEmbedding", {"Embedding"});
  m.embedding_weight = tree.param(m.embedding, "weight", {c.vocabulary, c.hidden});
  m.scale = tree.buffer(m.embedding, "embed_scale", {}, program.buffer_dtype.value_or(dtype), false);
  const ModuleId list = tree.module(m.model, "layers", "ModuleList");
  for (std::int64_t i = 0; i < c.layers; ++i) m.layers.push_back(add_layer(tree, c, list, i));
  m.norm = add_gemma2_norm(tree, m.model, "norm", c.hidden);
  m.rotary = add_rotary(tree, m.model, "Gemma2RotaryEmbedding", c.head_dim, c.rope, program);
  m.head = add_language_head(tree, m.root, c.vocabulary, c.hidden, c.tied, m.embedding_weight);
  return m;
}

class GemmaProgram {
 public:
  GemmaProgram(ProgramWriter& writer, const GemmaConfig& config, const AttentionShape& attention)
      : w_(writer), c_(config), attention_(attention) {}

  void rotary(const GemmaModules& m, const Tensor& positions) {
    rotation_ = write_rotation(w_, m.rotary, positions);
    positions_ = positions;
  }

  Tensor layer(const Gemma2LayerModules& m, const Tensor& x, const Tensor& mask) {
    w_.call(m.block, {&x, &rotation_.cos, &rotation_.sin, &mask, &positions_});
    const Tensor attended = norm(m.post_attention, attention(m, norm(m.input_norm, x), mask));
    w_.enter(m.block);
    const Tensor middle = w_.add(x, attended);
    const Tensor y = norm(m.post_feed_forward, mlp(m, middle));
    w_.enter(m.block);
    return w_.add(middle, y);
  }

  Tensor norm(const RmsNormModule& m, const Tensor& x) { return write_shifted_rms_norm(w_, m, x, c_.eps); }

 private:
  Tensor mlp(const Gemma2LayerModules& m, const Tensor& x) {
    return write_gated_mlp(w_, m.mlp, c_.activation, norm(m.pre_feed_forward, x));
  }

  Tensor heads_of(const Gemma2LayerModules& m, const LinearModule& linear, const Tensor& x) {
    const Tensor y = write_linear(w_, linear, x);
    w_.enter(m.attention);
    return write_heads(w_, y, c_.head_dim);
  }

  Tensor attention(const Gemma2LayerModules& m, const Tensor& x, const Tensor& mask) {
    const Tensor q = heads_of(m, m.q, x), k = heads_of(m, m.k, x), v = heads_of(m, m.v, x);
    const Rotation rotation = write_head_rotation(w_, rotation_);
    const Tensor turned_q = write_rotated(w_, q, rotation), turned_k = write_rotated(w_, k, rotation);
    w_.hold_until_here(q);  // named by the function that turns both
    w_.hold_until_here(k);
    const Tensor out = write_attention(w_, AttentionKernel::Eager, attention_, turned_q, turned_k, v, &mask);
    return write_linear(w_, m.o, w_.view(out, {x.sizes[0], x.sizes[1], -1}));
  }

  ProgramWriter& w_;
  const GemmaConfig& c_;
  AttentionShape attention_;
  Rotation rotation_;
  Tensor positions_;
};

}  // namespace

Result<Model> build_gemma2(const FamilyInput& given) {
  const GemmaConfig c = read_gemma2_config(given);
  ModelOptions options = given.options;
  options.attention = "eager";
  const FamilyInput input{options, given.program, given.config};
  const std::int64_t seq = choose_seq(input, c.positions, "max_position_embeddings");
  check_products(input, seq, std::max({c.hidden, c.intermediate, c.vocabulary, c.heads * c.head_dim}), c.heads);
  if (input.config.failed()) return fail(input.config.error());

  const DType created = options.dtype.value_or(c.dtype);
  Model model = start_model(input, "gemma2", "Gemma2DecoderLayer", created, seq);
  const AttentionShape attention{.heads = c.heads,
                                 .key_value_heads = c.key_value_heads,
                                 .head_dim = c.head_dim,
                                 .dropout = c.attention_dropout,
                                 .scale = std::pow(c.query_scalar, -0.5),
                                 .score_cap = c.score_cap};
  const GemmaModules m = add_modules(model, c, created, input.program);

  ProgramWriter w(model, model.compute_dtype, kernels_of(input));
  const TokenInputs tokens = write_token_inputs(w, input, seq);
  w.enter(m.embedding);
  const Tensor rows = w.embedding(w.param(m.embedding_weight), tokens.ids, c.padding_index);
  w.hold(rows, Hold::Until::Call, m.model);
  Tensor x = w.mul(rows, w.to(w.buffer(m.scale), w.dtype()));
  w.enter(m.model);
  const Tensor positions = write_row_positions(w, tokens, seq);
  const std::optional<Tensor> full = write_mask(w, input, tokens.mask, positions, 0);
  const std::optional<Tensor> near = write_mask(w, input, tokens.mask, positions, c.window);
  GemmaProgram program(w, c, attention);
  program.rotary(m, positions);
  for (std::size_t i = 0; i < m.layers.size(); ++i) x = program.layer(m.layers[i], x, c.windowed(i) ? *near : *full);
  x = program.norm(m.norm, x);
  Tensor logits = write_language_head(w, m.root, m.head, x);
  w.enter(m.root);
  logits = write_soft_cap(w, logits, c.logit_cap);
  finish_with_loss(model, w, input, tokens, logits);
  model.parallel = decoder_plan({{"q_proj", "colwise"}, {"k_proj", "colwise"}, {"v_proj", "colwise"}}, "");
  for (const char* norm : {"pre_feedforward_layernorm", "post_feedforward_layernorm"})
    model.parallel.push_back({std::string("model.layers.*.") + norm, "sequence"});
  return model;
}

}  // namespace foreshard::families
