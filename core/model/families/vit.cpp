// ViT: an encoder over image patches, for classification.
#include <algorithm>
#include <cmath>

#include "core/model/families/family.h"
#include "core/model/families/losses.h"

namespace foreshard::families {
namespace {

struct VitConfig {
  std::int64_t hidden = 0, intermediate = 0, layers = 0, heads = 0, labels = 2;
  std::int64_t image = 224, patch = 16, channels = 3;
  double eps = 1e-12;
  double hidden_dropout = 0.0, attention_dropout = 0.0;
  bool qkv_bias = true;
  bool body = false;  // ViTModel: no classifier, a pooler
  std::int64_t pooled = 0;
  Activation pooler_activation = Activation::Tanh;
  Activation activation = Activation::Gelu;
  DType dtype = DType::Float32;

  std::int64_t side() const { return image / patch; }
  std::int64_t patches() const { return side() * side(); }
};

VitConfig read_vit_config(const FamilyInput& input) {
  ConfigReader& config = input.config;
  VitConfig c;
  c.body = is_body(config, "ViTForImageClassification", "ViTModel");
  c.layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  c.hidden = config.integer("hidden_size", 1, kMaxWidth);
  c.intermediate = config.integer("intermediate_size", 1, kMaxWidth);
  c.heads = config.integer("num_attention_heads", 1, 1 << 16);
  c.image = config.integer_or("image_size", 224, 1, 1 << 16);
  c.patch = config.integer_or("patch_size", 16, 1, 1 << 16);
  c.channels = config.integer_or("num_channels", 3, 1, 1 << 16);
  c.labels = config.integer_or("num_labels", config.has("id2label") ? config.entries("id2label") : 2, 1, 1 << 22);
  c.eps = config.number_or("layer_norm_eps", 1e-12, 0.0, 1.0);
  c.hidden_dropout = config.number_or("hidden_dropout_prob", 0.0, 0.0, 1.0);
  c.attention_dropout = config.number_or("attention_probs_dropout_prob", 0.0, 0.0, 1.0);
  c.qkv_bias = config.boolean_or("qkv_bias", true);
  c.activation = read_activation(config, "hidden_act", "gelu");
  c.pooled = config.integer_or("pooler_output_size", std::max<std::int64_t>(c.hidden, 1), 1, kMaxWidth);
  c.pooler_activation = read_activation(config, "pooler_act", "tanh");
  c.dtype = config.parameter_dtype();
  if (config.failed()) return c;
  if (c.hidden % c.heads != 0) {
    config.fail_with(ErrorCode::Inconsistent, "num_attention_heads",
                     "hidden_size is not a multiple of num_attention_heads",
                     "a divisor of hidden_size = " + std::to_string(c.hidden), std::to_string(c.heads));
  } else if (c.patch > c.image) {
    config.fail_with(ErrorCode::Inconsistent, "patch_size", "a patch is larger than the image",
                     "at most image_size = " + std::to_string(c.image), std::to_string(c.patch));
  } else if (!c.body && c.labels == 1 && input.options.loss == "auto") {
    config.fail_with(ErrorCode::Unsupported, "num_labels", "the loss of a regression is not built", "2 or more", "1",
                     "set model.loss to none");
  }
  return c;
}

struct VitLayerModules {
  ModuleId block, attention, activation, dropout;
  LinearModule q, k, v, o, up, down;
  LayerNormModule before, after;
};

struct VitModules {
  ModuleId root, embeddings, patch_embeddings, projection, dropout;
  ParamId cls_token, position_embeddings, projection_weight, projection_bias;
  LayerNormModule norm;
  LinearModule classifier;  // or
  PoolerModules pooler;
  std::vector<VitLayerModules> layers;
};

VitLayerModules add_layer(ModelTree& tree, const VitConfig& c, ModuleId list, std::int64_t index) {
  VitLayerModules m;
  m.block = tree.module(list, std::to_string(index), "ViTLayer", {"GradientCheckpointingLayer"});
  m.attention = tree.module(m.block, "attention", "ViTAttention");
  m.q = tree.linear(m.attention, "q_proj", c.hidden, c.hidden, c.qkv_bias);
  m.k = tree.linear(m.attention, "k_proj", c.hidden, c.hidden, c.qkv_bias);
  m.v = tree.linear(m.attention, "v_proj", c.hidden, c.hidden, c.qkv_bias);
  m.o = tree.linear(m.attention, "o_proj", c.hidden, c.hidden, true);
  m.before = tree.layer_norm(m.block, "layernorm_before", c.hidden);
  m.after = tree.layer_norm(m.block, "layernorm_after", c.hidden);
  const ModuleId mlp = tree.module(m.block, "mlp", "ViTMLP");
  m.activation = tree.module(mlp, "activation_fn", activation_class(c.activation));
  m.up = tree.linear(mlp, "fc1", c.hidden, c.intermediate, true);
  m.down = tree.linear(mlp, "fc2", c.intermediate, c.hidden, true);
  m.dropout = tree.dropout(m.block, "dropout");
  return m;
}

VitModules add_modules(Model& model, const VitConfig& c, DType dtype) {
  ModelTree tree(model, dtype);
  VitModules m;
  const std::vector<std::string> pretrained{"ViTPreTrainedModel", "PreTrainedModel"};
  m.root = tree.module({}, "", c.body ? "ViTModel" : "ViTForImageClassification", pretrained);
  const ModuleId vit = c.body ? m.root : tree.module(m.root, "vit", "ViTModel", pretrained);
  m.embeddings = tree.module(vit, "embeddings", "ViTEmbeddings");
  m.cls_token = tree.param(m.embeddings, "cls_token", {1, 1, c.hidden});
  m.position_embeddings = tree.param(m.embeddings, "position_embeddings", {1, c.patches() + 1, c.hidden});
  m.patch_embeddings = tree.module(m.embeddings, "patch_embeddings", "ViTPatchEmbeddings");
  m.projection = tree.module(m.patch_embeddings, "projection", "Conv2d", {"_ConvNd"});
  m.projection_weight = tree.param(m.projection, "weight", {c.hidden, c.channels, c.patch, c.patch});
  m.projection_bias = tree.param(m.projection, "bias", {c.hidden});
  m.dropout = tree.dropout(m.embeddings, "dropout");
  const ModuleId list = tree.module(vit, "layers", "ModuleList");
  for (std::int64_t i = 0; i < c.layers; ++i) m.layers.push_back(add_layer(tree, c, list, i));
  m.norm = tree.layer_norm(vit, "layernorm", c.hidden);
  if (c.body) {
    m.pooler = add_pooler(tree, vit, "ViTPooler", c.hidden, c.pooled, c.pooler_activation);
  } else {
    m.classifier = tree.linear(m.root, "classifier", c.hidden, c.labels, true);
  }
  return m;
}

class VitProgram {
 public:
  VitProgram(ProgramWriter& writer, const VitConfig& config, AttentionKernel kernel, const AttentionShape& attention)
      : w_(writer), c_(config), kernel_(kernel), attention_(attention) {}

  /// One vector per patch by a convolution whose steps are as wide as its filters, the class token before them.
  Tensor embeddings(const VitModules& m, const Tensor& pixels) {
    const std::int64_t batch = pixels.sizes[0];
    const Dims sizes{batch, c_.hidden, c_.side(), c_.side()};
    const auto arg = [](const auto& x) { return ProgramWriter::arg(x); };
    w_.enter(m.projection);
    const Tensor bias = w_.narrowed(w_.param(m.projection_bias));
    const Tensor weight = w_.narrowed(w_.param(m.projection_weight)), given = w_.narrowed(pixels);
    const Tensor map = w_.emit("aten.convolution.default",
                               {arg(given), arg(weight), arg(bias), arg(Dims{c_.patch, c_.patch}), arg(Dims{0, 0}),
                                arg(Dims{1, 1}), Arg{false}, arg(Dims{0, 0}), Arg{std::int64_t{1}}},
                               {}, {{sizes, ProgramWriter::contiguous_strides(sizes), weight.dtype}})[0];
    w_.enter(m.patch_embeddings);
    const Tensor patches = w_.transpose(w_.view(map, {batch, c_.hidden, c_.patches()}), 1, 2);
    w_.enter(m.embeddings);
    const Tensor token = w_.expand(w_.param(m.cls_token), {batch, -1, -1});
    const Tensor x = w_.add(w_.cat({token, patches}, 1), w_.param(m.position_embeddings));
    return write_dropout(w_, m.dropout, x, c_.hidden_dropout);
  }

  Tensor layer(const VitLayerModules& m, const Tensor& x) {
    const Tensor normed = write_layer_norm(w_, m.before, x, c_.eps);
    const Tensor q = heads_of(m, m.q, normed), k = heads_of(m, m.k, normed), v = heads_of(m, m.v, normed);
    const Tensor out = write_attention(w_, kernel_, attention_, q, k, v, nullptr);
    const Tensor attended = write_linear(w_, m.o, w_.view(out, {x.sizes[0], x.sizes[1], -1}));
    const Tensor middle = add_residual(m, attended, x);
    const Tensor up = write_linear(w_, m.up, write_layer_norm(w_, m.after, middle, c_.eps));
    w_.enter(m.activation);
    const Tensor down = write_linear(w_, m.down, write_activation(w_, c_.activation, up));
    return add_residual(m, down, middle);
  }

 private:
  Tensor heads_of(const VitLayerModules& m, const LinearModule& linear, const Tensor& x) {
    const Tensor y = write_linear(w_, linear, x);
    w_.enter(m.attention);
    return write_heads(w_, y, attention_.head_dim);
  }

  Tensor add_residual(const VitLayerModules& m, const Tensor& y, const Tensor& x) {
    const Tensor dropped = write_dropout(w_, m.dropout, y, c_.hidden_dropout);
    w_.enter(m.block);
    return w_.add(dropped, x);
  }

  ProgramWriter& w_;
  const VitConfig& c_;
  AttentionKernel kernel_;
  AttentionShape attention_;
};

}  // namespace

Result<Model> build_vit(const FamilyInput& input) {
  const VitConfig c = read_vit_config(input);
  check_products(input, c.patches() + 1, std::max({c.hidden, c.intermediate, c.labels}), c.heads);
  check_products(input, c.image * c.image, c.channels, 1);
  if (input.config.failed()) return fail(input.config.error());

  const DType created = input.options.dtype.value_or(c.dtype);
  Model model = start_model(input, "vit", "ViTLayer", created, 0);
  const std::int64_t batch = input.options.batch, head_dim = c.hidden / c.heads;
  const AttentionShape attention{.heads = c.heads,
                                 .key_value_heads = c.heads,
                                 .head_dim = head_dim,
                                 .dropout = c.attention_dropout,
                                 .scale = std::pow(static_cast<double>(head_dim), -0.5),
                                 .causal = false};
  Result<AttentionKernel> kernel = choose_attention(input, attention, model.compute_dtype, false);
  if (!kernel) return fail(std::move(kernel.error()));
  const VitModules m = add_modules(model, c, created);

  ProgramWriter w(model, model.compute_dtype, kernels_of(input));
  const Tensor pixels = w.input("pixel_values", {batch, c.channels, c.image, c.image}, model.compute_dtype);
  TokenInputs targets;  // of the loss: one label per image
  targets.shifted = false;
  if (input.options.loss != "none" && !c.body) targets.labels = w.input("labels", {batch}, DType::Int64);
  if (targets.labels) targets.ids = *targets.labels;
  VitProgram program(w, c, *kernel, attention);
  Tensor x = program.embeddings(m, pixels);
  for (const VitLayerModules& layer : m.layers) x = program.layer(layer, x);
  x = write_layer_norm(w, m.norm, x, c.eps);
  if (c.body) {
    const Tensor pooled = write_pooler(w, m.pooler, c.pooler_activation, x);
    if (Result<void> done = finish_body(model, w, input, {x, pooled}); !done) return fail(std::move(done.error()));
    return model;
  }
  w.enter(m.root);
  x = w.select(x, 1, 0);
  finish_with_loss(model, w, input, targets, write_linear(w, m.classifier, x));
  return model;
}

}  // namespace foreshard::families
