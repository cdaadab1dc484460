// GPT-NeoX and Pythia: fused query-key-value projection per head, partly rotary, attention and MLP side by side.
#include <algorithm>
#include <cmath>

#include "core/model/families/decoder_parts.h"
#include "core/model/families/losses.h"
#include "core/model/json_input.h"

namespace foreshard::families {
namespace {

struct NeoXConfig {
  std::int64_t hidden = 0, intermediate = 0, layers = 0, heads = 0, head_dim = 0, vocabulary = 0, positions = 0;
  std::int64_t rotary_dims = 0;
  double eps = 1e-5;
  double hidden_dropout = 0.0, attention_dropout = 0.0;
  bool parallel = true, attention_bias = true, tied = false;
  RopeScaling rope;
  Activation activation = Activation::Gelu;
  DType dtype = DType::Float32;
};

NeoXConfig read_neox_config(const FamilyInput& input) {
  ConfigReader& config = input.config;
  NeoXConfig c;
  check_architecture(config, "GPTNeoXForCausalLM");
  c.layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  c.hidden = config.integer("hidden_size", 1, kMaxWidth);
  c.intermediate = config.integer("intermediate_size", 1, kMaxWidth);
  c.heads = config.integer("num_attention_heads", 1, 1 << 16);
  c.vocabulary = config.integer("vocab_size", 1, kMaxVocabulary);
  c.positions = config.integer_or("max_position_embeddings", 2048, 1, kMaxPositions);
  c.eps = config.number_or("layer_norm_eps", 1e-5, 0.0, 1.0);
  c.hidden_dropout = config.number_or("hidden_dropout", 0.0, 0.0, 1.0);
  c.attention_dropout = config.number_or("attention_dropout", 0.0, 0.0, 1.0);
  c.parallel = config.boolean_or("use_parallel_residual", true);
  c.attention_bias = config.boolean_or("attention_bias", true);
  c.tied = config.boolean_or("tie_word_embeddings", false);
  c.activation = read_activation(config, "hidden_act", "gelu");
  c.dtype = config.parameter_dtype();
  c.rope = read_rope(config, {.positions = c.positions, .share = config.number_or("rotary_pct", 0.25, 0.0, 1.0)});
  if (config.failed()) return c;
  if (c.hidden % c.heads != 0) {
    config.fail_with(ErrorCode::Inconsistent, "num_attention_heads",
                     "hidden_size is not a multiple of num_attention_heads",
                     "a divisor of hidden_size = " + std::to_string(c.hidden), std::to_string(c.heads));
    return c;
  }
  c.head_dim = c.hidden / c.heads;
  c.rotary_dims = static_cast<std::int64_t>(static_cast<double>(c.head_dim) * c.rope.share);
  if (c.rotary_dims < 2 || c.rotary_dims % 2 != 0) {
    config.fail_with(ErrorCode::Inconsistent, "rotary_pct", "rotary embeddings need an even share of the head size",
                     "an even number of dimensions of " + std::to_string(c.head_dim), std::to_string(c.rotary_dims));
  }
  return c;
}

struct NeoXLayerModules {
  ModuleId block, attention, attention_dropout, mlp_dropout, activation;
  LayerNormModule input_norm, post_norm;
  LinearModule qkv, dense, up, down;
};

struct NeoXModules {
  ModuleId root, model, embedding, dropout;
  ParamId embedding_weight;
  LayerNormModule norm;
  RotaryModule rotary;
  LinearModule head;
  std::vector<NeoXLayerModules> layers;
};

NeoXLayerModules add_layer(ModelTree& tree, const NeoXConfig& c, ModuleId list, std::int64_t index) {
  NeoXLayerModules m;
  m.block = tree.module(list, std::to_string(index), "GPTNeoXLayer", {"GradientCheckpointingLayer"});
  m.input_norm = tree.layer_norm(m.block, "input_layernorm", c.hidden);
  m.post_norm = tree.layer_norm(m.block, "post_attention_layernorm", c.hidden);
  m.attention_dropout = tree.dropout(m.block, "post_attention_dropout");
  m.mlp_dropout = tree.dropout(m.block, "post_mlp_dropout");
  m.attention = tree.module(m.block, "attention", "GPTNeoXAttention");
  m.qkv = tree.linear(m.attention, "query_key_value", c.hidden, 3 * c.hidden, c.attention_bias);
  m.dense = tree.linear(m.attention, "dense", c.hidden, c.hidden, c.attention_bias);
  const ModuleId mlp = tree.module(m.block, "mlp", "GPTNeoXMLP");
  m.up = tree.linear(mlp, "dense_h_to_4h", c.hidden, c.intermediate, true);
  m.down = tree.linear(mlp, "dense_4h_to_h", c.intermediate, c.hidden, true);
  m.activation = tree.module(mlp, "act", activation_class(c.activation));
  return m;
}

NeoXModules add_modules(Model& model, const NeoXConfig& c, DType dtype, const ProgramOptions& program) {
  ModelTree tree(model, dtype);
  NeoXModules m;
  const std::vector<std::string> pretrained{"GPTNeoXPreTrainedModel", "PreTrainedModel"};
  m.root = tree.module({}, "", "GPTNeoXForCausalLM", pretrained);
  m.model = tree.module(m.root, "gpt_neox", "GPTNeoXModel", pretrained);
  m.embedding = tree.module(m.model, "embed_in", "Embedding");
  m.embedding_weight = tree.param(m.embedding, "weight", {c.vocabulary, c.hidden});
  m.dropout = tree.dropout(m.model, "emb_dropout");
  const ModuleId list = tree.module(m.model, "layers", "ModuleList");
  for (std::int64_t i = 0; i < c.layers; ++i) m.layers.push_back(add_layer(tree, c, list, i));
  m.norm = tree.layer_norm(m.model, "final_layer_norm", c.hidden);
  m.rotary = add_rotary(tree, m.model, "GPTNeoXRotaryEmbedding", c.rotary_dims, c.rope, program);
  m.head = add_language_head(tree, m.root, c.vocabulary, c.hidden, c.tied, m.embedding_weight);
  return m;
}

class NeoXProgram {
 public:
  NeoXProgram(ProgramWriter& writer, const NeoXConfig& config, AttentionKernel kernel, const AttentionShape& attention)
      : w_(writer), c_(config), kernel_(kernel), attention_(attention) {}

  void rotary(const NeoXModules& m, const Tensor& positions) {
    rotation_ = write_rotation(w_, m.rotary, positions);
    positions_ = positions;
  }

  Tensor layer(const NeoXLayerModules& m, const Tensor& x, const Tensor* mask) {
    w_.call(m.block, {&x, mask, &positions_, &rotation_.cos, &rotation_.sin});
    const Tensor normed = write_layer_norm(w_, m.input_norm, x, c_.eps);
    const Tensor attended = write_dropout(w_, m.attention_dropout, attention(m, normed, mask), c_.hidden_dropout);
    if (c_.parallel) {  // x + attention(norm1(x)) + mlp(norm2(x))
      const Tensor y = mlp(m, x);
      w_.enter(m.block);
      return w_.add(w_.add(y, attended), x);
    }
    w_.enter(m.block);
    const Tensor middle = w_.add(attended, x);
    const Tensor y = mlp(m, middle);
    w_.enter(m.block);
    return w_.add(y, middle);
  }

 private:
  /// The first rotary_dims of every head turn, the rest passes.
  struct Parts {
    Tensor turning, rest;
  };
  Parts part(const Tensor& x) {
    const Tensor turning = w_.index_range(x, 3, 0, c_.rotary_dims);
    return {turning, w_.slice(x, 3, c_.rotary_dims, kSliceEnd)};
  }

  Tensor attention(const NeoXLayerModules& m, const Tensor& x, const Tensor* mask) {
    const Tensor qkv = write_linear(w_, m.qkv, x);
    w_.enter(m.attention);
    const std::vector<Tensor> heads = w_.split(write_heads(w_, qkv, 3 * c_.head_dim), c_.head_dim, -1);
    const Rotation rotation = write_head_rotation(w_, rotation_);
    const Parts q = part(heads[0]), k = part(heads[1]);
    const Tensor turned_q = write_rotated(w_, q.turning, rotation);
    const Tensor turned_k = write_rotated(w_, k.turning, rotation);
    const Tensor whole_q = w_.cat({turned_q, q.rest}, -1), whole_k = w_.cat({turned_k, k.rest}, -1);
    const Tensor out = write_attention(w_, kernel_, attention_, whole_q, whole_k, heads[2], mask);
    return write_linear(w_, m.dense, w_.view(out, {x.sizes[0], x.sizes[1], -1}));
  }

  Tensor mlp(const NeoXLayerModules& m, const Tensor& x) {
    const Tensor up = write_linear(w_, m.up, write_layer_norm(w_, m.post_norm, x, c_.eps));
    w_.enter(m.activation);
    const Tensor down = write_linear(w_, m.down, write_activation(w_, c_.activation, up));
    return write_dropout(w_, m.mlp_dropout, down, c_.hidden_dropout);
  }

  ProgramWriter& w_;
  const NeoXConfig& c_;
  AttentionKernel kernel_;
  AttentionShape attention_;
  Rotation rotation_;
  Tensor positions_;
};

/// Heads lie side by side in the fused projection, each with its three parts.
std::vector<ParallelStyle> parallel_plan(const std::string& head) {
  const std::string layer = "gpt_neox.layers.*.";
  return {{"gpt_neox.embed_in", "rowwise"},
          {layer + "input_layernorm", "sequence"},
          {layer + "attention", "gather"},
          {layer + "attention.query_key_value", "colwise"},
          {layer + "attention.dense", "rowwise"},
          {layer + "post_attention_layernorm", "sequence"},
          {layer + "mlp", "gather"},
          {layer + "mlp.dense_h_to_4h", "colwise"},
          {layer + "mlp.dense_4h_to_h", "rowwise"},
          {"gpt_neox.final_layer_norm", "sequence"},
          {head, "head"}};
}

}  // namespace

Result<Model> build_gpt_neox(const FamilyInput& input) {
  const NeoXConfig c = read_neox_config(input);
  const std::int64_t seq = choose_seq(input, c.positions, "max_position_embeddings");
  check_products(input, seq, std::max({3 * c.hidden, c.intermediate, c.vocabulary}), c.heads);
  if (input.config.failed()) return fail(input.config.error());

  const DType created = input.options.dtype.value_or(c.dtype);
  Model model = start_model(input, "gpt_neox", "GPTNeoXLayer", created, seq);
  const AttentionShape attention{.heads = c.heads,
                                 .key_value_heads = c.heads,
                                 .head_dim = c.head_dim,
                                 .dropout = c.attention_dropout,
                                 .scale = std::pow(static_cast<double>(c.head_dim), -0.5)};
  Result<AttentionKernel> kernel = choose_attention(input, attention, model.compute_dtype, needs_mask(input, seq, 0));
  if (!kernel) return fail(std::move(kernel.error()));
  const NeoXModules m = add_modules(model, c, created, input.program);

  ProgramWriter w(model, model.compute_dtype, kernels_of(input));
  auto [tokens, x, positions] = write_decoder_start(w, input, seq, {m.model, m.embedding, m.embedding_weight, -1});
  const std::optional<Tensor> mask = write_mask(w, input, tokens.mask, positions, 0);
  x = write_dropout(w, m.dropout, x, c.hidden_dropout);
  NeoXProgram program(w, c, *kernel, attention);
  program.rotary(m, positions);
  for (const NeoXLayerModules& layer : m.layers) x = program.layer(layer, x, mask ? &*mask : nullptr);
  x = write_layer_norm(w, m.norm, x, c.eps);
  finish_with_head(model, w, input, tokens, {m.root, m.head}, x);
  model.parallel = parallel_plan(model.modules[m.head.module.index()].fqn);
  return model;
}

}  // namespace foreshard::families
