// OPT: learned positions counted from a mask of ones, norms before or after the blocks, an embedding of its own width.
#include <algorithm>
#include <cmath>
#include <optional>

#include "core/model/families/decoder_parts.h"
#include "core/model/families/losses.h"

namespace foreshard::families {
namespace {

constexpr std::int64_t kPositionOffset = 2;  // the first two rows of the position table are never read

struct OptConfig {
  std::int64_t hidden = 0, inner = 0, layers = 0, heads = 0, vocabulary = 0, positions = 0;
  std::int64_t embedding = 0;  // width of the word embedding; projected where it is not hidden
  std::int64_t padding_index = 1;
  double dropout = 0.1, attention_dropout = 0.0;
  bool norm_first = true, final_norm = true, bias = true, tied = true;
  Activation activation = Activation::Relu;
  DType dtype = DType::Float32;
};

OptConfig read_opt_config(const FamilyInput& input) {
  ConfigReader& config = input.config;
  OptConfig c;
  check_architecture(config, "OPTForCausalLM");
  c.layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  c.hidden = config.integer("hidden_size", 1, kMaxWidth);
  c.inner = config.integer("ffn_dim", 1, kMaxWidth);
  c.heads = config.integer("num_attention_heads", 1, 1 << 16);
  c.vocabulary = config.integer("vocab_size", 1, kMaxVocabulary);
  c.positions = config.integer_or("max_position_embeddings", 2048, 1, kMaxPositions);
  c.embedding = config.integer_or("word_embed_proj_dim", std::max<std::int64_t>(c.hidden, 1), 1, kMaxWidth);
  c.padding_index = config.padding_index(1, c.vocabulary);
  c.dropout = config.number_or("dropout", 0.1, 0.0, 1.0);
  c.attention_dropout = config.number_or("attention_dropout", 0.0, 0.0, 1.0);
  c.norm_first = config.boolean_or("do_layer_norm_before", true);
  c.final_norm = c.norm_first && !config.boolean_or("_remove_final_layer_norm", false);
  c.bias = config.boolean_or("enable_bias", true);
  c.tied = config.boolean_or("tie_word_embeddings", true);
  c.activation = read_activation(config, "activation_function", "relu");
  c.dtype = config.parameter_dtype();
  if (config.failed()) return c;
  if (config.number_or("layerdrop", 0.0, 0.0, 1.0) > 0.0) {
    config.fail_with(ErrorCode::Unsupported, "layerdrop", "layers left out by chance cannot be planned", "0.0",
                     "more than 0");
  } else if (!config.boolean_or("layer_norm_elementwise_affine", true)) {
    config.fail_with(ErrorCode::Unsupported, "layer_norm_elementwise_affine", "this variant of OPT is not built",
                     "true", "false");
  } else if (c.hidden % c.heads != 0) {
    config.fail_with(ErrorCode::Inconsistent, "num_attention_heads",
                     "hidden_size is not a multiple of num_attention_heads",
                     "a divisor of hidden_size = " + std::to_string(c.hidden), std::to_string(c.heads));
  }
  return c;
}

struct OptLayerModules {
  ModuleId block, attention, activation;
  LinearModule q, k, v, out, up, down;
  LayerNormModule attention_norm, final_norm;
};

struct OptModules {
  ModuleId root, decoder, tokens, positions;
  ParamId token_weight, position_weight;
  LinearModule head;
  std::optional<LinearModule> project_in, project_out;
  std::optional<LayerNormModule> norm;
  std::vector<OptLayerModules> layers;
};

OptLayerModules add_layer(ModelTree& tree, const OptConfig& c, ModuleId list, std::int64_t index) {
  OptLayerModules m;
  m.block = tree.module(list, std::to_string(index), "OPTDecoderLayer", {"GradientCheckpointingLayer"});
  m.attention = tree.module(m.block, "self_attn", "OPTAttention");
  m.k = tree.linear(m.attention, "k_proj", c.hidden, c.hidden, c.bias);
  m.v = tree.linear(m.attention, "v_proj", c.hidden, c.hidden, c.bias);
  m.q = tree.linear(m.attention, "q_proj", c.hidden, c.hidden, c.bias);
  m.out = tree.linear(m.attention, "out_proj", c.hidden, c.hidden, c.bias);
  m.activation = tree.module(m.block, "activation_fn", activation_class(c.activation));
  m.attention_norm = tree.layer_norm(m.block, "self_attn_layer_norm", c.hidden);
  m.up = tree.linear(m.block, "fc1", c.hidden, c.inner, c.bias);
  m.down = tree.linear(m.block, "fc2", c.inner, c.hidden, c.bias);
  m.final_norm = tree.layer_norm(m.block, "final_layer_norm", c.hidden);
  return m;
}

OptModules add_modules(Model& model, const OptConfig& c, DType dtype) {
  ModelTree tree(model, dtype);
  OptModules m;
  const std::vector<std::string> pretrained{"OPTPreTrainedModel", "PreTrainedModel"};
  m.root = tree.module({}, "", "OPTForCausalLM", pretrained);
  const ModuleId model_module = tree.module(m.root, "model", "OPTModel", pretrained);
  m.decoder = tree.module(model_module, "decoder", "OPTDecoder", pretrained);
  m.tokens = tree.module(m.decoder, "embed_tokens", "Embedding");
  m.token_weight = tree.param(m.tokens, "weight", {c.vocabulary, c.embedding});
  m.positions = tree.module(m.decoder, "embed_positions", "OPTLearnedPositionalEmbedding", {"Embedding"});
  m.position_weight = tree.param(m.positions, "weight", {c.positions + kPositionOffset, c.hidden});
  if (c.embedding != c.hidden) {
    m.project_out = tree.linear(m.decoder, "project_out", c.hidden, c.embedding, false);
    m.project_in = tree.linear(m.decoder, "project_in", c.embedding, c.hidden, false);
  }
  if (c.final_norm) m.norm = tree.layer_norm(m.decoder, "final_layer_norm", c.hidden);
  const ModuleId list = tree.module(m.decoder, "layers", "ModuleList");
  m.layers.reserve(static_cast<std::size_t>(c.layers));
  for (std::int64_t i = 0; i < c.layers; ++i) m.layers.push_back(add_layer(tree, c, list, i));
  m.head = add_language_head(tree, m.root, c.vocabulary, c.embedding, c.tied, m.token_weight);
  return m;
}

class OptProgram {
 public:
  OptProgram(ProgramWriter& writer, const OptConfig& config, AttentionKernel kernel, const AttentionShape& shape)
      : w_(writer), c_(config), kernel_(kernel), shape_(shape) {}

  Tensor layer(const OptLayerModules& m, const Tensor& x, const Tensor* mask) {
    Tensor y = attention(m, c_.norm_first ? norm(m.attention_norm, x) : x, mask);
    w_.enter(m.block);
    y = w_.add(x, w_.dropout(y, c_.dropout));
    if (!c_.norm_first) y = norm(m.attention_norm, y);
    w_.enter(m.block);
    const Tensor rows = w_.view(y, {-1, c_.hidden});
    Tensor inner = write_linear(w_, m.up, c_.norm_first ? norm(m.final_norm, rows) : rows);
    w_.enter(m.activation);
    inner = write_activation(w_, c_.activation, inner);
    inner = write_linear(w_, m.down, inner);
    w_.enter(m.block);
    y = w_.view(w_.add(rows, w_.dropout(inner, c_.dropout)), x.sizes);
    return c_.norm_first ? y : norm(m.final_norm, y);
  }

  Tensor norm(const LayerNormModule& m, const Tensor& x) { return write_layer_norm(w_, m, x, 1e-5); }

 private:
  Tensor heads_of(const Tensor& x) {
    return w_.transpose(w_.view(x, {x.sizes[0], -1, shape_.heads, shape_.head_dim}), 1, 2);
  }

  /// The queries carry the scale; the kernels are told 1.
  Tensor attention(const OptLayerModules& m, const Tensor& x, const Tensor* mask) {
    const double scale = std::pow(static_cast<double>(shape_.head_dim), -0.5);
    const Tensor projected = write_linear(w_, m.q, x);
    w_.enter(m.attention);
    const Tensor q = heads_of(w_.with_scalar("aten.mul.Tensor", projected, Arg{scale}));
    const Tensor keys = write_linear(w_, m.k, x);
    const Tensor values = write_linear(w_, m.v, x);
    w_.enter(m.attention);
    const Tensor k = heads_of(keys);
    const Tensor v = heads_of(values);
    const Tensor out = write_attention(w_, kernel_, shape_, q, k, v, mask);
    return write_linear(w_, m.out, w_.view(out, {x.sizes[0], x.sizes[1], -1}));
  }

  ProgramWriter& w_;
  const OptConfig& c_;
  AttentionKernel kernel_;
  AttentionShape shape_;
};

/// Positions of a mask of ones: its running sum, less one, from the offset on.
struct Places {
  Tensor ids, rows;  // position_ids [batch, seq]; [batch, seq, hidden]
};
Places write_places(ProgramWriter& w, const OptModules& m, std::int64_t batch, std::int64_t seq) {
  w.enter(m.decoder);
  const Tensor ones = w.emit("aten.ones.default", {ProgramWriter::arg(Dims{batch, seq})}, {},
                             {{{batch, seq}, {seq, 1}, DType::Float32}})[0];
  w.hold(ones);  // position_attention_mask
  const Tensor counted = w.mul(w.cumsum(ones, 1), ones);
  const Tensor places = w.to(w.with_scalar("aten.sub.Tensor", counted, Arg{std::int64_t{1}}), DType::Int64);
  const Tensor ids = w.alias(places);  // position_ids[:, past:], handed to every layer
  w.hold(ids);
  w.enter(m.positions);
  const Tensor rows =
      w.embedding(w.param(m.position_weight), w.with_scalar("aten.add.Tensor", ids, Arg{kPositionOffset}), -1);
  w.hold(rows, Hold::Until::Call, m.decoder);
  return {ids, rows};
}

}  // namespace

Result<Model> build_opt(const FamilyInput& given) {
  ProgramOptions program = given.program;
  program.asks_for_packed_rows = false;  // the model makes its own mask of ones
  const FamilyInput input{given.options, program, given.config};
  const OptConfig c = read_opt_config(input);
  const std::int64_t seq = choose_seq(input, c.positions, "max_position_embeddings");
  check_products(input, seq, std::max({c.hidden, c.inner, c.vocabulary}), c.heads);
  if (input.config.failed()) return fail(input.config.error());

  const DType created = input.options.dtype.value_or(c.dtype);
  Model model = start_model(input, "opt", "OPTDecoderLayer", created, seq);
  AttentionShape shape;
  shape.heads = shape.key_value_heads = c.heads;
  shape.head_dim = c.hidden / c.heads;
  shape.dropout = c.attention_dropout;
  Result<AttentionKernel> kernel = choose_attention(input, shape, model.compute_dtype, needs_mask(input, seq, 0));
  if (!kernel) return fail(std::move(kernel.error()));
  const OptModules m = add_modules(model, c, created);

  ProgramWriter w(model, model.compute_dtype, kernels_of(input));
  const TokenInputs tokens = write_token_inputs(w, input, seq);
  w.enter(m.decoder);
  const Tensor ids = w.view(tokens.ids, {-1, seq});
  w.enter(m.tokens);
  Tensor x = w.embedding(w.param(m.token_weight), ids, c.padding_index);
  const Places places = write_places(w, m, input.options.batch, seq);
  if (m.project_in) x = write_linear(w, *m.project_in, x);
  w.hold(x, Hold::Until::Call, m.decoder);  // inputs_embeds, a name that the projection takes over
  w.enter(m.decoder);
  x = w.add(x, places.rows);
  std::optional<Tensor> mask;
  if (needs_mask(input, seq, 0)) mask = write_mask(w, input, tokens.mask, write_positions(w, seq), 0);
  OptProgram layers(w, c, *kernel, shape);
  for (const OptLayerModules& layer : m.layers) {
    w.call(layer.block, {&x, mask ? &*mask : nullptr, &places.ids});
    x = layers.layer(layer, x, mask ? &*mask : nullptr);
  }
  if (m.norm) x = layers.norm(*m.norm, x);
  if (m.project_out) x = write_linear(w, *m.project_out, x);
  finish_with_head(model, w, input, tokens, {m.root, m.head}, x);
  return model;
}

}  // namespace foreshard::families
