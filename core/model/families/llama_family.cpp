// Llama 2 and 3, Mistral, Qwen 2 and 3, Gemma, Mixtral and Qwen 2 with experts: one decoder with small differences.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/model/families/decoder_parts.h"
#include "core/model/families/experts.h"
#include "core/model/families/losses.h"
#include "core/model/json_input.h"

namespace foreshard::families {
namespace {

struct LlamaConfig {
  std::string prefix;  // of class names: "Llama"
  std::int64_t hidden = 0, intermediate = 0, layers = 0, vocabulary = 0, max_positions = 0;
  std::int64_t heads = 0, key_value_heads = 0, head_dim = 0;
  double eps = 1e-6;
  double attention_dropout = 0.0;
  RopeScaling rope;
  std::int64_t padding_index = -1;
  std::int64_t sliding_window = 0;  // 0 = none
  std::vector<bool> windowed;       // by layer: sees only the window
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool head_norms = false;  // Qwen 3: RMSNorm of queries and keys, per head
  bool tied = false;
  bool shifted_norms = false;  // Gemma: weights are distances from one, and rows of the table are scaled
  std::optional<ExpertsConfig> experts;
  std::int64_t expert_step = 1;  // every so many layers have experts
  Activation activation = Activation::Silu;
  DType dtype = DType::Float32;
};

/// The library's own defaults, where the families differ.
struct FamilyDefaults {
  std::string_view type, prefix;
  std::int64_t key_value_heads = 0;  // where the key is absent; null, and 0 here, mean one for every head
  std::int64_t head_dim = 0;         // 0: hidden / heads
  std::int64_t positions = 32768;
  double eps = 1e-6;
  std::int64_t window = 0;
};
constexpr FamilyDefaults kDefaults[] = {
    {"gemma", "Gemma", 16, 256, 8192},
    {"llama", "Llama", 0, 0, 2048},
    {"mistral", "Mistral", 8, 0, 131072, 1e-6, 4096},
    {"mixtral", "Mixtral", 8, 0, 131072, 1e-5},
    {"qwen2", "Qwen2", 32},
    {"qwen2_moe", "Qwen2Moe", 16},
    {"qwen3", "Qwen3", 32, 128},
    {"qwen3_moe", "Qwen3Moe", 4, 0, 32768, 1e-6, 4096},
};

const FamilyDefaults& defaults_of(std::string_view type) {
  return *std::find_if(std::begin(kDefaults), std::end(kDefaults), [&](const auto& row) { return row.type == type; });
}

void read_heads(ConfigReader& config, const FamilyDefaults& family, LlamaConfig& c) {
  c.heads = config.integer("num_attention_heads", 1, 1 << 16);
  const bool every = family.key_value_heads == 0 || config.is_null("num_key_value_heads");
  c.key_value_heads = config.integer_or("num_key_value_heads", every ? c.heads : family.key_value_heads, 1, 1 << 16);
  if (!config.is_null("head_dim")) c.head_dim = family.head_dim;
  if (config.failed()) return;
  if (config.has("head_dim")) {
    c.head_dim = config.integer("head_dim", 1, 1 << 16);
  } else if (c.head_dim == 0) {
    if (c.hidden % c.heads != 0) {
      config.fail_with(ErrorCode::Inconsistent, "num_attention_heads",
                       "hidden_size is not a multiple of num_attention_heads, and there is no head_dim",
                       "a divisor of hidden_size = " + std::to_string(c.hidden), std::to_string(c.heads),
                       "give head_dim or another number of heads");
      return;
    }
    c.head_dim = c.hidden / c.heads;
  }
  if (c.heads % c.key_value_heads != 0) {
    config.fail_with(
        ErrorCode::Inconsistent, "num_key_value_heads", "num_attention_heads is not a multiple of num_key_value_heads",
        "a divisor of num_attention_heads = " + std::to_string(c.heads), std::to_string(c.key_value_heads));
  } else if (c.head_dim % 2 != 0) {
    config.fail_with(ErrorCode::Inconsistent, "head_dim", "rotary embeddings need an even head size", "an even number",
                     std::to_string(c.head_dim));
  } else if (c.heads * c.head_dim > kMaxWidth) {
    config.fail_with(ErrorCode::TooLarge, "head_dim", "heads x head_dim is too large",
                     "at most " + std::to_string(kMaxWidth), std::to_string(c.heads * c.head_dim));
  }
}

void read_experts(ConfigReader& config, std::string_view type, LlamaConfig& c) {
  const bool mixtral = type == "mixtral", shared = type == "qwen2_moe";
  ExpertsConfig e;
  e.prefix = c.prefix;
  e.hidden = c.hidden;
  e.activation = c.activation;
  e.experts_first = type == "qwen3_moe";
  const std::string_view usual = mixtral ? "num_local_experts" : "num_experts";
  const std::string_view other = mixtral ? "num_experts" : "num_local_experts";  // the library's second name for it
  const bool by_other = !shared && !config.has(usual) && config.has(other);
  e.experts = config.integer_or(by_other ? other : usual, mixtral ? 8 : shared ? 60 : 128, 1, 1 << 16);
  e.chosen = config.integer_or("num_experts_per_tok", mixtral ? 2 : shared ? 4 : 8, 1, 1 << 16);
  e.width = mixtral ? c.intermediate : config.integer_or("moe_intermediate_size", shared ? 1408 : 768, 1, kMaxWidth);
  e.shared_width = shared ? config.integer_or("shared_expert_intermediate_size", 5632, 1, kMaxWidth) : 0;
  e.normalized = mixtral || config.boolean_or("norm_topk_prob", false);
  e.narrow_weights = !mixtral;
  if (!mixtral) c.expert_step = config.integer_or("decoder_sparse_step", 1, 1, 1 << 20);
  if (config.failed()) return;
  if (e.chosen > e.experts) {
    config.fail_with(ErrorCode::Inconsistent, "num_experts_per_tok", "a token goes to more experts than there are",
                     "at most " + std::to_string(e.experts), std::to_string(e.chosen));
  } else if (config.entries("mlp_only_layers") > 0) {
    config.fail_with(ErrorCode::Unsupported, "mlp_only_layers", "this variant is not built", "an empty list",
                     std::to_string(config.entries("mlp_only_layers")) + " layers");
  } else if (mixtral && config.number_or("router_jitter_noise", 0.0, 0.0, 1e9) > 0.0) {
    config.fail_with(ErrorCode::Unsupported, "router_jitter_noise", "noise on the routers' input is not built", "0.0",
                     "more than 0");
  } else if (config.boolean_or("output_router_logits", false)) {
    config.fail_with(ErrorCode::Unsupported, "output_router_logits", "the routers' loss is not built", "false", "true");
  }
  c.experts = e;
}

/// Which layers see only a window: all (Mistral), those that layer_types says, or a rule of the family.
void read_windows(ConfigReader& config, const FamilyDefaults& family, LlamaConfig& c) {
  const bool qwen = family.type.starts_with("qwen");
  const std::int64_t window =
      config.integer_or("sliding_window", config.is_null("sliding_window") ? 0 : family.window, 0, kMaxPositions);
  if (!qwen || config.boolean_or("use_sliding_window", false)) c.sliding_window = window;
  const std::int64_t turn = qwen ? config.integer_or("max_window_layers", 28, 0, 1 << 20) : 0;
  const std::vector<std::string> types =
      qwen && family.type != "qwen3_moe" ? config.texts("layer_types") : std::vector<std::string>{};
  if (config.failed()) return;
  if (!types.empty() && static_cast<std::int64_t>(types.size()) != c.layers) {
    config.fail_with(ErrorCode::Inconsistent, "layer_types", "layer_types names another number of layers",
                     "num_hidden_layers = " + std::to_string(c.layers), std::to_string(types.size()));
    return;
  }
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const bool ruled = family.type == "qwen2_moe"   ? i % 2 == 0 && i < turn
                       : family.type == "qwen3_moe" ? true
                                                    : i >= turn;
    const bool named = !types.empty() && types[static_cast<std::size_t>(i)] == "sliding_attention";
    c.windowed.push_back(c.sliding_window > 0 && (types.empty() ? ruled : named));
  }
}

LlamaConfig read_llama_config(const FamilyInput& input, std::string_view type) {
  ConfigReader& config = input.config;
  LlamaConfig c;
  const FamilyDefaults& family = defaults_of(type);
  c.prefix = family.prefix;
  check_architecture(config, c.prefix + "ForCausalLM");
  c.layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  c.hidden = config.integer("hidden_size", 1, kMaxWidth);
  c.intermediate = config.integer("intermediate_size", 1, kMaxWidth);
  c.vocabulary = config.integer("vocab_size", 1, kMaxVocabulary);
  c.max_positions = config.integer_or("max_position_embeddings", family.positions, 1, kMaxPositions);
  if (!config.failed()) read_heads(config, family, c);
  c.eps = config.number_or("rms_norm_eps", family.eps, 0.0, 1.0);
  c.attention_dropout = config.number_or("attention_dropout", 0.0, 0.0, 1.0);
  c.rope = read_rope(config, {.positions = c.max_positions});
  check_rope_factors(config, c.rope, c.head_dim);
  const bool gemma = type == "gemma";
  c.padding_index = config.padding_index(gemma ? 0 : -1, c.vocabulary);
  c.tied = config.boolean_or("tie_word_embeddings", gemma);
  c.shifted_norms = gemma;
  c.activation = read_activation(config, "hidden_act", gemma ? "gelu_pytorch_tanh" : "silu");
  const bool biased = config.boolean_or("attention_bias", false);
  if (type == "llama" || gemma || type.starts_with("qwen3")) c.qkv_bias = c.output_bias = biased;
  if (type == "qwen2") c.qkv_bias = true;
  if (type == "qwen2_moe") c.qkv_bias = config.boolean_or("qkv_bias", true);
  if (type == "llama") c.mlp_bias = config.boolean_or("mlp_bias", false);
  c.head_norms = type.starts_with("qwen3");
  if (type != "llama" && !gemma) read_windows(config, family, c);
  c.dtype = config.parameter_dtype();
  if (type == "mixtral" || type.ends_with("_moe")) read_experts(config, type, c);
  return c;
}

struct LlamaLayerModules {
  ModuleId block, attention;
  LinearModule q, k, v, o;
  GatedMlpModules mlp;
  std::optional<ExpertsModules> experts;  // instead of the mlp
  RmsNormModule input_norm, post_norm;
  std::optional<RmsNormModule> q_norm, k_norm;
};

struct LlamaModules : DecoderModules {
  std::int32_t scale = -1;  // buffer: of the table's rows
  std::vector<LlamaLayerModules> layers;
};

LlamaLayerModules add_layer(ModelTree& tree, const LlamaConfig& c, ModuleId list, std::int64_t index) {
  LlamaLayerModules m;
  const std::int64_t query_width = c.heads * c.head_dim, key_width = c.key_value_heads * c.head_dim;
  const std::string norm_class = c.prefix + "RMSNorm";
  m.block = tree.module(list, std::to_string(index), c.prefix + "DecoderLayer", {"GradientCheckpointingLayer"});
  m.attention = tree.module(m.block, "self_attn", c.prefix + "Attention");
  m.q = tree.linear(m.attention, "q_proj", c.hidden, query_width, c.qkv_bias);
  m.k = tree.linear(m.attention, "k_proj", c.hidden, key_width, c.qkv_bias);
  m.v = tree.linear(m.attention, "v_proj", c.hidden, key_width, c.qkv_bias);
  m.o = tree.linear(m.attention, "o_proj", query_width, c.hidden, c.output_bias);
  if (c.head_norms) {
    m.q_norm = add_rms_norm(tree, m.attention, "q_norm", norm_class, c.head_dim);
    m.k_norm = add_rms_norm(tree, m.attention, "k_norm", norm_class, c.head_dim);
  }
  if (c.experts && (index + 1) % c.expert_step == 0) {
    m.experts = add_experts(tree, *c.experts, m.block);
  } else {
    m.mlp = add_gated_mlp(tree, m.block, c.prefix + "MLP", {c.hidden, c.intermediate, c.mlp_bias, c.activation});
  }
  m.input_norm = add_rms_norm(tree, m.block, "input_layernorm", norm_class, c.hidden);
  m.post_norm = add_rms_norm(tree, m.block, "post_attention_layernorm", norm_class, c.hidden);
  return m;
}

LlamaModules add_modules(Model& model, const LlamaConfig& c, DType dtype, const ProgramOptions& program) {
  ModelTree tree(model, dtype);
  const auto per_layer = static_cast<std::size_t>(c.layers);
  model.modules.reserve(16 * per_layer + 8);
  model.params.reserve(16 * per_layer + 8);
  LlamaModules m;
  const std::vector<std::string> pretrained{c.prefix + "PreTrainedModel", "PreTrainedModel"};
  m.root = tree.module({}, "", c.prefix + "ForCausalLM", pretrained);
  m.model = tree.module(m.root, "model", c.prefix + "Model", pretrained);
  const std::vector<std::string> of_embedding{"Embedding"};
  m.embedding = c.shifted_norms
                    ? tree.module(m.model, "embed_tokens", c.prefix + "TextScaledWordEmbedding", of_embedding)
                    : tree.module(m.model, "embed_tokens", "Embedding");
  m.embedding_weight = tree.param(m.embedding, "weight", {c.vocabulary, c.hidden});
  if (c.shifted_norms)
    m.scale = tree.buffer(m.embedding, "embed_scale", {}, program.buffer_dtype.value_or(dtype), false);
  const ModuleId list = tree.module(m.model, "layers", "ModuleList");
  m.layers.reserve(per_layer);
  for (std::int64_t i = 0; i < c.layers; ++i) m.layers.push_back(add_layer(tree, c, list, i));
  m.norm = add_rms_norm(tree, m.model, "norm", c.prefix + "RMSNorm", c.hidden);
  m.rotary = add_rotary(tree, m.model, c.prefix + "RotaryEmbedding", c.head_dim, c.rope, program);
  m.head = add_language_head(tree, m.root, c.vocabulary, c.hidden, c.tied, m.embedding_weight);
  return m;
}

/// Layers that see everything and layers that see a window differ in this.
struct LayerAttention {
  AttentionKernel kernel = AttentionKernel::Math;
  std::optional<Tensor> mask;
};

class LlamaProgram {
 public:
  LlamaProgram(ProgramWriter& writer, const LlamaConfig& config, const AttentionShape& attention)
      : w_(writer), c_(config), attention_(attention) {}

  void rotary(const LlamaModules& m, const Tensor& positions) {
    rotation_ = write_rotation(w_, m.rotary, positions);
    positions_ = positions;
  }

  Tensor layer(const LlamaLayerModules& m, const Tensor& x, const LayerAttention& how) {
    w_.call(m.block, {&x, how.mask ? &*how.mask : nullptr, &positions_, &rotation_.cos, &rotation_.sin});
    const Tensor attended = attention(m, norm(m.input_norm, x), how);
    w_.enter(m.block);
    const Tensor middle = w_.add(x, attended);
    const Tensor y = mlp(m, norm(m.post_norm, middle));
    w_.enter(m.block);
    return w_.add(middle, y);
  }

  Tensor norm(const RmsNormModule& m, const Tensor& x) {
    return c_.shifted_norms ? write_shifted_rms_norm(w_, m, x, c_.eps) : write_rms_norm(w_, m, x, c_.eps);
  }

 private:
  /// [batch, seq, width] -> [batch, heads, seq, head_dim]
  Tensor heads_of(ModuleId attention, const LinearModule& linear, const Tensor& x,
                  const std::optional<RmsNormModule>& head_norm) {
    const Tensor y = write_linear(w_, linear, x);
    w_.enter(attention);
    Tensor rows = w_.view(y, {x.sizes[0], x.sizes[1], -1, c_.head_dim});
    if (head_norm) {
      rows = norm(*head_norm, rows);
      w_.enter(attention);
    }
    return w_.transpose(rows, 1, 2);
  }

  Tensor attention(const LlamaLayerModules& m, const Tensor& x, const LayerAttention& how) {
    const Tensor q = heads_of(m.attention, m.q, x, m.q_norm);
    const Tensor k = heads_of(m.attention, m.k, x, m.k_norm);
    const Tensor v = heads_of(m.attention, m.v, x, std::nullopt);
    const Rotation rotation = write_head_rotation(w_, rotation_);
    const Tensor turned_q = write_rotated(w_, q, rotation);
    const Tensor turned_k = write_rotated(w_, k, rotation);
    w_.hold_until_here(q);  // named by the function that turns both
    w_.hold_until_here(k);
    w_.hold(turned_q);
    w_.hold(turned_k);
    w_.hold(v);
    const Tensor out =
        write_attention(w_, how.kernel, attention_, turned_q, turned_k, v, how.mask ? &*how.mask : nullptr);
    return write_linear(w_, m.o, w_.view(out, {x.sizes[0], x.sizes[1], -1}));
  }

  Tensor mlp(const LlamaLayerModules& m, const Tensor& x) {
    if (m.experts) return write_experts(w_, *c_.experts, *m.experts, x);
    return write_gated_mlp(w_, m.mlp, c_.activation, x);
  }

  ProgramWriter& w_;
  const LlamaConfig& c_;
  AttentionShape attention_;
  Rotation rotation_;
  Tensor positions_;
};

}  // namespace

Result<Model> build_llama_family(const FamilyInput& input, std::string_view model_type) {
  const LlamaConfig c = read_llama_config(input, model_type);
  const std::int64_t seq = choose_seq(input, c.max_positions, "max_position_embeddings");
  const std::int64_t width = std::max({c.hidden, c.intermediate, c.vocabulary, c.heads * c.head_dim});
  if (c.experts) check_products(input, seq, c.experts->chosen * std::max(2 * c.experts->width, c.hidden), 1);
  check_products(input, seq, width, c.heads);
  if (input.config.failed()) return fail(input.config.error());

  const DType created = input.options.dtype.value_or(c.dtype);
  Model model = start_model(input, model_type, c.prefix + "DecoderLayer", created, seq);
  const AttentionShape attention{c.heads, c.key_value_heads, c.head_dim, c.attention_dropout,
                                 std::pow(static_cast<double>(c.head_dim), -0.5)};
  const bool any_windowed = std::find(c.windowed.begin(), c.windowed.end(), true) != c.windowed.end();
  // Dense Qwen and Qwen2-MoE make the full mask anyhow.
  const bool all_windowed = any_windowed && (model_type == "qwen3_moe" || !model_type.starts_with("qwen"));
  LayerAttention full, windowed;
  for (auto [how, window] : {std::pair(&full, std::int64_t{0}), std::pair(&windowed, c.sliding_window)}) {
    Result<AttentionKernel> kernel =
        choose_attention(input, attention, model.compute_dtype, needs_mask(input, seq, window));
    const bool used = how == &full ? !all_windowed : any_windowed;
    if (!kernel && used) return fail(std::move(kernel.error()));
    if (kernel) how->kernel = *kernel;
  }
  const LlamaModules m = add_modules(model, c, created, input.program);

  ProgramWriter w(model, model.compute_dtype, kernels_of(input));
  model.ops.reserve(static_cast<std::size_t>(c.layers) * 120 + 64);
  model.values.reserve(static_cast<std::size_t>(c.layers) * 125 + 64);
  auto [tokens, x, positions] =
      write_decoder_start(w, input, seq, {m.model, m.embedding, m.embedding_weight, c.padding_index, m.scale});
  if (!all_windowed) full.mask = write_mask(w, input, tokens.mask, positions, 0);
  if (any_windowed || model_type == "qwen2_moe")  // which builds both masks whatever its layers look at
    windowed.mask =
        write_mask(w, input, tokens.mask, positions, c.sliding_window > 0 ? c.sliding_window : kEmptyWindow);
  LlamaProgram program(w, c, attention);
  program.rotary(m, positions);
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    x = program.layer(m.layers[i], x, any_windowed && c.windowed[i] ? windowed : full);
  }
  x = program.norm(m.norm, x);
  finish_with_head(model, w, input, tokens, {m.root, m.head}, x);
  model.parallel = decoder_plan({{"q_proj", "colwise"},
                                 {"k_proj", "colwise"},
                                 {"v_proj", "colwise"},
                                 {"q_norm", "sequence"},
                                 {"k_norm", "sequence"}},
                                c.experts && c.experts->shared_width > 0 ? "shared_expert" : "");
  if (c.experts) model.parallel.push_back({"model.layers.*.mlp.experts", "experts"});
  return model;
}

}  // namespace foreshard::families
