// Whisper: two convolutions and an encoder over mel features, a decoder over tokens that looks at what the encoder
// gave.
#include <algorithm>
#include <cmath>

#include "core/model/families/decoder_parts.h"
#include "core/model/families/family.h"
#include "core/model/families/losses.h"
#include "core/model/json_input.h"

namespace foreshard::families {
namespace {

struct WhisperConfig {
  std::int64_t hidden = 0, heads = 0, decoder_heads = 0, inner = 0, decoder_inner = 0;
  std::int64_t encoder_layers = 0, decoder_layers = 0, mels = 80, vocabulary = 0;
  std::int64_t source_positions = 1500, target_positions = 448, padding_index = -1;
  double dropout = 0.0, attention_dropout = 0.0, activation_dropout = 0.0;
  bool tied = true;
  Activation activation = Activation::Gelu;
  DType dtype = DType::Float32;
};

void check_heads(ConfigReader& config, const char* key, std::int64_t hidden, std::int64_t heads) {
  if (config.failed() || hidden % heads == 0) return;
  config.fail_with(ErrorCode::Inconsistent, key, std::string("d_model is not a multiple of ") + key,
                   "a divisor of d_model = " + std::to_string(hidden), std::to_string(heads));
}

WhisperConfig read_whisper_config(const FamilyInput& input) {
  ConfigReader& config = input.config;
  WhisperConfig c;
  check_architecture(config, "WhisperForConditionalGeneration");
  c.hidden = config.integer("d_model", 1, kMaxWidth);
  c.encoder_layers = config.integer("encoder_layers", 1, kMaxLayers);
  c.decoder_layers = config.integer("decoder_layers", 1, kMaxLayers);
  c.heads = config.integer_or("encoder_attention_heads", 6, 1, 1 << 16);
  c.decoder_heads = config.integer_or("decoder_attention_heads", 6, 1, 1 << 16);
  c.inner = config.integer_or("encoder_ffn_dim", 1536, 1, kMaxWidth);
  c.decoder_inner = config.integer_or("decoder_ffn_dim", 1536, 1, kMaxWidth);
  c.mels = config.integer_or("num_mel_bins", 80, 1, kMaxWidth);
  c.vocabulary = config.integer_or("vocab_size", 51865, 1, kMaxVocabulary);
  c.source_positions = config.integer_or("max_source_positions", 1500, 1, kMaxPositions);
  c.target_positions = config.integer_or("max_target_positions", 448, 1, kMaxPositions);
  c.padding_index = config.padding_index(50256, c.vocabulary);
  c.dropout = config.number_or("dropout", 0.0, 0.0, 1.0);
  c.attention_dropout = config.number_or("attention_dropout", 0.0, 0.0, 1.0);
  c.activation_dropout = config.number_or("activation_dropout", 0.0, 0.0, 1.0);
  c.tied = config.boolean_or("tie_word_embeddings", true);
  c.activation = read_activation(config, "activation_function", "gelu");
  c.dtype = config.parameter_dtype();
  check_heads(config, "encoder_attention_heads", c.hidden, c.heads);
  check_heads(config, "decoder_attention_heads", c.hidden, c.decoder_heads);
  for (const char* key : {"encoder_layerdrop", "decoder_layerdrop"}) {
    if (config.failed() || config.number_or(key, 0.0, 0.0, 1.0) == 0.0) continue;
    config.fail_with(ErrorCode::Unsupported, key, "layers left out by chance cannot be planned", "0.0", "more than 0");
  }
  if (!config.failed() && config.boolean_or("apply_spec_augment", false)) {
    config.fail_with(ErrorCode::Unsupported, "apply_spec_augment", "masks drawn over the features are not built",
                     "false", "true");
  }
  return c;
}

struct WhisperAttentionModules {
  ModuleId attention;
  LinearModule q, k, v, out;
};

struct WhisperLayerModules {
  ModuleId block, activation;
  WhisperAttentionModules self, cross;
  LayerNormModule self_norm, cross_norm, final_norm;
  LinearModule up, down;
};

struct ConvolutionModules {
  ModuleId module;
  ParamId weight, bias;
};

struct WhisperModules {
  ModuleId root, encoder, encoder_positions, decoder, tokens, decoder_positions;
  ConvolutionModules first, second;
  ParamId encoder_position_weight, token_weight, decoder_position_weight;
  std::vector<WhisperLayerModules> encoder_layers, decoder_layers;
  LayerNormModule encoder_norm, decoder_norm;
  LinearModule head;
};

class WhisperTree {
 public:
  WhisperTree(Model& model, const WhisperConfig& config, DType dtype)
      : model_(model), tree_(model, dtype), c_(config) {}

  WhisperModules add() {
    WhisperModules m;
    const std::vector<std::string> pretrained{"WhisperPreTrainedModel", "PreTrainedModel"};
    m.root = tree_.module({}, "", "WhisperForConditionalGeneration", pretrained);
    const ModuleId inner = tree_.module(m.root, "model", "WhisperModel", pretrained);
    m.encoder = tree_.module(inner, "encoder", "WhisperEncoder", pretrained);
    m.first = convolution(m.encoder, "conv1", c_.mels);
    m.second = convolution(m.encoder, "conv2", c_.hidden);
    m.encoder_positions = tree_.module(m.encoder, "embed_positions", "Embedding");
    m.encoder_position_weight = tree_.param(m.encoder_positions, "weight", {c_.source_positions, c_.hidden});
    model_.params[m.encoder_position_weight.index()].requires_grad = false;  // sinusoids
    const ModuleId encoders = tree_.module(m.encoder, "layers", "ModuleList");
    for (std::int64_t i = 0; i < c_.encoder_layers; ++i) m.encoder_layers.push_back(encoder_layer(encoders, i));
    m.encoder_norm = tree_.layer_norm(m.encoder, "layer_norm", c_.hidden);
    m.decoder = tree_.module(inner, "decoder", "WhisperDecoder", pretrained);
    m.tokens = tree_.module(m.decoder, "embed_tokens", "Embedding");
    m.token_weight = tree_.param(m.tokens, "weight", {c_.vocabulary, c_.hidden});
    m.decoder_positions = tree_.module(m.decoder, "embed_positions", "WhisperPositionalEmbedding", {"Embedding"});
    m.decoder_position_weight = tree_.param(m.decoder_positions, "weight", {c_.target_positions, c_.hidden});
    const ModuleId decoders = tree_.module(m.decoder, "layers", "ModuleList");
    for (std::int64_t i = 0; i < c_.decoder_layers; ++i) m.decoder_layers.push_back(decoder_layer(decoders, i));
    m.decoder_norm = tree_.layer_norm(m.decoder, "layer_norm", c_.hidden);
    m.head.module = tree_.module(m.root, "proj_out", "Linear");
    m.head.weight = c_.tied ? tree_.shared(m.head.module, "weight", m.token_weight)
                            : tree_.param(m.head.module, "weight", {c_.vocabulary, c_.hidden});
    return m;
  }

 private:
  ConvolutionModules convolution(ModuleId parent, std::string_view name, std::int64_t in) {
    ConvolutionModules m;
    m.module = tree_.module(parent, name, "Conv1d", {"_ConvNd"});
    m.weight = tree_.param(m.module, "weight", {c_.hidden, in, 3});
    m.bias = tree_.param(m.module, "bias", {c_.hidden});
    return m;
  }
  WhisperAttentionModules attention(ModuleId block, std::string_view name) {
    WhisperAttentionModules m;
    m.attention = tree_.module(block, name, "WhisperAttention");
    m.k = tree_.linear(m.attention, "k_proj", c_.hidden, c_.hidden, false);
    m.v = tree_.linear(m.attention, "v_proj", c_.hidden, c_.hidden, true);
    m.q = tree_.linear(m.attention, "q_proj", c_.hidden, c_.hidden, true);
    m.out = tree_.linear(m.attention, "out_proj", c_.hidden, c_.hidden, true);
    return m;
  }
  void feed_forward(WhisperLayerModules& m, std::int64_t inner) {
    m.up = tree_.linear(m.block, "fc1", c_.hidden, inner, true);
    m.down = tree_.linear(m.block, "fc2", inner, c_.hidden, true);
    m.final_norm = tree_.layer_norm(m.block, "final_layer_norm", c_.hidden);
  }
  WhisperLayerModules encoder_layer(ModuleId list, std::int64_t index) {
    WhisperLayerModules m;
    m.block = tree_.module(list, std::to_string(index), "WhisperEncoderLayer", {"GradientCheckpointingLayer"});
    m.self = attention(m.block, "self_attn");
    m.self_norm = tree_.layer_norm(m.block, "self_attn_layer_norm", c_.hidden);
    m.activation = tree_.module(m.block, "activation_fn", activation_class(c_.activation));
    feed_forward(m, c_.inner);
    return m;
  }
  WhisperLayerModules decoder_layer(ModuleId list, std::int64_t index) {
    WhisperLayerModules m;
    m.block = tree_.module(list, std::to_string(index), "WhisperDecoderLayer", {"GradientCheckpointingLayer"});
    m.self = attention(m.block, "self_attn");
    m.activation = tree_.module(m.block, "activation_fn", activation_class(c_.activation));
    m.self_norm = tree_.layer_norm(m.block, "self_attn_layer_norm", c_.hidden);
    m.cross = attention(m.block, "encoder_attn");
    m.cross_norm = tree_.layer_norm(m.block, "encoder_attn_layer_norm", c_.hidden);
    feed_forward(m, c_.decoder_inner);
    return m;
  }

  Model& model_;
  ModelTree tree_;
  const WhisperConfig& c_;
};

/// Kernels of the three attentions; the decoder's own is causal.
struct Attentions {
  AttentionKernel encoder, decoder, cross;
  AttentionShape encoder_shape, decoder_shape, cross_shape;
};

class WhisperProgram {
 public:
  WhisperProgram(ProgramWriter& writer, const WhisperConfig& config, const Attentions& attentions)
      : w_(writer), c_(config), a_(attentions) {}

  /// [batch, mels, 2 x positions] -> [batch, positions, hidden]
  Tensor encode(const WhisperModules& m, const Tensor& features) {
    Tensor x = convolution(m.first, features, 1);
    w_.enter(m.encoder);
    x = write_activation(w_, Activation::Gelu, x);
    x = convolution(m.second, x, 2);
    w_.enter(m.encoder);
    x = w_.permute(write_activation(w_, Activation::Gelu, x), {0, 2, 1});
    const Tensor places = w_.arange(c_.source_positions);
    w_.enter(m.encoder_positions);
    const Tensor positions = w_.embedding(w_.param(m.encoder_position_weight), places, -1);
    w_.enter(m.encoder);
    x = w_.dropout(w_.add(x, positions), c_.dropout);
    for (const WhisperLayerModules& layer : m.encoder_layers) {
      w_.call(layer.block, {&x});
      x = self_attention(layer, x, a_.encoder, a_.encoder_shape, nullptr);
      x = clamped(layer, feed_forward(layer, x));
    }
    return norm(m.encoder_norm, x);
  }

  Tensor decode(const WhisperModules& m, const FamilyInput& input, const Tensor& ids, const Tensor& memory) {
    w_.enter(m.tokens);
    const Tensor words = w_.embedding(w_.param(m.token_weight), ids, c_.padding_index);
    w_.enter(m.decoder);
    const std::int64_t batch = ids.sizes[0], seq = ids.sizes[1];
    const Dims places_sizes{batch, seq};
    const Tensor row = write_positions(w_, seq);
    const Tensor places =
        w_.emit("aten.repeat.default", {ProgramWriter::arg(row), ProgramWriter::arg(Dims{batch, 1})}, {},
                {{places_sizes, ProgramWriter::contiguous_strides(places_sizes), DType::Int64}})[0];
    w_.enter(m.decoder_positions);
    const Dims sizes{batch, seq, c_.hidden};
    const Tensor positions =
        w_.emit("aten.index.Tensor",
                {ProgramWriter::arg(w_.param(m.decoder_position_weight)), Arg{ArgList{ProgramWriter::arg(places)}}}, {},
                {{sizes, ProgramWriter::contiguous_strides(sizes), w_.dtype()}})[0];
    w_.enter(m.decoder);
    Tensor x = w_.dropout(w_.add(words, positions), c_.dropout);
    const std::optional<Tensor> mask = write_mask(w_, input, std::nullopt, places, 0);
    for (const WhisperLayerModules& layer : m.decoder_layers) {
      w_.call(layer.block, {&x, mask ? &*mask : nullptr, &memory});
      x = self_attention(layer, x, a_.decoder, a_.decoder_shape, mask ? &*mask : nullptr);
      const Tensor y = attention(layer.cross, norm(layer.cross_norm, x), memory, a_.cross, a_.cross_shape, nullptr);
      x = residual(layer, x, y);
      x = feed_forward(layer, x);
    }
    return norm(m.decoder_norm, x);
  }

 private:
  Tensor norm(const LayerNormModule& m, const Tensor& x) { return write_layer_norm(w_, m, x, 1e-5); }

  Tensor convolution(const ConvolutionModules& m, const Tensor& x, std::int64_t stride) {
    w_.enter(m.module);
    const Dims sizes{x.sizes[0], c_.hidden, (x.sizes[2] + 2 - 3) / stride + 1};
    const auto arg = [](const auto& value) { return ProgramWriter::arg(value); };
    const Tensor bias = w_.narrowed(w_.param(m.bias)), weight = w_.narrowed(w_.param(m.weight));
    const Tensor given = w_.narrowed(x);
    return w_.emit("aten.convolution.default",
                   {arg(given), arg(weight), arg(bias), arg(Dims{stride}), arg(Dims{1}), arg(Dims{1}), Arg{false},
                    arg(Dims{0}), Arg{std::int64_t{1}}},
                   {}, {{sizes, ProgramWriter::contiguous_strides(sizes), weight.dtype}})[0];
  }

  Tensor residual(const WhisperLayerModules& m, const Tensor& x, const Tensor& y) {
    w_.enter(m.block);
    return w_.add(x, w_.dropout(y, c_.dropout));
  }

  Tensor self_attention(const WhisperLayerModules& m, const Tensor& x, AttentionKernel kernel,
                        const AttentionShape& shape, const Tensor* mask) {
    const Tensor normed = norm(m.self_norm, x);
    return residual(m, x, attention(m.self, normed, normed, kernel, shape, mask));
  }

  /// The queries carry the scale; the kernels are told 1.
  Tensor attention(const WhisperAttentionModules& m, const Tensor& x, const Tensor& memory, AttentionKernel kernel,
                   const AttentionShape& shape, const Tensor* mask) {
    const double scale = std::pow(static_cast<double>(shape.head_dim), -0.5);
    const Tensor projected = write_linear(w_, m.q, x);
    w_.enter(m.attention);
    const Tensor scaled = w_.with_scalar("aten.mul.Tensor", projected, Arg{scale});
    const Tensor q = w_.contiguous(w_.transpose(w_.view(scaled, {x.sizes[0], x.sizes[1], -1, shape.head_dim}), 1, 2));
    const Tensor k = heads_of(m, m.k, memory, shape), v = heads_of(m, m.v, memory, shape);
    const Tensor out = write_attention(w_, kernel, shape, q, k, v, mask);
    return write_linear(w_, m.out, w_.view(out, {x.sizes[0], x.sizes[1], -1}));
  }
  Tensor heads_of(const WhisperAttentionModules& m, const LinearModule& linear, const Tensor& x,
                  const AttentionShape& shape) {
    const Tensor y = write_linear(w_, linear, x);
    w_.enter(m.attention);
    return w_.contiguous(w_.transpose(w_.view(y, {x.sizes[0], -1, shape.heads, shape.head_dim}), 1, 2));
  }

  Tensor feed_forward(const WhisperLayerModules& m, const Tensor& x) {
    Tensor y = write_linear(w_, m.up, norm(m.final_norm, x));
    w_.enter(m.activation);
    y = write_activation(w_, c_.activation, y);
    w_.enter(m.block);
    y = write_linear(w_, m.down, w_.dropout(y, c_.activation_dropout));
    return residual(m, x, y);
  }

  /// Encoder layers clamp infinities away in float16.
  Tensor clamped(const WhisperLayerModules& m, const Tensor& x) {
    if (x.dtype != DType::Float16) return x;
    constexpr double kMost = 65504.0 - 1000.0;
    w_.enter(m.block);
    return w_.emit("aten.clamp.default", {ProgramWriter::arg(x), Arg{-kMost}, Arg{kMost}}, {},
                   {{x.sizes, ProgramWriter::like_strides(x), x.dtype}})[0];
  }

  ProgramWriter& w_;
  const WhisperConfig& c_;
  const Attentions& a_;
};

Result<Attentions> choose_attentions(const FamilyInput& input, const WhisperConfig& c, DType dtype, std::int64_t seq) {
  Attentions a;
  const auto shape = [&](std::int64_t heads, bool causal) {
    AttentionShape s;
    s.heads = s.key_value_heads = heads;
    s.head_dim = c.hidden / heads;
    s.dropout = c.attention_dropout;
    s.causal = causal;
    return s;
  };
  a.encoder_shape = shape(c.heads, false);
  a.decoder_shape = shape(c.decoder_heads, true);
  a.cross_shape = shape(c.decoder_heads, false);
  const std::tuple<AttentionKernel*, const AttentionShape*, bool> all[] = {
      {&a.encoder, &a.encoder_shape, false},
      {&a.decoder, &a.decoder_shape, needs_mask(input, seq, 0)},
      {&a.cross, &a.cross_shape, false}};
  for (const auto& [kernel, of, masked] : all) {
    Result<AttentionKernel> chosen = choose_attention(input, *of, dtype, masked);
    if (!chosen) return fail(std::move(chosen.error()));
    *kernel = *chosen;
  }
  return a;
}

}  // namespace

/// A sequence is the decoder's; the encoder's is as long as its positions.
Result<Model> build_whisper(const FamilyInput& input) {
  const WhisperConfig c = read_whisper_config(input);
  const std::int64_t seq = choose_seq(input, c.target_positions, "max_target_positions");
  check_products(input, std::max(seq, c.source_positions), std::max({c.hidden, c.inner, c.decoder_inner, c.vocabulary}),
                 std::max(c.heads, c.decoder_heads));
  if (input.config.failed()) return fail(input.config.error());

  const DType created = input.options.dtype.value_or(c.dtype);
  Model model = start_model(input, "whisper", "GradientCheckpointingLayer", created, seq);
  const Result<Attentions> attentions = choose_attentions(input, c, model.compute_dtype, seq);
  if (!attentions) return fail(attentions.error());
  const WhisperModules m = WhisperTree(model, c, created).add();

  ProgramWriter w(model, model.compute_dtype, kernels_of(input));
  const std::int64_t batch = input.options.batch;
  const Tensor features = w.input("input_features", {batch, c.mels, 2 * c.source_positions}, model.compute_dtype);
  const Dims target{batch, input.options.target_seq > 0 ? input.options.target_seq : seq};
  TokenInputs tokens;
  tokens.shifted = false;
  tokens.ids = w.input("decoder_input_ids", target, DType::Int64);
  if (input.options.loss == "auto") tokens.labels = w.input("labels", target, DType::Int64);
  WhisperProgram program(w, c, *attentions);
  const Tensor memory = program.encode(m, features);
  const Tensor x = program.decode(m, input, tokens.ids, memory);
  w.enter(m.head.module);
  finish_with_loss(model, w, input, tokens, w.linear(x, m.head.weight, {}));
  return model;
}

}  // namespace foreshard::families
