#include "exec/run/init_params.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/model/json_input.h"
#include "exec/operators/random_numbers.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string_view leaf_of(std::string_view fqn) { return fqn.substr(fqn.rfind('.') + 1); }

/// The registered name of the module that owns the parameter: "c_proj".
std::string_view module_name(std::string_view fqn) {
  const auto dot = fqn.rfind('.');
  return dot == fqn.npos ? std::string_view() : leaf_of(fqn.substr(0, dot));
}

bool is_norm(std::string_view class_name) {
  return class_name.find("LayerNorm") != class_name.npos || class_name.find("RMSNorm") != class_name.npos ||
         class_name.find("BatchNorm") != class_name.npos || class_name == "GroupNorm";
}

double number_or(const Json& config, const char* key, double otherwise) {
  const auto found = config.find(key);
  return found != config.end() && found->is_number() ? found->get<double>() : otherwise;
}

std::int64_t padding_token(const Json& config, double otherwise) {
  return static_cast<std::int64_t>(number_or(config, "pad_token_id", otherwise));
}

/// Elements that one output sums over: [out, in, kernel...].
double fan_in(const Shape& shape) {
  double fan = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) fan *= static_cast<double>(shape[i]);
  return fan;
}

}  // namespace

/// What a config.json says about initialisation.
struct ParamInitializer::Settings {
  double spread = 0.02;           // initializer_range
  double residual_spread = 0.02;  // gpt2: of the projections back into the residual stream
  double t5_factor = 1.0, width = 1, feed_forward = 1, key_width = 1, heads = 1;
  bool tied = true;
  std::int64_t padding = -1;

  static Settings of(const std::string& architecture, const Json& config) {
    Settings s;
    s.spread = number_or(config, "initializer_range", 0.02);
    if (s.spread == 0.0) s.spread = 0.02;  // the library takes zero for "not given"
    s.padding = padding_token(config, architecture == "bert" || architecture == "gemma2" ? 0 : -1);
    if (architecture == "gpt2") {
      s.residual_spread = s.spread / std::sqrt(2 * number_or(config, "n_layer", 12));
      s.padding = -1;
    }
    s.t5_factor = number_or(config, "initializer_factor", 1.0);
    s.width = number_or(config, "d_model", 512);
    s.feed_forward = number_or(config, "d_ff", 2048);
    s.key_width = number_or(config, "d_kv", 64);
    s.heads = number_or(config, "num_heads", 8);
    return s;
  }

  /// T5 scales every projection by what it sums over.
  double t5_spread(std::string_view fqn) const {
    const std::string_view name = module_name(fqn);
    const auto power = [](double of) { return 1.0 / std::sqrt(of); };
    if (name == "q") return t5_factor * power(width * key_width);
    if (name == "o") return t5_factor * power(heads * key_width);
    if (name == "wo") return t5_factor * power(feed_forward);
    if (name == "k" || name == "v" || name.starts_with("wi") || name == "relative_attention_bias")
      return t5_factor * power(width);
    return t5_factor;
  }
};

ParamInitializer::Rule ParamInitializer::family_rule(const Model& model, const ParamInfo& param,
                                                     const Settings& settings) {
  using Kind = Rule::Kind;
  const std::string_view class_name = model.modules[param.owner.index()].class_name;
  const std::string_view leaf = leaf_of(param.fqn);
  const bool t5 = model.architecture == "t5";
  if (is_norm(class_name)) {
    if (leaf == "bias" || model.architecture == "gemma2") return {Kind::Constant, 0.0, -1};  // gemma: 1 + weight
    return {Kind::Constant, t5 ? settings.t5_factor : 1.0, -1};
  }
  if (leaf == "bias") return {Kind::Constant, 0.0, -1};
  if (leaf == "mask_token") return {Kind::Constant, 0.0, -1};
  if (leaf == "cls_token" || (model.architecture == "vit" && leaf == "position_embeddings"))
    return {Kind::TruncatedNormal, settings.spread, -1};
  if (t5) return {Kind::Normal, settings.t5_spread(param.fqn), -1};
  if (model.architecture == "gpt2" && module_name(param.fqn) == "c_proj")
    return {Kind::Normal, settings.residual_spread, -1};
  // The padding token's row is no embedding: zeros. Only the embedding of tokens knows one.
  const std::string_view name = module_name(param.fqn);
  const bool tokens = name == "embed_tokens" || name == "word_embeddings";
  return {Kind::Normal, settings.spread, tokens ? settings.padding : -1};
}

/// reset_parameters of torch.nn: what a model of a .pt2 archive would have started from.
ParamInitializer::Rule ParamInitializer::module_rule(const Model& model, const ParamInfo& param) {
  using Kind = Rule::Kind;
  const ModuleInfo& module = model.modules[param.owner.index()];
  const std::string_view leaf = leaf_of(param.fqn);
  if (is_norm(module.class_name)) return {Kind::Constant, leaf == "bias" ? 0.0 : 1.0, -1};
  if (module.class_name == "Embedding") return {Kind::Normal, 1.0, -1};
  const bool projects = module.class_name.find("Linear") != std::string::npos || module.class_name.starts_with("Conv");
  if (projects && param.shape.size() >= 2) return {Kind::Uniform, 1.0 / std::sqrt(fan_in(param.shape)), -1};
  if (leaf == "bias") {
    for (const ParamId other : module.params) {
      const ParamInfo& weight = model.params[other.index()];
      if (projects && leaf_of(weight.fqn) == "weight")
        return {Kind::Uniform, 1.0 / std::sqrt(fan_in(weight.shape)), -1};
    }
    return {Kind::Constant, 0.0, -1};
  }
  if (param.shape.size() < 2) return {Kind::Constant, leaf == "weight" ? 1.0 : 0.0, -1};
  return {Kind::Normal, 0.02, -1};
}

Result<ParamInitializer> ParamInitializer::create(const Model& model, const std::string& model_source,
                                                  std::uint64_t seed) {
  ParamInitializer initializer(model, seed);
  Json config;
  if (!model.architecture.empty()) {
    std::error_code code;
    const bool folder = fs::is_directory(model_source, code);
    auto document = read_json_file(folder ? (fs::path(model_source) / "config.json").string() : model_source);
    if (!document) return fail(std::move(document.error()));
    if (document->is_object() && document->contains("model_type")) config = std::move(*document);
  }
  const Settings settings = Settings::of(model.architecture, config);
  for (const ParamInfo& param : model.params) {
    initializer.rules_.push_back(config.is_object() ? family_rule(model, param, settings) : module_rule(model, param));
  }
  return initializer;
}

at::Tensor ParamInitializer::whole(ParamId param) const {
  at::NoGradGuard no_grad;
  const ParamId owner = model_->storage_of(param);
  const ParamInfo& info = model_->params[owner.index()];
  const Rule& rule = rules_[owner.index()];
  const at::Tensor values = at::empty(info.shape, at::kFloat);
  const at::Generator generator = generator_of(mix_seed(seed_, info.fqn));
  switch (rule.kind) {
    case Rule::Kind::Constant: values.fill_(rule.value); break;
    case Rule::Kind::Normal: values.normal_(0.0, rule.value, generator); break;
    case Rule::Kind::Uniform: values.uniform_(-rule.value, rule.value, generator); break;
    case Rule::Kind::TruncatedNormal: {  // cut at +-2 in absolute terms, by inversion, as torch.nn.init has it
      const double bound = std::erf(2.0 / rule.value / std::sqrt(2.0));
      values.uniform_(-bound, bound, generator).erfinv_().mul_(rule.value * std::sqrt(2.0)).clamp_(-2.0, 2.0);
      break;
    }
  }
  if (rule.zero_row >= 0 && rule.zero_row < values.size(0)) values[rule.zero_row].zero_();
  return values.to(scalar_type_of(info.dtype));
}

}  // namespace foreshard::exec
