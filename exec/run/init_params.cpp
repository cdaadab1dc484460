#include "exec/run/init_params.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "core/model/sources/load_model.h"
#include "exec/operators/random_numbers.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

/// The STD of "normal:STD".
std::optional<double> spread_of(const std::string& init) {
  constexpr std::string_view kNormal = "normal:";
  if (!init.starts_with(kNormal)) return std::nullopt;
  double spread = 0;
  const char* end = init.data() + init.size();
  const auto [stop, error] = std::from_chars(init.data() + kNormal.size(), end, spread);
  if (error != std::errc() || stop != end || !std::isfinite(spread) || spread < 0) return std::nullopt;
  return spread;
}

}  // namespace

Result<ParamInitializer> ParamInitializer::create(const Model& model, const std::string& model_source,
                                                  std::uint64_t seed, const std::string& init) {
  const std::optional<double> spread = spread_of(init);
  if (init != "default" && init != "zeros" && !spread) {
    Error error;
    error.code = ErrorCode::OutOfRange;
    error.place = "train.init";
    error.message = "no such way to make parameters";
    error.expected = "default, zeros, or normal:STD";
    error.got = init;
    return fail(std::move(error));
  }
  ParamInitializer initializer(model, seed);
  const auto config = config_of_model(model, model_source);
  if (!config) return fail(config.error());
  initializer.starts_ = param_starts(model, *config);
  for (std::size_t p = 0; p < model.params.size(); ++p) {
    ParamStart& start = initializer.starts_[p];
    if (init == "zeros") start = {ParamStart::Kind::Constant, 0.0, start.zero_row};
    if (spread && model.params[p].shape.size() >= 2) start = {ParamStart::Kind::Normal, *spread, start.zero_row};
  }
  return initializer;
}

at::Tensor ParamInitializer::whole(ParamId param) const {
  at::NoGradGuard no_grad;
  const ParamId owner = model_->storage_of(param);
  const ParamInfo& info = model_->params[owner.index()];
  const ParamStart& start = starts_[owner.index()];
  const at::Tensor values = at::empty(info.shape, at::kFloat);
  const at::Generator generator = generator_of(mix_seed(seed_, info.fqn));
  switch (start.kind) {
    case ParamStart::Kind::Constant: values.fill_(start.value); break;
    case ParamStart::Kind::Normal: values.normal_(0.0, start.value, generator); break;
    case ParamStart::Kind::Uniform: values.uniform_(-start.value, start.value, generator); break;
    case ParamStart::Kind::TruncatedNormal: {  // cut at +-2 in absolute terms, by inversion, as torch.nn.init has it
      const double bound = std::erf(2.0 / start.value / std::sqrt(2.0));
      values.uniform_(-bound, bound, generator).erfinv_().mul_(start.value * std::sqrt(2.0)).clamp_(-2.0, 2.0);
      break;
    }
  }
  if (start.zero_row >= 0 && start.zero_row < values.size(0)) values[start.zero_row].zero_();
  return values.to(scalar_type_of(info.dtype));
}

}  // namespace foreshard::exec
