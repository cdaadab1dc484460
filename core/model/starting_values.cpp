#include "core/model/starting_values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace foreshard {
namespace {

using Json = nlohmann::json;

std::string_view leaf_of(std::string_view fqn) { return fqn.substr(fqn.rfind('.') + 1); }

/// The registered name of the module that owns the parameter: "c_proj".
std::string_view module_name(std::string_view fqn) {
  const auto dot = fqn.rfind('.');
  return dot == fqn.npos ? std::string_view() : leaf_of(fqn.substr(0, dot));
}

bool is_norm(std::string_view class_name) {
  return class_name.find("LayerNorm") != class_name.npos || class_name.find("RMSNorm") != class_name.npos ||
         class_name.find("BatchNorm") != class_name.npos || class_name.find("InstanceNorm") != class_name.npos ||
         class_name == "GroupNorm";
}

/// True if `is` holds of the module's class or of one that it derives from.
template <class Is>
bool of_kind(const ModuleInfo& module, Is is) {
  return is(module.class_name) || std::any_of(module.bases.begin(), module.bases.end(), is);
}

bool is_linear(std::string_view class_name) { return class_name.find("Linear") != class_name.npos; }

/// Stacked gates of a recurrent layer; 0: none.
std::int64_t gates_of(const ModuleInfo& module) {
  std::int64_t gates = 0;
  of_kind(module, [&](std::string_view name) {
    if (name == "LSTM" || name == "LSTMCell") gates = 4;
    if (name == "GRU" || name == "GRUCell") gates = 3;
    if (name == "RNN" || name == "RNNCell") gates = 1;
    return gates > 0;
  });
  return gates;
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

/// What a config.json says about initialisation.
struct Settings {
  double spread = 0.02;           // initializer_range
  double residual_spread = 0.02;  // gpt2: of the projections back into the residual stream
  double t5_factor = 1.0, width = 1, feed_forward = 1, key_width = 1, heads = 1;
  bool tied = true;
  std::int64_t padding = -1;

  static Settings of(const std::string& architecture, const Json& config) {
    Settings s;
    s.spread = number_or(config, "initializer_range", 0.02);
    if (s.spread == 0.0) s.spread = 0.02;  // the library takes zero for "not given"
    s.padding = padding_token(config, architecture == "bert" || architecture.starts_with("gemma") ? 0 : -1);
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

ParamStart family_rule(const Model& model, const ParamInfo& param, const Settings& settings) {
  using Kind = ParamStart::Kind;
  const std::string_view class_name = model.modules[param.owner.index()].class_name;
  const std::string_view leaf = leaf_of(param.fqn);
  const bool t5 = model.architecture == "t5";
  if (is_norm(class_name)) {
    if (leaf == "bias" || model.architecture.starts_with("gemma"))
      return {Kind::Constant, 0.0, -1};  // gemma: 1 + weight
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

/// Layers whose spread follows from what one output sums over.
ParamStart projection_rule(const Model& model, const ModuleInfo& module, const ParamInfo& param) {
  using Kind = ParamStart::Kind;
  if (param.shape.size() >= 2) return {Kind::Uniform, 1.0 / std::sqrt(fan_in(param.shape)), -1};
  if (module.class_name == "NonDynamicallyQuantizableLinear") return {Kind::Constant, 0.0, -1};  // attention's output
  for (const ParamId other : module.params) {
    const ParamInfo& weight = model.params[other.index()];
    if (leaf_of(weight.fqn) == "weight") return {Kind::Uniform, 1.0 / std::sqrt(fan_in(weight.shape)), -1};
  }
  return {Kind::Constant, 0.0, -1};
}

/// reset_parameters of torch.nn: what a captured or exported model would have started from.
ParamStart module_rule(const Model& model, const ParamInfo& param) {
  using Kind = ParamStart::Kind;
  const ModuleInfo& module = model.modules[param.owner.index()];
  const std::string_view leaf = leaf_of(param.fqn);
  const Shape& shape = param.shape;
  if (of_kind(module, is_norm)) return {Kind::Constant, leaf == "bias" ? 0.0 : 1.0, -1};
  if (of_kind(module, [](std::string_view name) { return name == "Embedding" || name == "EmbeddingBag"; }))
    return {Kind::Normal, 1.0, -1};
  if (of_kind(module, [](std::string_view name) { return name == "PReLU"; })) return {Kind::Constant, 0.25, -1};
  if (const std::int64_t gates = gates_of(module); gates > 0 && !shape.empty()) {
    const std::int64_t hidden = leaf.starts_with("weight_hr") ? shape.back() : shape.front() / gates;
    return {Kind::Uniform, 1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, hidden))), -1};
  }
  if (of_kind(module, [](std::string_view name) { return name == "MultiheadAttention"; })) {
    if (shape.size() != 2) return {Kind::Constant, 0.0, -1};
    return {Kind::Uniform, std::sqrt(6.0 / static_cast<double>(shape[0] + shape[1])), -1};  // xavier_uniform_
  }
  const bool projects = of_kind(
      module, [](std::string_view name) { return is_linear(name) || name.starts_with("Conv") || name == "Bilinear"; });
  if (projects && (shape.size() >= 2 || leaf == "bias")) return projection_rule(model, module, param);
  if (leaf == "bias") return {Kind::Constant, 0.0, -1};
  if (shape.size() < 2) return {Kind::Constant, leaf == "weight" ? 1.0 : 0.0, -1};
  return {Kind::Normal, 0.02, -1};
}

/// Embeddings say at their call which row pads.
void keep_padding_rows_zero(const Model& model, std::vector<ParamStart>& starts) {
  for (const Op& op : model.ops) {
    if (op.name != "aten.embedding.default" || op.args.size() < 3) continue;
    const auto* table = std::get_if<ParamRef>(&op.args[0].value);
    const auto* row = std::get_if<std::int64_t>(&op.args[2].value);
    if (table == nullptr || row == nullptr || *row < 0) continue;
    starts[model.storage_of(table->id).index()].zero_row = *row;
  }
}

}  // namespace

std::vector<ParamStart> param_starts(const Model& model, const Json& config) {
  std::vector<ParamStart> starts;
  starts.reserve(model.params.size());
  const bool of_family = config.is_object();
  const Settings settings = of_family ? Settings::of(model.architecture, config) : Settings();
  for (const ParamInfo& param : model.params) {
    starts.push_back(of_family ? family_rule(model, param, settings) : module_rule(model, param));
  }
  if (!of_family) keep_padding_rows_zero(model, starts);
  return starts;
}

BufferStart buffer_start(const BufferInfo& buffer) {
  struct Known {
    std::string_view leaf;
    BufferStart start;
    std::size_t dims;  // 0: any number
  };
  constexpr std::array kKnown{
      Known{"inv_freq", BufferStart::RotaryFrequencies, 1},
      Known{"original_inv_freq", BufferStart::RotaryFrequencies, 1},
      Known{"long_inv_freq", BufferStart::LongRotaryFrequencies, 1},
      Known{"freqs_cis", BufferStart::Rotations, 2},
      Known{"embed_scale", BufferStart::EmbeddingScale, 0},
      Known{"position_ids", BufferStart::Positions, 2},
      Known{"token_type_ids", BufferStart::IntegerZeros, 0},
      Known{"e_score_correction_bias", BufferStart::IntegerZeros, 0},
      Known{"running_mean", BufferStart::Zeros, 0},
      Known{"num_batches_tracked", BufferStart::Zeros, 0},
      Known{"running_var", BufferStart::Ones, 0},
  };
  const auto found = std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& known) {
    return known.leaf == leaf_of(buffer.fqn) && (known.dims == 0 || known.dims == buffer.shape.size());
  });
  return found == kKnown.end() ? BufferStart::Unknown : found->start;
}

InputRole input_role(const ValueInfo& input) {
  constexpr std::array<std::pair<std::string_view, InputRole>, 5> kKnown{
      {{"input_ids", InputRole::Ids},
       {"labels", InputRole::Labels},
       {"attention_mask", InputRole::PaddingMask},
       {"position_ids", InputRole::Positions},
       {"num_items_in_batch", InputRole::LabelCount}}};
  const auto found =
      std::find_if(kKnown.begin(), kKnown.end(), [&](const auto& known) { return known.first == input.name; });
  return found == kKnown.end() ? InputRole::Other : found->second;
}

}  // namespace foreshard
