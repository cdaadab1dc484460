// GPT-2: learned positions, fused query-key-value projection (Conv1D), dropout.
#include <algorithm>
#include <cmath>

#include "core/model/families/decoder_parts.h"
#include "core/model/families/losses.h"

namespace foreshard::families {
namespace {

struct Gpt2Config {
  std::int64_t hidden = 0, inner = 0, layers = 0, heads = 0, vocabulary = 0, positions = 0;
  double eps = 1e-5;
  double embedding_dropout = 0.1, residual_dropout = 0.1, attention_dropout = 0.1;
  bool scale_attention = true, scale_by_layer = false;
  bool tied = true;
  Activation activation = Activation::GeluNew;
  DType dtype = DType::Float32;
};

Gpt2Config read_gpt2_config(const FamilyInput& input) {
  ConfigReader& config = input.config;
  Gpt2Config c;
  check_architecture(config, "GPT2LMHeadModel");
  c.layers = config.integer("n_layer", 1, kMaxLayers);
  c.hidden = config.integer("n_embd", 1, kMaxWidth);
  c.heads = config.integer("n_head", 1, 1 << 16);
  c.vocabulary = config.integer("vocab_size", 1, kMaxVocabulary);
  c.positions = config.integer_or("n_positions", 1024, 1, kMaxPositions);
  if (!config.failed()) c.inner = config.integer_or("n_inner", 4 * c.hidden, 1, kMaxWidth);
  c.eps = config.number_or("layer_norm_epsilon", 1e-5, 0.0, 1.0);
  c.embedding_dropout = config.number_or("embd_pdrop", 0.1, 0.0, 1.0);
  c.residual_dropout = config.number_or("resid_pdrop", 0.1, 0.0, 1.0);
  c.attention_dropout = config.number_or("attn_pdrop", 0.1, 0.0, 1.0);
  c.scale_attention = config.boolean_or("scale_attn_weights", true);
  c.scale_by_layer = config.boolean_or("scale_attn_by_inverse_layer_idx", false);
  c.tied = config.boolean_or("tie_word_embeddings", true);
  c.activation = read_activation(config, "activation_function", "gelu_new");
  c.dtype = config.parameter_dtype();
  for (const std::string_view key : {"add_cross_attention", "reorder_and_upcast_attn"}) {
    if (config.boolean_or(key, false))
      config.fail_with(ErrorCode::Unsupported, key, "this variant of GPT-2 is not built", "false", "true");
  }
  if (!config.failed() && c.hidden % c.heads != 0) {
    config.fail_with(ErrorCode::Inconsistent, "n_head", "n_embd is not a multiple of n_head",
                     "a divisor of n_embd = " + std::to_string(c.hidden), std::to_string(c.heads));
  }
  return c;
}

struct Gpt2LayerModules {
  ModuleId block, attention, attention_dropout, residual_dropout, mlp, activation, mlp_dropout;
  LayerNormModule norm1, norm2;
  LinearModule qkv, out, up, down;  // Conv1D: weight [in, out]
};

struct Gpt2Modules {
  ModuleId root, model, tokens, positions, dropout;
  ParamId token_weight, position_weight;
  LayerNormModule norm;
  LinearModule head;
  std::vector<Gpt2LayerModules> layers;
};

LinearModule add_conv(ModelTree& tree, ModuleId parent, std::string_view name, std::int64_t in, std::int64_t out) {
  LinearModule conv;
  conv.module = tree.module(parent, name, "Conv1D");
  conv.weight = tree.param(conv.module, "weight", {in, out});
  conv.bias = tree.param(conv.module, "bias", {out});
  return conv;
}

Gpt2LayerModules add_layer(ModelTree& tree, const Gpt2Config& c, ModuleId list, std::int64_t index) {
  Gpt2LayerModules m;
  m.block = tree.module(list, std::to_string(index), "GPT2Block", {"GradientCheckpointingLayer"});
  m.norm1 = tree.layer_norm(m.block, "ln_1", c.hidden);
  m.attention = tree.module(m.block, "attn", "GPT2Attention");
  m.qkv = add_conv(tree, m.attention, "c_attn", c.hidden, 3 * c.hidden);
  m.out = add_conv(tree, m.attention, "c_proj", c.hidden, c.hidden);
  m.attention_dropout = tree.dropout(m.attention, "attn_dropout");
  m.residual_dropout = tree.dropout(m.attention, "resid_dropout");
  m.norm2 = tree.layer_norm(m.block, "ln_2", c.hidden);
  m.mlp = tree.module(m.block, "mlp", "GPT2MLP");
  m.up = add_conv(tree, m.mlp, "c_fc", c.hidden, c.inner);
  m.down = add_conv(tree, m.mlp, "c_proj", c.inner, c.hidden);
  m.activation = tree.module(m.mlp, "act", activation_class(c.activation));
  m.mlp_dropout = tree.dropout(m.mlp, "dropout");
  return m;
}

Gpt2Modules add_modules(Model& model, const Gpt2Config& c, DType dtype) {
  ModelTree tree(model, dtype);
  Gpt2Modules m;
  const std::vector<std::string> pretrained{"GPT2PreTrainedModel", "PreTrainedModel"};
  m.root = tree.module({}, "", "GPT2LMHeadModel", pretrained);
  m.model = tree.module(m.root, "transformer", "GPT2Model", pretrained);
  m.tokens = tree.module(m.model, "wte", "Embedding");
  m.token_weight = tree.param(m.tokens, "weight", {c.vocabulary, c.hidden});
  m.positions = tree.module(m.model, "wpe", "Embedding");
  m.position_weight = tree.param(m.positions, "weight", {c.positions, c.hidden});
  m.dropout = tree.dropout(m.model, "drop");
  const ModuleId list = tree.module(m.model, "h", "ModuleList");
  m.layers.reserve(static_cast<std::size_t>(c.layers));
  for (std::int64_t i = 0; i < c.layers; ++i) m.layers.push_back(add_layer(tree, c, list, i));
  m.norm = tree.layer_norm(m.model, "ln_f", c.hidden);
  m.head = add_language_head(tree, m.root, c.vocabulary, c.hidden, c.tied, m.token_weight);
  return m;
}

class Gpt2Program {
 public:
  Gpt2Program(ProgramWriter& writer, const Gpt2Config& config, AttentionKernel kernel, const AttentionShape& attention,
              const Tensor& positions)
      : w_(writer), c_(config), kernel_(kernel), attention_(attention), positions_(positions) {}

  Tensor layer(const Gpt2LayerModules& m, std::int64_t index, const Tensor& x, const Tensor* mask) {
    w_.call(m.block, {&x, mask, &positions_});
    const Tensor attended = attention(m, index, norm(m.norm1, x), mask);
    w_.hold(attended, Hold::Until::Call, m.block);  // attn_output
    w_.enter(m.block);
    const Tensor middle = w_.add(attended, x);
    const Tensor y = mlp(m, norm(m.norm2, middle));
    w_.enter(m.block);
    return w_.add(middle, y);
  }

  Tensor norm(const LayerNormModule& m, const Tensor& x) { return write_layer_norm(w_, m, x, c_.eps); }

 private:
  Tensor conv(const LinearModule& m, const Tensor& x) {
    w_.enter(m.module);
    const Tensor y = w_.addmm(w_.param(m.bias), w_.view(x, {-1, x.sizes[-1]}), w_.param(m.weight));
    return w_.view(y, {x.sizes[0], x.sizes[1], y.sizes[1]});
  }

  Tensor heads_of(const Tensor& x) {
    return w_.transpose(w_.view(x, {x.sizes[0], x.sizes[1], -1, attention_.head_dim}), 1, 2);
  }

  Tensor attention(const Gpt2LayerModules& m, std::int64_t index, const Tensor& x, const Tensor* mask) {
    const Tensor qkv = conv(m.qkv, x);
    w_.enter(m.attention);
    const std::vector<Tensor> parts = w_.split(qkv, c_.hidden, 2);
    const Tensor k = heads_of(parts[1]);
    const Tensor v = heads_of(parts[2]);
    const Tensor q = heads_of(parts[0]);
    AttentionShape shape = attention_;
    if (c_.scale_by_layer) shape.scale /= static_cast<double>(index + 1);
    const Tensor out = kernel_ == AttentionKernel::Eager ? eager(m, shape, q, k, v, *mask)
                                                         : write_attention(w_, kernel_, shape, q, k, v, mask);
    const Tensor y = conv(m.out, w_.view(out, {x.sizes[0], x.sizes[1], -1}));
    return write_dropout(w_, m.residual_dropout, y, c_.residual_dropout);
  }

  /// GPT-2's own eager form: softmax in the dtype of the scores, a division for the scale.
  Tensor eager(const Gpt2LayerModules& m, const AttentionShape& shape, const Tensor& q, const Tensor& k,
               const Tensor& v, const Tensor& mask) {
    Tensor p = w_.matmul(q, w_.transpose(k, -1, -2));
    if (c_.scale_attention) {
      const Tensor divisor = w_.emit("aten.full.default",
                                     {ProgramWriter::arg(Dims{}), Arg{std::sqrt(static_cast<double>(shape.head_dim))}},
                                     {{"dtype", Arg{p.dtype}}}, {{{}, {}, p.dtype}})[0];
      p = w_.binary("aten.div.Tensor", p, divisor, p.dtype);
    }
    p = w_.softmax("aten._softmax.default", w_.add(p, mask), {Arg{std::int64_t{-1}}, Arg{false}});
    p = write_dropout(w_, m.attention_dropout, p, shape.dropout);
    w_.enter(m.attention);
    return w_.contiguous(w_.transpose(w_.matmul(p, v), 1, 2));
  }

  Tensor mlp(const Gpt2LayerModules& m, const Tensor& x) {
    const Tensor up = conv(m.up, x);
    w_.enter(m.activation);
    const Tensor active = write_activation(w_, c_.activation, up);
    return write_dropout(w_, m.mlp_dropout, conv(m.down, active), c_.residual_dropout);
  }

  ProgramWriter& w_;
  const Gpt2Config& c_;
  AttentionKernel kernel_;
  AttentionShape attention_;
  Tensor positions_;
};

}  // namespace

Result<Model> build_gpt2(const FamilyInput& input) {
  const Gpt2Config c = read_gpt2_config(input);
  const std::int64_t seq = choose_seq(input, c.positions, "n_positions");
  check_products(input, seq, std::max({3 * c.hidden, c.inner, c.vocabulary}), c.heads);
  if (input.config.failed()) return fail(input.config.error());

  const DType created = input.options.dtype.value_or(c.dtype);
  Model model = start_model(input, "gpt2", "GPT2Block", created, seq);
  const std::int64_t head_dim = c.hidden / c.heads;
  const double scale = c.scale_attention ? std::pow(static_cast<double>(head_dim), -0.5) : 1.0;
  const AttentionShape attention{c.heads, c.heads, head_dim, c.attention_dropout, scale};
  if (input.options.attention.starts_with("flex_attention")) {
    return fail(
        {ErrorCode::Inconsistent,
         "ValueError: GPT2LMHeadModel does not support an attention implementation through torch's flex_attention",
         input.config.file(), "model.attention", "an attention that the library has for GPT-2",
         in_quotes(input.options.attention), "use \"sdpa\": PyTorch's own choice"});
  }
  Result<AttentionKernel> kernel = choose_attention(input, attention, model.compute_dtype, needs_mask(input, seq, 0));
  if (!kernel) return fail(std::move(kernel.error()));
  const Gpt2Modules m = add_modules(model, c, created);

  ProgramWriter w(model, model.compute_dtype, kernels_of(input));
  const TokenInputs tokens = write_token_inputs(w, input, seq);
  w.enter(m.model);
  const Tensor ids = w.view(tokens.ids, {-1, seq});
  w.enter(m.tokens);
  const Tensor words = w.embedding(w.param(m.token_weight), ids, -1);
  w.hold(words, Hold::Until::Call, m.model);
  w.enter(m.model);
  const Tensor positions = write_row_positions(w, tokens, seq);
  w.enter(m.positions);
  const Tensor places = w.embedding(w.param(m.position_weight), positions, -1);
  w.hold(places, Hold::Until::Call, m.model);
  w.enter(m.model);
  Tensor x = w.add(words, places);
  const std::optional<Tensor> mask = write_mask(w, input, tokens.mask, positions, 0);
  Gpt2Program program(w, c, *kernel, attention, positions);
  x = write_dropout(w, m.dropout, x, c.embedding_dropout);
  for (std::size_t i = 0; i < m.layers.size(); ++i)
    x = program.layer(m.layers[i], static_cast<std::int64_t>(i), x, mask ? &*mask : nullptr);
  x = program.norm(m.norm, x);
  w.enter(m.model);
  x = w.view(x, {-1, seq, c.hidden});
  finish_with_head(model, w, input, tokens, {m.root, m.head}, x);
  return model;
}

}  // namespace foreshard::families
