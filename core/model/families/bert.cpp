// BERT: an encoder with learned positions and token types, for masked language modelling.
#include <algorithm>
#include <cmath>

#include "core/model/families/family.h"
#include "core/model/families/losses.h"

namespace foreshard::families {
namespace {

struct BertConfig {
  std::int64_t hidden = 0, intermediate = 0, layers = 0, heads = 0, vocabulary = 0, positions = 0, types = 0;
  std::int64_t padding_index = 0;
  double eps = 1e-12;
  double hidden_dropout = 0.1, attention_dropout = 0.1;
  bool tied = true;
  bool body = false;  // BertModel: no head, a pooler
  Activation activation = Activation::Gelu;
  DType dtype = DType::Float32;
};

BertConfig read_bert_config(const FamilyInput& input) {
  ConfigReader& config = input.config;
  BertConfig c;
  c.body = is_body(config, "BertForMaskedLM", "BertModel");
  c.layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  c.hidden = config.integer("hidden_size", 1, kMaxWidth);
  c.intermediate = config.integer("intermediate_size", 1, kMaxWidth);
  c.heads = config.integer("num_attention_heads", 1, 1 << 16);
  c.vocabulary = config.integer("vocab_size", 1, kMaxVocabulary);
  c.positions = config.integer_or("max_position_embeddings", 512, 1, kMaxPositions);
  c.types = config.integer_or("type_vocab_size", 2, 1, 1 << 20);
  c.padding_index = config.padding_index(0, c.vocabulary);
  c.eps = config.number_or("layer_norm_eps", 1e-12, 0.0, 1.0);
  c.hidden_dropout = config.number_or("hidden_dropout_prob", 0.1, 0.0, 1.0);
  c.attention_dropout = config.number_or("attention_probs_dropout_prob", 0.1, 0.0, 1.0);
  c.tied = config.boolean_or("tie_word_embeddings", true);
  c.activation = read_activation(config, "hidden_act", "gelu");
  c.dtype = config.parameter_dtype();
  for (const std::string_view key : {"is_decoder", "add_cross_attention"}) {
    if (config.boolean_or(key, false))
      config.fail_with(ErrorCode::Unsupported, key, "BERT as a decoder is not built", "false", "true");
  }
  if (config.integer_or("chunk_size_feed_forward", 0, 0, kMaxPositions) > 0)
    config.fail_with(ErrorCode::Unsupported, "chunk_size_feed_forward", "feed-forward layers in pieces are not built",
                     "0", "more than 0");
  if (!config.failed() && c.hidden % c.heads != 0) {
    config.fail_with(ErrorCode::Inconsistent, "num_attention_heads",
                     "hidden_size is not a multiple of num_attention_heads",
                     "a divisor of hidden_size = " + std::to_string(c.hidden), std::to_string(c.heads));
  }
  return c;
}

/// Linear, dropout, and LayerNorm of the sum with what came in.
struct OutputModules {
  ModuleId module, dropout;
  LinearModule dense;
  LayerNormModule norm;
};

struct BertLayerModules {
  ModuleId self, activation;
  LinearModule query, key, value, intermediate;
  OutputModules attention_output, output;
};

struct BertModules {
  ModuleId root, embeddings, words, positions, types, dropout, transform_activation, decoder;
  ParamId word_weight, position_weight, type_weight, head_bias, decoder_weight, decoder_bias;
  LayerNormModule norm, transform_norm;
  LinearModule transform;
  PoolerModules pooler;  // of a body, which has nothing of the head
  std::int32_t position_ids = -1, type_ids = -1;
  std::vector<BertLayerModules> layers;
};

OutputModules add_output(ModelTree& tree, ModuleId parent, std::string_view class_name, std::int64_t in,
                         std::int64_t out) {
  OutputModules m;
  m.module = tree.module(parent, "output", class_name);
  m.dense = tree.linear(m.module, "dense", in, out, true);
  m.norm = tree.layer_norm(m.module, "LayerNorm", out);
  m.dropout = tree.dropout(m.module, "dropout");
  return m;
}

BertLayerModules add_layer(ModelTree& tree, const BertConfig& c, ModuleId list, std::int64_t index) {
  BertLayerModules m;
  const ModuleId block = tree.module(list, std::to_string(index), "BertLayer", {"GradientCheckpointingLayer"});
  const ModuleId attention = tree.module(block, "attention", "BertAttention");
  m.self = tree.module(attention, "self", "BertSelfAttention");
  m.query = tree.linear(m.self, "query", c.hidden, c.hidden, true);
  m.key = tree.linear(m.self, "key", c.hidden, c.hidden, true);
  m.value = tree.linear(m.self, "value", c.hidden, c.hidden, true);
  tree.dropout(m.self, "dropout");
  m.attention_output = add_output(tree, attention, "BertSelfOutput", c.hidden, c.hidden);
  const ModuleId intermediate = tree.module(block, "intermediate", "BertIntermediate");
  m.intermediate = tree.linear(intermediate, "dense", c.hidden, c.intermediate, true);
  m.activation = tree.module(intermediate, "intermediate_act_fn", activation_class(c.activation));
  m.output = add_output(tree, block, "BertOutput", c.intermediate, c.hidden);
  return m;
}

BertModules add_modules(Model& model, const BertConfig& c, DType dtype) {
  ModelTree tree(model, dtype);
  BertModules m;
  const std::vector<std::string> pretrained{"BertPreTrainedModel", "PreTrainedModel"};
  m.root = tree.module({}, "", c.body ? "BertModel" : "BertForMaskedLM", pretrained);
  const ModuleId bert = c.body ? m.root : tree.module(m.root, "bert", "BertModel", pretrained);
  m.embeddings = tree.module(bert, "embeddings", "BertEmbeddings");
  m.words = tree.module(m.embeddings, "word_embeddings", "Embedding");
  m.word_weight = tree.param(m.words, "weight", {c.vocabulary, c.hidden});
  m.positions = tree.module(m.embeddings, "position_embeddings", "Embedding");
  m.position_weight = tree.param(m.positions, "weight", {c.positions, c.hidden});
  m.types = tree.module(m.embeddings, "token_type_embeddings", "Embedding");
  m.type_weight = tree.param(m.types, "weight", {c.types, c.hidden});
  m.norm = tree.layer_norm(m.embeddings, "LayerNorm", c.hidden);
  m.dropout = tree.dropout(m.embeddings, "dropout");
  m.position_ids = tree.buffer(m.embeddings, "position_ids", {1, c.positions}, DType::Int64, false);
  m.type_ids = tree.buffer(m.embeddings, "token_type_ids", {1, c.positions}, DType::Int64, false);
  const ModuleId list = tree.module(tree.module(bert, "encoder", "BertEncoder"), "layer", "ModuleList");
  for (std::int64_t i = 0; i < c.layers; ++i) m.layers.push_back(add_layer(tree, c, list, i));
  if (c.body) {
    m.pooler = add_pooler(tree, bert, "BertPooler", c.hidden, c.hidden, Activation::Tanh);
    return m;
  }

  const ModuleId cls = tree.module(m.root, "cls", "BertOnlyMLMHead");
  const ModuleId predictions = tree.module(cls, "predictions", "BertLMPredictionHead");
  m.head_bias = tree.param(predictions, "bias", {c.vocabulary});
  const ModuleId transform = tree.module(predictions, "transform", "BertPredictionHeadTransform");
  m.transform = tree.linear(transform, "dense", c.hidden, c.hidden, true);
  m.transform_activation = tree.module(transform, "transform_act_fn", activation_class(c.activation));
  m.transform_norm = tree.layer_norm(transform, "LayerNorm", c.hidden);
  m.decoder = tree.module(predictions, "decoder", "Linear");
  m.decoder_weight = c.tied ? tree.shared(m.decoder, "weight", m.word_weight)
                            : tree.param(m.decoder, "weight", {c.vocabulary, c.hidden});
  m.decoder_bias = c.tied ? tree.shared(m.decoder, "bias", m.head_bias) : tree.param(m.decoder, "bias", {c.vocabulary});
  return m;
}

class BertProgram {
 public:
  BertProgram(ProgramWriter& writer, const BertConfig& config, AttentionKernel kernel, const AttentionShape& attention)
      : w_(writer), c_(config), kernel_(kernel), attention_(attention) {}

  Tensor embeddings(const BertModules& m, const Tensor& ids) {
    const std::int64_t batch = ids.sizes[0], seq = ids.sizes[1];
    w_.enter(m.embeddings);
    const Tensor places = w_.index_range(w_.buffer(m.position_ids), 1, 0, seq);
    const Tensor all_types = w_.expand(w_.buffer(m.type_ids), {1, -1});
    const Arg one{std::int64_t{1}};
    const Tensor row = w_.emit("aten.gather.default", {ProgramWriter::arg(all_types), one, ProgramWriter::arg(places)},
                               {}, {{places.sizes, ProgramWriter::contiguous_strides(places.sizes), DType::Int64}})[0];
    const Tensor types = w_.expand(row, {batch, seq});
    w_.enter(m.words);
    const Tensor words = w_.embedding(w_.param(m.word_weight), ids, c_.padding_index);
    w_.hold(words, Hold::Until::Call, m.embeddings);
    w_.enter(m.types);
    const Tensor type_rows = w_.embedding(w_.param(m.type_weight), types, -1);
    w_.hold(type_rows, Hold::Until::Call, m.embeddings);
    w_.enter(m.embeddings);
    const Tensor typed = w_.add(words, type_rows);
    w_.enter(m.positions);
    const Tensor position_rows = w_.embedding(w_.param(m.position_weight), places, -1);
    w_.hold(position_rows, Hold::Until::Call, m.embeddings);
    w_.enter(m.embeddings);
    const Tensor x = w_.add(typed, position_rows);
    return write_dropout(w_, m.dropout, write_layer_norm(w_, m.norm, x, c_.eps), c_.hidden_dropout);
  }

  Tensor layer(const BertLayerModules& m, const Tensor& x) {
    const Tensor q = heads_of(m, m.query, x), k = heads_of(m, m.key, x), v = heads_of(m, m.value, x);
    const Tensor out = write_attention(w_, kernel_, attention_, q, k, v, nullptr);
    const Tensor attended = output(m.attention_output, w_.view(out, {x.sizes[0], x.sizes[1], -1}), x);
    const Tensor wide = write_linear(w_, m.intermediate, attended);
    w_.enter(m.activation);
    return output(m.output, write_activation(w_, c_.activation, wide), attended);
  }

  Tensor head(const BertModules& m, const Tensor& x) {
    const Tensor y = write_linear(w_, m.transform, x);
    w_.enter(m.transform_activation);
    const Tensor active = write_activation(w_, c_.activation, y);
    const Tensor normed = write_layer_norm(w_, m.transform_norm, active, c_.eps);
    return write_linear(w_, {m.decoder, m.decoder_weight, c_.tied ? m.head_bias : m.decoder_bias}, normed);
  }

 private:
  Tensor heads_of(const BertLayerModules& m, const LinearModule& linear, const Tensor& x) {
    const Tensor y = write_linear(w_, linear, x);
    w_.enter(m.self);
    return write_heads(w_, y, attention_.head_dim);
  }

  Tensor output(const OutputModules& m, const Tensor& x, const Tensor& before) {
    const Tensor y = write_dropout(w_, m.dropout, write_linear(w_, m.dense, x), c_.hidden_dropout);
    w_.hold(y, Hold::Until::Call, m.module);  // hidden_states, until LayerNorm(hidden_states + input_tensor) is done
    w_.enter(m.module);
    return write_layer_norm(w_, m.norm, w_.add(y, before), c_.eps);
  }

  ProgramWriter& w_;
  const BertConfig& c_;
  AttentionKernel kernel_;
  AttentionShape attention_;
};

}  // namespace

Result<Model> build_bert(const FamilyInput& input) {
  const BertConfig c = read_bert_config(input);
  const std::int64_t seq = choose_seq(input, c.positions, "max_position_embeddings");
  check_products(input, seq, std::max({c.hidden, c.intermediate, c.vocabulary}), c.heads);
  if (input.config.failed()) return fail(input.config.error());

  const DType created = input.options.dtype.value_or(c.dtype);
  Model model = start_model(input, "bert", "BertLayer", created, seq);
  const std::int64_t head_dim = c.hidden / c.heads;
  const AttentionShape attention{.heads = c.heads,
                                 .key_value_heads = c.heads,
                                 .head_dim = head_dim,
                                 .dropout = c.attention_dropout,
                                 .scale = std::pow(static_cast<double>(head_dim), -0.5),
                                 .causal = false,
                                 .wide_softmax = false};
  Result<AttentionKernel> kernel = choose_attention(input, attention, model.compute_dtype, false);
  if (!kernel) return fail(std::move(kernel.error()));
  const BertModules m = add_modules(model, c, created);

  ProgramWriter w(model, model.compute_dtype, kernels_of(input));
  TokenInputs tokens;
  if (c.body) {
    tokens.ids = w.input("input_ids", {input.options.batch, seq}, DType::Int64);
  } else {
    tokens = write_token_inputs(w, input, seq);
  }
  tokens.shifted = false;
  BertProgram program(w, c, *kernel, attention);
  Tensor x = program.embeddings(m, tokens.ids);
  for (const BertLayerModules& layer : m.layers) x = program.layer(layer, x);
  if (c.body) {
    const Tensor pooled = write_pooler(w, m.pooler, Activation::Tanh, x);
    if (Result<void> done = finish_body(model, w, input, {x, pooled}); !done) return fail(std::move(done.error()));
    return model;
  }
  finish_with_loss(model, w, input, tokens, program.head(m, x));
  return model;
}

}  // namespace foreshard::families
