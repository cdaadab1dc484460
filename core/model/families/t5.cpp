// T5: encoder and decoder, positions as a learned bias of attention scores, RMS norms before each layer.
#include <algorithm>
#include <cmath>

#include "core/model/families/family.h"
#include "core/model/families/losses.h"
#include "core/model/json_input.h"

namespace foreshard::families {
namespace {

struct T5Config {
  std::int64_t hidden = 0, inner = 0, head_dim = 0, heads = 0, vocabulary = 0, positions = 0;
  std::int64_t encoder_layers = 0, decoder_layers = 0;
  std::int64_t buckets = 32, max_distance = 128;
  double eps = 1e-6, dropout = 0.1;
  bool gated = false;
  bool body = false;   // T5EncoderModel: the encoder alone
  bool scaled = true;  // the head is the embedding's weight always
  Activation activation = Activation::Relu;
  DType dtype = DType::Float32;
};

/// feed_forward_proj: "relu", "gelu", "gated-gelu" (which means the new form), "gated-silu".
void read_feed_forward(ConfigReader& config, T5Config& c) {
  std::string name = config.text_or("feed_forward_proj", "relu");
  c.gated = name.starts_with("gated-");
  if (c.gated) name = name.substr(6);
  if (name == "relu") {
    c.activation = Activation::Relu;
  } else if (name == "gelu") {
    c.activation = c.gated ? Activation::GeluNew : Activation::Gelu;
  } else if (name == "silu") {
    c.activation = Activation::Silu;
  } else {
    config.fail_with(ErrorCode::Unsupported, "feed_forward_proj", "this feed-forward layer is not built",
                     "relu, gelu or silu, with or without \"gated-\"", in_quotes(name));
  }
}

T5Config read_t5_config(const FamilyInput& input) {
  ConfigReader& config = input.config;
  T5Config c;
  c.body = is_body(config, "T5ForConditionalGeneration", "T5EncoderModel");
  c.encoder_layers = config.integer("num_layers", 1, kMaxLayers);
  c.decoder_layers = config.integer_or("num_decoder_layers", c.encoder_layers, 1, kMaxLayers);
  c.hidden = config.integer("d_model", 1, kMaxWidth);
  c.inner = config.integer("d_ff", 1, kMaxWidth);
  c.head_dim = config.integer("d_kv", 1, 1 << 16);
  c.heads = config.integer("num_heads", 1, 1 << 16);
  c.vocabulary = config.integer("vocab_size", 1, kMaxVocabulary);
  c.positions = config.integer_or("n_positions", 512, 1, kMaxPositions);
  c.buckets = config.integer_or("relative_attention_num_buckets", 32, 4, 1 << 16);
  c.max_distance = config.integer_or("relative_attention_max_distance", 128, 2, 1 << 20);
  c.eps = config.number_or("layer_norm_epsilon", 1e-6, 0.0, 1.0);
  c.dropout = config.number_or("dropout_rate", 0.1, 0.0, 1.0);
  // Files of T5 1.1 say "not tied" for "not scaled", and the library reads it so.
  c.scaled = config.boolean_or("scale_decoder_outputs", config.boolean_or("tie_word_embeddings", true));
  read_feed_forward(config, c);
  c.dtype = config.parameter_dtype();
  if (!config.failed() && c.heads * c.head_dim > kMaxWidth) {
    config.fail_with(ErrorCode::TooLarge, "d_kv", "num_heads x d_kv is too large",
                     "at most " + std::to_string(kMaxWidth), std::to_string(c.heads * c.head_dim));
  }
  return c;
}

struct NormModules {
  ModuleId module;
  ParamId weight;
};

/// Attention or feed-forward with its norm before and dropout after.
struct T5AttentionModules {
  ModuleId layer, attention, bias, dropout;
  ParamId bias_weight;
  LinearModule q, k, v, o;
  NormModules norm;
};

struct T5BlockModules {
  T5AttentionModules self, cross;
  ModuleId module;
  ModuleId feed_forward, dense, activation, inner_dropout, dropout;
  LinearModule up, gate, down;  // `gate` only where gated: wi_0 is activated, wi_1 multiplies
  NormModules norm;
};

struct StackModules {
  ModuleId module, embedding, dropout;
  NormModules norm;
  std::vector<T5BlockModules> blocks;
};

struct T5Modules {
  ModuleId root, head;
  ParamId embedding, head_weight;
  StackModules encoder, decoder;
};

class T5Tree {
 public:
  T5Tree(Model& model, const T5Config& config, DType dtype) : tree_(model, dtype), c_(config) {}

  T5Modules add() {
    T5Modules m;
    const std::vector<std::string> pretrained{"T5PreTrainedModel", "PreTrainedModel"};
    m.root = tree_.module({}, "", c_.body ? "T5EncoderModel" : "T5ForConditionalGeneration", pretrained);
    m.embedding = tree_.param(tree_.module(m.root, "shared", "Embedding"), "weight", {c_.vocabulary, c_.hidden});
    m.encoder = stack(m, "encoder", c_.encoder_layers, false);
    if (c_.body) return m;
    m.decoder = stack(m, "decoder", c_.decoder_layers, true);
    m.head = tree_.module(m.root, "lm_head", "Linear");
    m.head_weight = tree_.shared(m.head, "weight", m.embedding);
    return m;
  }

 private:
  NormModules norm(ModuleId parent, std::string_view name) {
    NormModules m;
    m.module = tree_.module(parent, name, "T5LayerNorm");
    m.weight = tree_.param(m.module, "weight", {c_.hidden});
    return m;
  }

  T5AttentionModules attention(ModuleId list, int index, bool cross, bool with_bias) {
    T5AttentionModules m;
    m.layer = tree_.module(list, std::to_string(index), cross ? "T5LayerCrossAttention" : "T5LayerSelfAttention");
    m.attention = tree_.module(m.layer, cross ? "EncDecAttention" : "SelfAttention", "T5Attention");
    const std::int64_t width = c_.heads * c_.head_dim;
    m.q = tree_.linear(m.attention, "q", c_.hidden, width, false);
    m.k = tree_.linear(m.attention, "k", c_.hidden, width, false);
    m.v = tree_.linear(m.attention, "v", c_.hidden, width, false);
    m.o = tree_.linear(m.attention, "o", width, c_.hidden, false);
    if (with_bias) {
      m.bias = tree_.module(m.attention, "relative_attention_bias", "Embedding");
      m.bias_weight = tree_.param(m.bias, "weight", {c_.buckets, c_.heads});
    }
    m.norm = norm(m.layer, "layer_norm");
    m.dropout = tree_.dropout(m.layer, "dropout");
    return m;
  }

  T5BlockModules block(ModuleId list, std::int64_t index, bool decoder) {
    T5BlockModules m;
    const ModuleId block = tree_.module(list, std::to_string(index), "T5Block", {"GradientCheckpointingLayer"});
    m.module = block;
    const ModuleId layers = tree_.module(block, "layer", "ModuleList");
    m.self = attention(layers, 0, false, index == 0);
    if (decoder) m.cross = attention(layers, 1, true, false);
    m.feed_forward = tree_.module(layers, decoder ? "2" : "1", "T5LayerFF");
    m.dense = tree_.module(m.feed_forward, "DenseReluDense", c_.gated ? "T5DenseGatedActDense" : "T5DenseActDense");
    m.up = tree_.linear(m.dense, c_.gated ? "wi_0" : "wi", c_.hidden, c_.inner, false);
    if (c_.gated) m.gate = tree_.linear(m.dense, "wi_1", c_.hidden, c_.inner, false);
    m.down = tree_.linear(m.dense, "wo", c_.inner, c_.hidden, false);
    m.inner_dropout = tree_.dropout(m.dense, "dropout");
    m.activation = tree_.module(m.dense, "act", activation_class(c_.activation));
    m.norm = norm(m.feed_forward, "layer_norm");
    m.dropout = tree_.dropout(m.feed_forward, "dropout");
    return m;
  }

  StackModules stack(const T5Modules& m, std::string_view name, std::int64_t layers, bool decoder) {
    StackModules s;
    s.module = tree_.module(m.root, name, "T5Stack", {"T5PreTrainedModel", "PreTrainedModel"});
    s.embedding = tree_.module(s.module, "embed_tokens", "Embedding");
    tree_.shared(s.embedding, "weight", m.embedding);
    const ModuleId list = tree_.module(s.module, "block", "ModuleList");
    for (std::int64_t i = 0; i < layers; ++i) s.blocks.push_back(block(list, i, decoder));
    s.norm = norm(s.module, "final_layer_norm");
    s.dropout = tree_.dropout(s.module, "dropout");
    return s;
  }

  ModelTree tree_;
  const T5Config& c_;
};

class T5Program {
 public:
  T5Program(ProgramWriter& writer, const T5Config& config, AttentionKernel kernel, const AttentionShape& attention)
      : w_(writer), c_(config), kernel_(kernel), attention_(attention) {}

  /// `memory`: what the encoder gave, for a decoder.
  Tensor stack(const T5Modules& m, const StackModules& s, const Tensor& ids, const Tensor* memory) {
    w_.enter(s.embedding);
    Tensor x = write_dropout(w_, s.dropout, w_.embedding(w_.param(m.embedding), ids, -1), c_.dropout);
    Tensor self_bias, cross_bias;  // made in the first block, handed to the others
    for (std::size_t i = 0; i < s.blocks.size(); ++i) {
      const T5BlockModules& b = s.blocks[i];
      x = clamped(b, attention(b.self, x, nullptr, memory != nullptr, self_bias));
      if (memory != nullptr) x = clamped(b, attention(b.cross, x, memory, false, cross_bias));
      x = clamped(b, feed_forward(b, x));
    }
    return write_dropout(w_, s.dropout, norm(s.norm, x), c_.dropout);
  }

 private:
  Tensor norm(const NormModules& m, const Tensor& x) {
    w_.enter(m.module);
    const Tensor wide = w_.to(x, DType::Float32);
    const Tensor variance = w_.mean_last(w_.with_scalar("aten.pow.Tensor_Scalar", wide, Arg{std::int64_t{2}}));
    const Tensor scale = w_.unary("aten.rsqrt.default", w_.with_scalar("aten.add.Tensor", variance, Arg{c_.eps}));
    return w_.mul(w_.param(m.weight), w_.to(w_.mul(x, scale), x.dtype));
  }

  /// T5Block clamps infinities away to make training in float16 possible.
  Tensor clamped(const T5BlockModules& m, const Tensor& x) {
    if (x.dtype != DType::Float16) return x;
    constexpr double kMax = 65504.0;
    w_.enter(m.module);
    const auto made = [this](std::string_view op, ArgList args, const Dims& sizes, DType dtype) {
      return w_.emit(op, std::move(args), {}, {{sizes, ProgramWriter::contiguous_strides(sizes), dtype}})[0];
    };
    const Tensor where = made("aten.isinf.default", {ProgramWriter::arg(x)}, x.sizes, DType::Bool);
    const Tensor infinite = made("aten.any.default", {ProgramWriter::arg(where)}, {}, DType::Bool);
    const Tensor less = w_.scalar(kMax - 1000.0, DType::Float32, true);
    const Tensor limit = w_.where(infinite, less, w_.scalar(kMax, DType::Float32, true));
    const Tensor low = w_.unary("aten.neg.default", limit);
    return made("aten.clamp.Tensor", {ProgramWriter::arg(x), ProgramWriter::arg(low), ProgramWriter::arg(limit)},
                x.sizes, x.dtype);
  }

  Tensor heads_of(const T5AttentionModules& m, const LinearModule& linear, const Tensor& x) {
    const Tensor y = write_linear(w_, linear, x);
    w_.enter(m.attention);
    return write_heads(w_, y, c_.head_dim);
  }

  Tensor attention(const T5AttentionModules& m, const Tensor& x, const Tensor* memory, bool causal, Tensor& bias) {
    const Tensor normed = norm(m.norm, x);
    const Tensor& keys = memory != nullptr ? *memory : normed;
    const Tensor q = heads_of(m, m.q, normed), k = heads_of(m, m.k, keys), v = heads_of(m, m.v, keys);
    const std::int64_t seq = x.sizes[1];
    if (bias.index < 0) {
      bias = m.bias.valid() ? position_bias(m, seq, causal)
                            : w_.zeros({1, c_.heads, seq, keys.sizes[1]}, q.dtype);  // no mask, no bias
    }
    Tensor mask = bias;
    if (causal) mask = only_before(bias, seq);
    mask = w_.contiguous(mask);
    // Flash attention on a CPU gives its mask no gradient, and the learned bias wants one.
    const bool learned = memory == nullptr;
    const AttentionKernel kernel = learned && kernel_ == AttentionKernel::CpuFlash ? AttentionKernel::Math : kernel_;
    const Tensor out = write_attention(w_, kernel, attention_, q, k, v, &mask);
    const Tensor y = write_linear(w_, m.o, w_.view(out, {x.sizes[0], seq, -1}));
    const Tensor dropped = write_dropout(w_, m.dropout, y, c_.dropout);
    w_.enter(m.layer);
    return w_.add(x, dropped);
  }

  /// The bias with positions behind the query at the lowest value.
  Tensor only_before(const Tensor& bias, std::int64_t seq) {
    const Tensor queries = w_.unsqueeze(w_.arange(seq), 1);
    const Tensor keys = w_.unsqueeze(w_.arange(seq), 0);
    const Tensor seen = w_.view(w_.binary("aten.ge.Tensor", queries, keys, DType::Bool), {1, 1, seq, seq});
    return w_.where(seen, bias, w_.scalar(lowest_value(w_.dtype()), w_.dtype(), true));
  }

  Tensor long_range(std::int64_t count) {
    return w_.emit("aten.arange.default", {Arg{count}}, {{"dtype", Arg{DType::Int64}}},
                   {{{count}, {1}, DType::Int64}})[0];
  }

  /// [1, heads, seq, seq] from the buckets of relative positions (T5Attention.compute_bias).
  Tensor position_bias(const T5AttentionModules& m, std::int64_t seq, bool causal) {
    const Arg zero{std::int64_t{0}};
    const Tensor context = w_.with_scalar("aten.add.Tensor", w_.unsqueeze(long_range(seq), 1), zero);
    const Tensor memory = w_.unsqueeze(long_range(seq), 0);
    const Tensor buckets = bucket(w_.sub(memory, context), causal);
    w_.enter(m.bias);
    const Tensor values = w_.embedding(w_.param(m.bias_weight), buckets, -1);
    w_.enter(m.attention);
    return w_.unsqueeze(w_.permute(values, {2, 0, 1}), 0);
  }

  Tensor like(std::string_view op, const Tensor& x, ArgList rest) {
    rest.insert(rest.begin(), ProgramWriter::arg(x));
    return w_.emit(op, std::move(rest), {}, {{x.sizes, ProgramWriter::like_strides(x), x.dtype}})[0];
  }

  /// _relative_position_bucket: near positions one by one, far ones by logarithm; both ways unless causal.
  Tensor bucket(const Tensor& relative, bool causal) {
    const Arg zero{std::int64_t{0}};
    const std::int64_t buckets = causal ? c_.buckets : c_.buckets / 2, exact = buckets / 2;
    const auto number = [](std::int64_t n) { return Arg{n}; };
    Tensor side, distance;
    if (causal) {
      distance = w_.unary("aten.neg.default", w_.binary("aten.minimum.default", relative,
                                                        like("aten.zeros_like.default", relative, {}), DType::Int64));
    } else {
      const Tensor after = w_.to(w_.with_scalar("aten.gt.Scalar", relative, zero, DType::Bool), DType::Int64);
      side = w_.with_scalar("aten.add.Tensor", w_.with_scalar("aten.mul.Tensor", after, number(buckets)), zero);
      distance = w_.unary("aten.abs.default", relative);
    }
    const Tensor near = w_.with_scalar("aten.lt.Scalar", distance, number(exact), DType::Bool);
    const Tensor share = w_.with_scalar("aten.div.Tensor", w_.to(distance, DType::Float32), number(exact));
    const double range = std::log(static_cast<double>(c_.max_distance) / static_cast<double>(exact));
    const Tensor part = w_.with_scalar("aten.div.Tensor", w_.unary("aten.log.default", share), Arg{range});
    const Tensor steps = w_.to(w_.with_scalar("aten.mul.Tensor", part, number(buckets - exact)), DType::Int64);
    const Tensor far = w_.with_scalar("aten.add.Tensor", steps, number(exact));
    const Tensor last = like("aten.full_like.default", far, {number(buckets - 1)});
    const Tensor place = w_.where(near, distance, w_.binary("aten.minimum.default", far, last, DType::Int64));
    if (causal) return w_.with_scalar("aten.add.Tensor", place, zero);
    return w_.add_in_place(side, place);
  }

  Tensor feed_forward(const T5BlockModules& m, const Tensor& x) {
    const Tensor normed = norm(m.norm, x);
    const Tensor up = write_linear(w_, m.up, normed);
    w_.enter(m.activation);
    Tensor y = write_activation(w_, c_.activation, up);
    if (c_.gated) {
      const Tensor gate = write_linear(w_, m.gate, normed);
      w_.enter(m.dense);
      y = w_.mul(y, gate);
    }
    y = write_dropout(w_, m.inner_dropout, y, c_.dropout);
    w_.enter(m.dense);
    y = write_linear(w_, m.down, w_.to(y, w_.dtype()));  // to the weight's own, whatever autocast made of it
    y = write_dropout(w_, m.dropout, y, c_.dropout);
    w_.enter(m.feed_forward);
    return w_.add(x, y);
  }

  ProgramWriter& w_;
  const T5Config& c_;
  AttentionKernel kernel_;
  AttentionShape attention_;
};

}  // namespace

Result<Model> build_t5(const FamilyInput& input) {
  const T5Config c = read_t5_config(input);
  // Relative positions have no end; n_positions only says how long rows are if nobody says it.
  const std::int64_t seq = choose_seq(input, input.options.seq_given ? kMaxPositions : c.positions, "n_positions");
  check_products(input, seq, std::max({c.hidden, c.inner, c.vocabulary, c.heads * c.head_dim}), c.heads);
  if (input.config.failed()) return fail(input.config.error());

  const DType created = input.options.dtype.value_or(c.dtype);
  Model model = start_model(input, "t5", "T5Block", created, seq);
  const AttentionShape attention{.heads = c.heads,
                                 .key_value_heads = c.heads,
                                 .head_dim = c.head_dim,
                                 .dropout = c.dropout,
                                 .scale = 1.0,
                                 .causal = false};
  Result<AttentionKernel> kernel = choose_attention(input, attention, model.compute_dtype, true);
  if (!kernel) return fail(std::move(kernel.error()));
  const T5Modules m = T5Tree(model, c, created).add();

  ProgramWriter w(model, model.compute_dtype, kernels_of(input));
  const Dims sizes{input.options.batch, seq};
  TokenInputs tokens;
  tokens.shifted = false;
  const Tensor ids = w.input("input_ids", sizes, DType::Int64);
  if (c.body) {
    const Tensor encoded = T5Program(w, c, *kernel, attention).stack(m, m.encoder, ids, nullptr);
    if (Result<void> done = finish_body(model, w, input, {encoded}); !done) return fail(std::move(done.error()));
    return model;
  }
  const Dims target{input.options.batch, input.options.target_seq > 0 ? input.options.target_seq : seq};
  tokens.ids = w.input("decoder_input_ids", target, DType::Int64);
  if (input.options.loss == "auto")
    tokens.labels = w.input("labels", target, DType::Int64, target == sizes ? &ids : nullptr);
  T5Program program(w, c, *kernel, attention);
  const Tensor memory = program.stack(m, m.encoder, ids, nullptr);
  Tensor x = program.stack(m, m.decoder, tokens.ids, &memory);
  w.enter(m.root);
  if (c.scaled) {  // the embedding's scale is not the head's
    x = w.with_scalar("aten.mul.Tensor", x, Arg{std::pow(static_cast<double>(c.hidden), -0.5)});
  }
  w.enter(m.head);
  finish_with_loss(model, w, input, tokens, w.linear(x, m.head_weight, {}));
  return model;
}

}  // namespace foreshard::families
