// Phi-3: one projection for queries, keys and values, one for gate and up, rotary embedding of a part of each head.
#include <algorithm>
#include <cmath>
#include <optional>

#include "core/model/families/decoder_parts.h"
#include "core/model/families/losses.h"
#include "core/model/json_input.h"

namespace foreshard::families {
namespace {

constexpr std::string_view kNormClass = "Phi3RMSNorm";

struct Phi3Config {
  std::int64_t hidden = 0, intermediate = 0, layers = 0, vocabulary = 0, max_positions = 0;
  std::int64_t heads = 0, key_value_heads = 0, head_dim = 0;
  std::int64_t rotary = 0;  // elements of a head that turn
  std::int64_t sliding_window = 0;
  std::int64_t padding_index = -1;
  double eps = 1e-5, attention_dropout = 0.0, residual_dropout = 0.0;
  bool tied = false;
  RopeScaling rope;
  Activation activation = Activation::Silu;
  DType dtype = DType::Float32;
};

Phi3Config read_phi3_config(const FamilyInput& input) {
  ConfigReader& config = input.config;
  Phi3Config c;
  check_architecture(config, "Phi3ForCausalLM");
  c.layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  c.hidden = config.integer("hidden_size", 1, kMaxWidth);
  c.intermediate = config.integer("intermediate_size", 1, kMaxWidth);
  c.heads = config.integer("num_attention_heads", 1, 1 << 16);
  c.key_value_heads = config.integer_or("num_key_value_heads", std::max<std::int64_t>(c.heads, 1), 1, 1 << 16);
  c.vocabulary = config.integer("vocab_size", 1, kMaxVocabulary);
  c.max_positions = config.integer_or("max_position_embeddings", 4096, 1, kMaxPositions);
  c.sliding_window = config.integer_or("sliding_window", 0, 0, kMaxPositions);
  c.padding_index = config.padding_index(32000, c.vocabulary);
  c.eps = config.number_or("rms_norm_eps", 1e-5, 0.0, 1.0);
  c.attention_dropout = config.number_or("attention_dropout", 0.0, 0.0, 1.0);
  c.residual_dropout = config.number_or("resid_pdrop", 0.0, 0.0, 1.0);
  c.tied = config.boolean_or("tie_word_embeddings", false);
  c.activation = read_activation(config, "hidden_act", "silu");
  const double share = config.number_or("partial_rotary_factor", 1.0, 0.0, 1.0);
  c.rope = read_rope(config,
                     {.positions = c.max_positions, .original_positions = 4096, .share = share, .only_longrope = true});
  c.dtype = config.parameter_dtype();
  if (config.failed()) return c;
  if (c.hidden % c.heads != 0 || c.heads % c.key_value_heads != 0) {
    config.fail_with(ErrorCode::Inconsistent, c.hidden % c.heads != 0 ? "num_attention_heads" : "num_key_value_heads",
                     "heads do not divide what they share", "divisors of hidden_size and of num_attention_heads",
                     std::to_string(c.heads) + " and " + std::to_string(c.key_value_heads));
    return c;
  }
  c.head_dim = config.integer_or("head_dim", c.hidden / c.heads, 1, 1 << 16);
  c.rotary = static_cast<std::int64_t>(static_cast<double>(c.head_dim) * c.rope.share);
  if (c.rotary < 2 || c.rotary % 2 != 0)
    config.fail_with(ErrorCode::Inconsistent, "partial_rotary_factor", "rotary embeddings need an even width",
                     "an even number of elements", std::to_string(c.rotary));
  check_rope_factors(config, c.rope, c.rotary);
  return c;
}

struct Phi3LayerModules {
  ModuleId block, attention, mlp, activation, attention_dropout, mlp_dropout;
  LinearModule out, qkv, gate_up, down;
  RmsNormModule input_norm, post_norm;
};

struct Phi3Modules : DecoderModules {
  std::vector<Phi3LayerModules> layers;
};

Phi3LayerModules add_layer(ModelTree& tree, const Phi3Config& c, ModuleId list, std::int64_t index) {
  Phi3LayerModules m;
  const std::int64_t queries = c.heads * c.head_dim, keys = c.key_value_heads * c.head_dim;
  m.block = tree.module(list, std::to_string(index), "Phi3DecoderLayer", {"GradientCheckpointingLayer"});
  m.attention = tree.module(m.block, "self_attn", "Phi3Attention");
  m.out = tree.linear(m.attention, "o_proj", queries, c.hidden, false);
  m.qkv = tree.linear(m.attention, "qkv_proj", c.hidden, queries + 2 * keys, false);
  m.mlp = tree.module(m.block, "mlp", "Phi3MLP");
  m.gate_up = tree.linear(m.mlp, "gate_up_proj", c.hidden, 2 * c.intermediate, false);
  m.down = tree.linear(m.mlp, "down_proj", c.intermediate, c.hidden, false);
  m.activation = tree.module(m.mlp, "activation_fn", activation_class(c.activation));
  m.input_norm = add_rms_norm(tree, m.block, "input_layernorm", kNormClass, c.hidden);
  m.post_norm = add_rms_norm(tree, m.block, "post_attention_layernorm", kNormClass, c.hidden);
  m.attention_dropout = tree.dropout(m.block, "resid_attn_dropout");
  m.mlp_dropout = tree.dropout(m.block, "resid_mlp_dropout");
  return m;
}

Phi3Modules add_modules(Model& model, const Phi3Config& c, DType dtype, const ProgramOptions& program) {
  ModelTree tree(model, dtype);
  Phi3Modules m;
  const std::vector<std::string> pretrained{"Phi3PreTrainedModel", "PreTrainedModel"};
  m.root = tree.module({}, "", "Phi3ForCausalLM", pretrained);
  m.model = tree.module(m.root, "model", "Phi3Model", pretrained);
  m.embedding = tree.module(m.model, "embed_tokens", "Embedding");
  m.embedding_weight = tree.param(m.embedding, "weight", {c.vocabulary, c.hidden});
  const ModuleId list = tree.module(m.model, "layers", "ModuleList");
  m.layers.reserve(static_cast<std::size_t>(c.layers));
  for (std::int64_t i = 0; i < c.layers; ++i) m.layers.push_back(add_layer(tree, c, list, i));
  m.norm = add_rms_norm(tree, m.model, "norm", kNormClass, c.hidden);
  m.rotary = add_rotary(tree, m.model, "Phi3RotaryEmbedding", c.rotary, c.rope, program);
  m.head = add_language_head(tree, m.root, c.vocabulary, c.hidden, c.tied, m.embedding_weight);
  return m;
}

class Phi3Program {
 public:
  Phi3Program(ProgramWriter& writer, const Phi3Config& config, AttentionKernel kernel, const AttentionShape& shape)
      : w_(writer), c_(config), kernel_(kernel), shape_(shape) {}

  void rotary(const Phi3Modules& m, const Tensor& positions) {
    rotation_ = write_rotation(w_, m.rotary, positions);
    positions_ = positions;
  }

  Tensor layer(const Phi3LayerModules& m, const Tensor& x, const Tensor* mask) {
    w_.call(m.block, {&x, mask, &positions_, &rotation_.cos, &rotation_.sin});
    const Tensor attended = attention(m, norm(m.input_norm, x), mask);
    const Tensor kept = write_dropout(w_, m.attention_dropout, attended, c_.residual_dropout);
    w_.enter(m.block);
    const Tensor middle = w_.add(x, kept);
    const Tensor y = mlp(m, norm(m.post_norm, middle));
    const Tensor last = write_dropout(w_, m.mlp_dropout, y, c_.residual_dropout);
    w_.enter(m.block);
    return w_.add(middle, last);
  }

  Tensor norm(const RmsNormModule& m, const Tensor& x) { return write_rms_norm(w_, m, x, c_.eps); }

 private:
  /// The turning part of x: x cos + rotate_half(x) sin; the rest goes through.
  Tensor rotate(const Tensor& turning, const Tensor& rest, const Rotation& rotation) {
    return w_.cat({write_rotated(w_, turning, rotation), rest}, -1);
  }

  Tensor attention(const Phi3LayerModules& m, const Tensor& x, const Tensor* mask) {
    const std::int64_t queries = c_.heads * c_.head_dim, keys = c_.key_value_heads * c_.head_dim;
    const Tensor qkv = write_linear(w_, m.qkv, x);
    w_.enter(m.attention);
    const Tensor q_part = w_.slice(qkv, 2, 0, queries);
    const Tensor k_part = w_.slice(qkv, 2, queries, queries + keys);
    const Tensor v_part = w_.slice(qkv, 2, queries + keys, kSliceEnd);
    const Tensor q = write_heads(w_, q_part, c_.head_dim);
    const Tensor k = write_heads(w_, k_part, c_.head_dim);
    const Tensor v = write_heads(w_, v_part, c_.head_dim);
    const Rotation rotation = write_head_rotation(w_, rotation_);
    const Tensor q_turning = w_.index_range(q, 3, 0, c_.rotary);
    const Tensor q_rest = w_.slice(q, 3, c_.rotary, kSliceEnd);
    const Tensor k_turning = w_.index_range(k, 3, 0, c_.rotary);
    const Tensor k_rest = w_.slice(k, 3, c_.rotary, kSliceEnd);
    const Tensor turned_q = rotate(q_turning, q_rest, rotation);
    const Tensor turned_k = rotate(k_turning, k_rest, rotation);
    w_.hold_until_here(q);  // named by the function that turns both
    w_.hold_until_here(k);
    const Tensor out = write_attention(w_, kernel_, shape_, turned_q, turned_k, v, mask);
    return write_linear(w_, m.out, w_.view(out, {x.sizes[0], x.sizes[1], -1}));
  }

  Tensor mlp(const Phi3LayerModules& m, const Tensor& x) {
    const Tensor both = write_linear(w_, m.gate_up, x);
    w_.enter(m.mlp);
    const std::vector<Tensor> halves = w_.split(both, c_.intermediate, -1);
    w_.enter(m.activation);
    const Tensor active = write_activation(w_, c_.activation, halves[0]);
    w_.enter(m.mlp);
    return write_linear(w_, m.down, w_.mul(halves[1], active));
  }

  ProgramWriter& w_;
  const Phi3Config& c_;
  AttentionKernel kernel_;
  AttentionShape shape_;
  Rotation rotation_;
  Tensor positions_;
};

/// Transformers' own (base_model_tp_plan), whose fused projections are gathered because they are sliced, in
/// torchtitan's manner around them.
std::vector<ParallelStyle> gathered_projections() {
  const std::string layer = "model.layers.*.";
  return {{"model.embed_tokens", "rowwise"},
          {layer + "input_layernorm", "sequence"},
          {layer + "self_attn", "gather"},
          {layer + "self_attn.qkv_proj", "colwise_gathered"},
          {layer + "self_attn.o_proj", "rowwise"},
          {layer + "post_attention_layernorm", "sequence"},
          {layer + "mlp", "gather"},
          {layer + "mlp.gate_up_proj", "colwise_gathered"},
          {layer + "mlp.down_proj", "rowwise"},
          {"model.norm", "sequence"},
          {"lm_head", "head"}};
}

}  // namespace

Result<Model> build_phi3(const FamilyInput& input) {
  const Phi3Config c = read_phi3_config(input);
  const std::int64_t seq = choose_seq(input, c.max_positions, "max_position_embeddings");
  check_products(input, seq,
                 std::max({c.hidden, 2 * c.intermediate, c.vocabulary, (c.heads + 2 * c.key_value_heads) * c.head_dim}),
                 c.heads);
  if (input.config.failed()) return fail(input.config.error());

  const DType created = input.options.dtype.value_or(c.dtype);
  Model model = start_model(input, "phi3", "Phi3DecoderLayer", created, seq);
  const AttentionShape shape{c.heads, c.key_value_heads, c.head_dim, c.attention_dropout,
                             std::pow(static_cast<double>(c.head_dim), -0.5)};
  Result<AttentionKernel> kernel =
      choose_attention(input, shape, model.compute_dtype, needs_mask(input, seq, c.sliding_window));
  if (!kernel) return fail(std::move(kernel.error()));
  const Phi3Modules m = add_modules(model, c, created, input.program);

  ProgramWriter w(model, model.compute_dtype, kernels_of(input));
  auto [tokens, x, positions] =
      write_decoder_start(w, input, seq, {m.model, m.embedding, m.embedding_weight, c.padding_index});
  const std::optional<Tensor> mask = write_mask(w, input, tokens.mask, positions, c.sliding_window);
  Phi3Program layers(w, c, *kernel, shape);
  layers.rotary(m, positions);
  for (const Phi3LayerModules& layer : m.layers) x = layers.layer(layer, x, mask ? &*mask : nullptr);
  x = layers.norm(m.norm, x);
  finish_with_head(model, w, input, tokens, {m.root, m.head}, x);
  model.parallel = gathered_projections();
  return model;
}

}  // namespace foreshard::families
