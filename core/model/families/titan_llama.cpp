// Llama in torchtitan's style: fused RMSNorm, rotary embedding by complex numbers, key and value heads repeated before
// attention, a module dictionary of blocks.
#include <cmath>

#include "core/model/families/decoder_parts.h"
#include "core/model/families/family.h"
#include "core/model/families/losses.h"
#include "core/model/families/titan_experts.h"
#include "core/model/json_input.h"

namespace foreshard::families {
namespace {

struct TitanConfig {
  std::int64_t dim = 0, layers = 0, heads = 0, key_value_heads = 0, head_dim = 0, ffn = 0, vocabulary = 0;
  std::int64_t positions = 0;
  bool fused_norm = true;
  TitanExpertsConfig experts;
};

constexpr double kEps = 1e-5;

TitanConfig read_titan_config(const FamilyInput& input) {
  ConfigReader& config = input.config;
  TitanConfig c;
  c.dim = config.integer("dim", 1, kMaxWidth);
  c.layers = config.integer("n_layers", 1, kMaxLayers);
  c.heads = config.integer("n_heads", 1, 1 << 16);
  c.key_value_heads = config.integer_or("n_kv_heads", c.heads, 1, 1 << 16);
  c.ffn = config.integer("ffn", 1, kMaxWidth);
  c.vocabulary = config.integer("vocab_size", 1, kMaxVocabulary);
  c.positions = config.integer_or("max_seq", 8192, 1, kMaxPositions);
  c.fused_norm = config.boolean_or("fused_norm", true);
  c.experts = read_titan_experts(config);
  if (config.failed()) return c;
  c.head_dim = config.integer_or("head_dim", c.dim / c.heads, 1, 1 << 16);
  if (c.heads % c.key_value_heads != 0) {
    config.fail_with(ErrorCode::Inconsistent, "n_kv_heads", "n_heads is not a multiple of n_kv_heads",
                     "a divisor of n_heads = " + std::to_string(c.heads), std::to_string(c.key_value_heads));
  } else if (c.head_dim % 2 != 0) {
    config.fail_with(ErrorCode::Inconsistent, "head_dim", "rotary embeddings need an even head size", "an even number",
                     std::to_string(c.head_dim));
  }
  return c;
}

struct TitanBlockModules {
  ModuleId block, attention, feed_forward;
  RmsNormModule attention_norm, ffn_norm;
  LinearModule wq, wk, wv, wo, w1, w2, w3;
  TitanExpertsModules experts;  // where the block has them instead of feed_forward
};

struct TitanModules {
  ModuleId root, embedding;
  ParamId embedding_weight;
  std::int32_t rotary = -1;
  std::vector<TitanBlockModules> blocks;
  RmsNormModule norm;
  LinearModule head;
};

RmsNormModule add_titan_norm(ModelTree& tree, ModuleId parent, std::string_view name, std::int64_t width) {
  return add_rms_norm(tree, parent, name, "RMSNorm", width);
}

TitanBlockModules add_block(ModelTree& tree, const TitanConfig& c, ModuleId list, std::int64_t index) {
  TitanBlockModules m;
  m.block = tree.module(list, std::to_string(index), "TransformerBlock");
  m.attention_norm = add_titan_norm(tree, m.block, "attention_norm", c.dim);
  m.ffn_norm = add_titan_norm(tree, m.block, "ffn_norm", c.dim);
  m.attention = tree.module(m.block, "attention", "Attention");
  m.wq = tree.linear(m.attention, "wq", c.dim, c.heads * c.head_dim, false);
  m.wk = tree.linear(m.attention, "wk", c.dim, c.key_value_heads * c.head_dim, false);
  m.wv = tree.linear(m.attention, "wv", c.dim, c.key_value_heads * c.head_dim, false);
  m.wo = tree.linear(m.attention, "wo", c.heads * c.head_dim, c.dim, false);
  if (c.experts.experts > 0 && index % c.experts.every == 0) {
    m.experts = add_titan_experts(tree, c.experts, m.block, c.dim);
    return m;
  }
  m.feed_forward = tree.module(m.block, "feed_forward", "FeedForward");
  m.w1 = tree.linear(m.feed_forward, "w1", c.dim, c.ffn, false);
  m.w2 = tree.linear(m.feed_forward, "w2", c.ffn, c.dim, false);
  m.w3 = tree.linear(m.feed_forward, "w3", c.dim, c.ffn, false);
  return m;
}

TitanModules add_modules(Model& model, const TitanConfig& c, DType dtype) {
  ModelTree tree(model, dtype);
  TitanModules m;
  m.root = tree.module({}, "", "TitanLlama");
  m.embedding = tree.module(m.root, "tok_embeddings", "Embedding");
  m.embedding_weight = tree.param(m.embedding, "weight", {c.vocabulary, c.dim});
  m.rotary = tree.buffer(m.root, "freqs_cis", {c.positions, c.head_dim / 2}, DType::Complex64, false);
  const ModuleId list = tree.module(m.root, "layers", "ModuleDict");
  for (std::int64_t i = 0; i < c.layers; ++i) m.blocks.push_back(add_block(tree, c, list, i));
  m.norm = add_titan_norm(tree, m.root, "norm", c.dim);
  m.head = tree.linear(m.root, "output", c.dim, c.vocabulary, false);
  return m;
}

class TitanProgram {
 public:
  TitanProgram(ProgramWriter& writer, const TitanConfig& config, const AttentionShape& shape, AttentionKernel kernel,
               std::int32_t rotary, bool fused_norm)
      : w_(writer), c_(config), shape_(shape), kernel_(kernel), rotary_(rotary), fused_norm_(fused_norm) {}

  /// One fused kernel on a GPU; elsewhere it stays whole. Before PyTorch had it, it was written out in Python.
  Tensor norm(const RmsNormModule& m, const Tensor& x) {
    if (!c_.fused_norm) return write_rms_norm(w_, m, x, kEps);
    w_.enter(m.module);
    Dims statistics = x.sizes;
    statistics[-1] = 1;
    std::vector<ProgramWriter::Described> results{{x.sizes, ProgramWriter::contiguous_strides(x.sizes), x.dtype}};
    if (fused_norm_) results.push_back({statistics, ProgramWriter::contiguous_strides(statistics), DType::Float32});
    return w_.emit(fused_norm_ ? "aten._fused_rms_norm.default" : "aten.rms_norm.default",
                   {ProgramWriter::arg(x), ProgramWriter::arg(Dims{x.sizes[-1]}),
                    ProgramWriter::arg(w_.param(m.weight)), Arg{kEps}},
                   {}, results)[0];
  }

  Tensor block(const TitanBlockModules& m, const Tensor& x) {
    w_.call(m.block, {&x});
    const Tensor attended = attention(m, norm(m.attention_norm, x));
    w_.enter(m.block);
    const Tensor h = w_.add(x, attended);
    w_.hold(h);
    const Tensor n = norm(m.ffn_norm, h);
    w_.hold(n, Hold::Until::Call, m.block);
    if (m.experts.moe.valid()) {
      const Tensor y = write_titan_experts(w_, c_.experts, m.experts, n);
      w_.enter(m.block);
      return w_.add(h, y);
    }
    const Tensor active = gate(m, n);
    const Tensor wide = write_linear(w_, m.w3, n);
    w_.enter(m.feed_forward);
    const Tensor y = write_linear(w_, m.w2, w_.mul(active, wide));
    w_.enter(m.block);
    return w_.add(h, y);
  }

 private:
  Tensor gate(const TitanBlockModules& m, const Tensor& n) {
    const Tensor y = write_linear(w_, m.w1, n);
    w_.enter(m.feed_forward);
    return w_.unary("aten.silu.default", y);
  }

  Tensor heads_of(const LinearModule& linear, const Tensor& x) { return write_linear(w_, linear, x); }
  Tensor split(ModuleId attention, const Tensor& y) {
    w_.enter(attention);
    return w_.view(y, {y.sizes[0], y.sizes[1], -1, c_.head_dim});
  }

  /// Pairs of a head's elements as complex numbers, in float32.
  Tensor rotated(const Tensor& x, const Tensor& angles) {
    const Tensor wide = w_.to(x, DType::Float32);
    const Dims pairs{x.sizes[0], x.sizes[1], x.sizes[2], x.sizes[3] / 2, 2};
    const Tensor rows = w_.view(wide, {x.sizes[0], x.sizes[1], -1, x.sizes[3] / 2, 2});
    const Dims numbers{pairs[0], pairs[1], pairs[2], pairs[3]};
    const Tensor z = w_.emit("aten.view_as_complex.default", {ProgramWriter::arg(rows)}, {},
                             {{numbers, ProgramWriter::contiguous_strides(numbers), DType::Complex64}})[0];
    const Tensor turned = w_.binary("aten.mul.Tensor", z, angles, DType::Complex64);
    const Tensor real = w_.emit("aten.view_as_real.default", {ProgramWriter::arg(turned)}, {},
                                {{pairs, ProgramWriter::contiguous_strides(pairs), DType::Float32}})[0];
    const Tensor flat = w_.view(real, {x.sizes[0], x.sizes[1], -1, x.sizes[3]});
    const Tensor out = w_.to(flat, x.dtype);
    w_.hold_until_here(wide);
    w_.hold_until_here(z);
    return out;
  }

  Tensor repeated(const Tensor& x) {
    const std::int64_t times = c_.heads / c_.key_value_heads;
    if (times == 1) return x;
    const Dims wide{x.sizes[0], x.sizes[1], x.sizes[2], times, x.sizes[3]};
    const Tensor all = w_.expand(w_.unsqueeze(x, 3), wide);
    return w_.unsafe_view(w_.clone(all), {x.sizes[0], x.sizes[1], c_.heads, x.sizes[3]});
  }

  Tensor attention(const TitanBlockModules& m, const Tensor& x) {
    const Tensor q0 = heads_of(m.wq, x), k0 = heads_of(m.wk, x), v0 = heads_of(m.wv, x);
    const Tensor q1 = split(m.attention, q0), k1 = split(m.attention, k0), v1 = split(m.attention, v0);
    const std::int64_t seq = x.sizes[1];
    const Tensor table = w_.buffer(rotary_);
    const Tensor rows = w_.slice(table, 0, 0, seq);
    const Tensor angles = w_.view(rows, {1, seq, 1, c_.head_dim / 2});
    const Tensor q = rotated(q1, angles);
    Tensor k = rotated(k1, angles);
    w_.hold_until_here(q1);  // one assignment names both
    w_.hold_until_here(k1);
    k = repeated(k);
    const Tensor v = repeated(v1);
    w_.hold(q);
    w_.hold(k);
    w_.hold(v);
    const Tensor out = write_attention_kernel(w_, kernel_, shape_, w_.transpose(q, 1, 2), w_.transpose(k, 1, 2),
                                              w_.transpose(v, 1, 2), nullptr);
    const Tensor o = w_.contiguous(w_.transpose(out, 1, 2));
    return write_linear(w_, m.wo, w_.view(o, {x.sizes[0], seq, c_.heads * c_.head_dim}));
  }

  ProgramWriter& w_;
  const TitanConfig& c_;
  AttentionShape shape_;
  AttentionKernel kernel_;
  std::int32_t rotary_;
  bool fused_norm_;
};

std::vector<ParallelStyle> parallel_plan() {
  return {{"tok_embeddings", "rowwise"},
          {"layers.*.attention_norm", "sequence"},
          {"layers.*.attention", "gather"},
          {"layers.*.attention.wq", "colwise"},
          {"layers.*.attention.wk", "colwise"},
          {"layers.*.attention.wv", "colwise"},
          {"layers.*.attention.wo", "rowwise"},
          {"layers.*.ffn_norm", "sequence"},
          {"layers.*.feed_forward", "gather"},
          {"layers.*.feed_forward.w1", "colwise"},
          {"layers.*.feed_forward.w3", "colwise"},
          {"layers.*.feed_forward.w2", "rowwise"},
          {"norm", "sequence"},
          {"output", "head"}};
}

}  // namespace

Result<Model> build_titan_llama(const FamilyInput& input) {
  const TitanConfig c = read_titan_config(input);
  const std::int64_t seq = choose_seq(input, c.positions, "max_seq");
  check_products(input, seq, std::max({c.dim, c.ffn, c.vocabulary, c.heads * c.head_dim}), c.heads);
  check_titan_experts(input.config, c.experts, input.options.batch * seq);
  if (input.config.failed()) return fail(input.config.error());
  const DType created = input.options.dtype.value_or(DType::Float32);
  Model model = start_model(input, "titan_llama", "TransformerBlock", created, seq);
  const AttentionShape shape{c.heads, c.heads, c.head_dim, 0.0, std::pow(static_cast<double>(c.head_dim), -0.5)};
  const bool own_mask = input.options.attention == kUnfusedFlex;  // torchtitan's mask_mod, not the library's
  auto kernel = choose_attention(input, shape, model.compute_dtype, own_mask);
  if (!kernel) return fail(std::move(kernel.error()));
  const TitanModules m = add_modules(model, c, created);
  ProgramWriter w(model, model.compute_dtype, kernels_of(input));
  const TokenInputs tokens = write_token_inputs(w, input, seq);
  w.enter(m.embedding);
  Tensor x = w.embedding(w.param(m.embedding_weight), tokens.ids, -1);
  const bool cuda = input.program.device == ProgramDevice::Cuda;
  TitanProgram program(w, c, shape, *kernel, m.rotary, cuda);
  for (const TitanBlockModules& block : m.blocks) x = program.block(block, x);
  x = program.norm(m.norm, x);
  finish_with_head(model, w, input, tokens, {m.root, m.head, false}, x);
  model.parallel = parallel_plan();
  if (c.experts.experts > 0) model.parallel.push_back({"layers.*.moe.experts", "experts"});
  return model;
}

}  // namespace foreshard::families
