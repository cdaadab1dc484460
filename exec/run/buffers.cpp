#include "exec/run/buffers.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <utility>

#include "core/model/sources/load_model.h"
#include "core/model/starting_values.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

using Json = nlohmann::json;

/// A number of a document that the family's reader has checked already.
std::optional<double> number(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

/// Where a config.json keeps its rotary settings: newer files in rope_parameters, with the base in it.
class RopeSettings {
 public:
  explicit RopeSettings(const Json& config) : config_(config) {
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
      const auto found = config.find(key);
      if (found != config.end() && found->is_object()) rope_ = *found;
    }
  }

  std::string kind() const {
    for (const char* key : {"rope_type", "type"}) {
      const auto found = rope_.find(key);
      if (found == rope_.end() || !found->is_string()) continue;
      const auto kind = found->get<std::string>();
      return phi3() && (kind == "su" || kind == "yarn") ? "longrope" : kind;  // its older files
    }
    return "default";
  }
  double base() const {
    for (const char* key : {"rope_theta", "rotary_emb_base"}) {
      if (const auto value = number(rope_, key)) return *value;
      if (const auto value = number(config_, key)) return *value;
    }
    const auto type = config_.value("model_type", "");
    return type == "mixtral" ? 1e6 : type == "titan_llama" ? 5e5 : 1e4;  // the library's defaults
  }
  double value(const char* key, double otherwise) const { return number(rope_, key).value_or(otherwise); }
  bool flag(const char* key, bool otherwise) const {
    const auto found = rope_.find(key);
    return found != rope_.end() && found->is_boolean() ? found->get<bool>() : otherwise;
  }
  double original_positions() const {
    if (const auto own = number(config_, "original_max_position_embeddings")) return *own;
    if (phi3()) return 4096;
    return value("original_max_position_embeddings", number(config_, "max_position_embeddings").value_or(2048));
  }
  /// One number for every frequency; empty where the file has another count.
  std::vector<double> factors(const char* key, std::int64_t count) const {
    const auto found = rope_.find(key);
    if (found == rope_.end() || !found->is_array() || static_cast<std::int64_t>(found->size()) != count) return {};
    std::vector<double> list;
    for (const Json& entry : *found) list.push_back(entry.is_number() ? entry.get<double>() : 1.0);
    return list;
  }

 private:
  bool phi3() const { return config_.value("model_type", "") == "phi3"; }

  const Json& config_;
  Json rope_ = Json::object();
};

/// base^(2i / dim), [dim / 2]; the roundings are those of the library's fp32 tensors.
at::Tensor position_powers(double base, std::int64_t half) {
  const at::Tensor exponent = at::arange(0, 2 * half, 2, at::kLong).to(at::kFloat).div(static_cast<double>(2 * half));
  return at::pow(at::Scalar(base), exponent);
}

at::Tensor llama3_frequencies(const RopeSettings& rope, const at::Tensor& plain) {
  const double factor = rope.value("factor", 1.0), low = rope.value("low_freq_factor", 1.0),
               high = rope.value("high_freq_factor", 4.0), positions = rope.original_positions();
  const double low_wavelength = positions / low, high_wavelength = positions / high;
  const at::Tensor wavelength = at::full({}, 2 * std::numbers::pi, at::kFloat) / plain;
  const at::Tensor scaled = at::where(wavelength.gt(low_wavelength), plain / factor, plain);
  const at::Tensor smooth = (wavelength.reciprocal() * positions - low) / (high - low);
  const at::Tensor smoothed = (1 - smooth) * scaled / factor + smooth * scaled;
  const at::Tensor medium = wavelength.ge(high_wavelength).logical_and(wavelength.le(low_wavelength));
  return at::where(medium, smoothed, scaled);
}

at::Tensor yarn_frequencies(const RopeSettings& rope, std::int64_t half) {
  const double base = rope.base(), factor = rope.value("factor", 1.0), positions = rope.original_positions();
  const double dim = static_cast<double>(2 * half);
  const auto correction = [&](double rotations) {
    return dim * std::log(positions / (rotations * 2 * std::numbers::pi)) / (2 * std::log(base));
  };
  double low = correction(rope.value("beta_fast", 32.0)), high = correction(rope.value("beta_slow", 1.0));
  if (rope.flag("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  const at::Tensor ramp = ((at::arange(half, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const at::Tensor powers = position_powers(base, half);
  const at::Tensor extrapolated = powers.reciprocal(), interpolated = (powers * factor).reciprocal();
  const at::Tensor share = 1 - ramp;
  return interpolated * (1 - share) + extrapolated * share;
}

at::Tensor longrope_frequencies(const RopeSettings& rope, const char* key, std::int64_t half) {
  const at::Tensor powers = position_powers(rope.base(), half);
  const std::vector<double> factors = rope.factors(key, half);
  if (factors.empty()) return powers.reciprocal();
  return (at::tensor(factors, at::kDouble).to(at::kFloat) * powers).reciprocal();
}

at::Tensor inverse_frequencies(const Json& config, std::int64_t half) {
  const RopeSettings rope(config);
  const std::string kind = rope.kind();
  if (kind == "yarn") return yarn_frequencies(rope, half);
  const at::Tensor plain = position_powers(rope.base(), half).reciprocal();
  if (kind == "linear") return plain / rope.value("factor", 1.0);
  if (kind == "llama3") return llama3_frequencies(rope, plain);
  if (kind == "longrope") return longrope_frequencies(rope, "short_factor", half);
  return plain;
}

/// Rotations of every position as complex numbers: [positions, pairs].
at::Tensor rotations(const Json& config, std::int64_t positions, std::int64_t half) {
  const at::Tensor angles = at::outer(at::arange(positions).to(at::kFloat), inverse_frequencies(config, half));
  return at::polar(at::ones_like(angles), angles);
}

/// What the families of core/model register as non-persistent buffers.
at::Tensor computed(const Json& config, const BufferInfo& buffer) {
  switch (buffer_start(buffer)) {
    case BufferStart::RotaryFrequencies: return inverse_frequencies(config, buffer.shape[0]);
    case BufferStart::LongRotaryFrequencies:
      return longrope_frequencies(RopeSettings(config), "long_factor", buffer.shape[0]);
    case BufferStart::Rotations: return rotations(config, buffer.shape[0], buffer.shape[1]);
    case BufferStart::EmbeddingScale:
      if (const auto hidden = number(config, "hidden_size"))
        return at::full(buffer.shape, std::sqrt(*hidden), at::kDouble);
      return {};
    default: return {};
  }
}

at::Tensor usual_value(const BufferInfo& buffer) {
  switch (buffer_start(buffer)) {
    case BufferStart::Positions: return at::arange(buffer.shape[1], at::kLong).unsqueeze(0).expand(buffer.shape);
    case BufferStart::IntegerZeros: return at::zeros(buffer.shape, at::kLong);
    case BufferStart::Zeros: return at::zeros(buffer.shape, at::kFloat);
    case BufferStart::Ones: return at::ones(buffer.shape, at::kFloat);
    default: return {};
  }
}

struct Sources {
  Json config;  // null: the model comes from elsewhere
  std::shared_ptr<const WeightSource> archive;
  const WeightSource* weights = nullptr;
};

/// The values of meta tensors are not there: whoever comes next in the order may know them.
at::Tensor held(const WeightSource* source, const BufferInfo& buffer) {
  if (source == nullptr || !source->contains(buffer.fqn)) return {};
  const auto tensor = source->tensor(buffer.fqn);
  return tensor && tensor->sizes().vec() == buffer.shape ? *tensor : at::Tensor();
}

Result<at::Tensor> value_of(const BufferInfo& buffer, const Sources& sources) {
  at::Tensor value = held(sources.archive.get(), buffer);
  if (!value.defined() && sources.config.is_object()) value = computed(sources.config, buffer);
  if (!value.defined()) value = held(sources.weights, buffer);
  if (!value.defined()) value = usual_value(buffer);
  if (value.defined()) {
    return value.to(scalar_type_of(buffer.dtype), /*non_blocking=*/false, /*copy=*/true).contiguous();
  }
  Error error;
  error.code = ErrorCode::MissingKey;
  error.message = "the starting value of a buffer is not known";
  error.place = buffer.fqn;
  error.expected = fmt::format("a tensor of that name, [{}], in the weights", fmt::join(buffer.shape, ", "));
  error.got = "none";
  error.hint = "give weights that hold it, or the .pt2 archive with real tensors";
  return fail(std::move(error));
}

Result<Sources> open_sources(const Model& model, const std::string& model_source, const WeightSource* weights,
                             std::string_view program) {
  Sources sources;
  sources.weights = weights;
  if (model_source.ends_with(".pt2")) {
    // An old container cannot be opened; its buffers may still be in `weights`.
    if (auto archive = open_weights(model_source, program)) sources.archive = std::move(*archive);
    return sources;
  }
  auto config = config_of_model(model, model_source);
  if (!config) return fail(std::move(config.error()));
  sources.config = std::move(*config);
  return sources;
}

}  // namespace

Result<std::vector<at::Tensor>> initial_buffers(const Model& model, const std::string& model_source,
                                                const WeightSource* weights, std::string_view program) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> buffers;
  if (model.buffers.empty()) return buffers;
  const auto sources = open_sources(model, model_source, weights, program);
  if (!sources) return fail(sources.error());
  for (const BufferInfo& buffer : model.buffers) {
    auto value = value_of(buffer, *sources);
    if (!value) return fail(std::move(value.error()));
    buffers.push_back(std::move(*value));
  }
  return buffers;
}

}  // namespace foreshard::exec
