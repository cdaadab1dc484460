#include "exec/training/starting_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "core/adapters/adapted_model.h"
#include "core/adapters/adapter_names.h"
#include "core/model/sources/load_model.h"
#include "exec/operators/random_numbers.h"
#include "exec/run/buffers.h"
#include "exec/run/init_params.h"
#include "exec/run/weight_source.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

constexpr std::size_t kMostNames = 8;  // in one message

bool holds_weights(const std::filesystem::path& source) {
  std::error_code code;
  if (source.extension() == ".pt2") return true;
  if (!std::filesystem::is_directory(source, code)) return false;
  for (const auto& entry : std::filesystem::directory_iterator(source, code)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) return true;
  }
  return false;
}

/// Every parameter once, before anything is started. Looking one up maps it and reads nothing.
Result<void> check_all_there(const Model& model, const WeightSource& weights, const std::string& source, bool named) {
  std::vector<std::string> missing;
  std::string first;
  for (std::size_t p = 0; p < model.params.size(); ++p) {
    if (model.params[p].shares.valid()) continue;
    if (auto found = whole_param(model, ParamId(p), weights); !found) {
      if (missing.empty()) first = to_text(found.error());
      missing.push_back(model.params[p].fqn);
    }
  }
  if (missing.empty()) return {};
  Error error;
  error.code = ErrorCode::Inconsistent;
  error.file = source;
  error.place = missing.front();
  error.message = fmt::format("the weights do not fit the model: {}", first);
  error.expected = fmt::format("all parameters of {}", model.name.empty() ? "the model" : model.name);
  for (std::size_t i = 0; i < missing.size() && i < kMostNames; ++i) error.got += (i ? ", " : "without ") + missing[i];
  if (missing.size() > kMostNames) error.got += fmt::format(" and {} more", missing.size() - kMostNames);
  error.hint = named ? "leave model.weights out to start from fresh values"
                     : "name the config.json itself as model.source to start from fresh values";
  return fail(std::move(error));
}

struct OpenedWeights {
  std::shared_ptr<const WeightSource> source;  // null: none, values are made
  std::string path;
};

Result<OpenedWeights> find_weights(const Model& model, const ModelOptions& options) {
  const bool named = !options.weights.empty();
  const std::string& path = named ? options.weights : options.source;
  if (!named && !holds_weights(path)) return OpenedWeights{};
  auto opened = open_weights(path, options.program);
  if (!opened) return fail(opened.error());
  const bool valued = std::any_of(model.params.begin(), model.params.end(),
                                  [&](const ParamInfo& param) { return (*opened)->has_values(param.fqn); });
  if (!named && !valued && path.ends_with(".pt2")) return OpenedWeights{};  // exported on meta: buffers at most
  if (auto complete = check_all_there(model, **opened, path, named); !complete) return fail(complete.error());
  return OpenedWeights{std::move(*opened), path};
}

std::string fresh_text(const TrainOptions& train) {
  const std::string how = train.init == "default" ? "as their modules initialise themselves" : train.init;
  return fmt::format("fresh values, {}, seed {}", how, train.seed);
}

Result<StartingWeights> plain_weights(const Model& model, const Job& job) {
  StartingWeights start;
  auto weights = find_weights(model, job.model);
  if (!weights) return fail(weights.error());
  auto buffers = initial_buffers(model, job.model.source, weights->source.get(), job.model.program);
  if (!buffers) return fail(buffers.error());
  start.buffers = std::move(*buffers);
  if (weights->source != nullptr) {
    start.origin = "the weights of " + weights->path;
    start.params = [&model, source = std::move(weights->source)](ParamId id) {
      auto whole = whole_param(model, id, *source);
      if (!whole) throw std::runtime_error(to_text(whole.error()));
      return *whole;
    };
    return start;
  }
  auto fresh =
      ParamInitializer::create(model, job.model.source, static_cast<std::uint64_t>(job.train.seed), job.train.init);
  if (!fresh) return fail(fresh.error());
  start.origin = fresh_text(job.train);
  start.params = [initializer = std::make_shared<ParamInitializer>(std::move(*fresh))](ParamId id) {
    return initializer->whole(id);
  };
  return start;
}

/// A linear layer's own (kaiming_uniform_ of slope sqrt(5)), and zeros: beside the frozen layer that is nothing.
at::Tensor adapter_value(const ParamInfo& param, std::uint64_t seed) {
  at::NoGradGuard no_grad;
  const auto options = at::dtype(scalar_type_of(param.dtype));
  if (adapter_part(param.fqn) == AdapterPart::Up) return at::zeros(param.shape, options);
  const double bound = 1.0 / std::sqrt(static_cast<double>(param.shape.back()));
  const at::Tensor values = at::empty(param.shape, at::kFloat);
  return values.uniform_(-bound, bound, generator_of(mix_seed(seed, param.fqn))).to(options.dtype());
}

}  // namespace

Result<StartingWeights> starting_weights(const Model& model, const Job& job) {
  if (!has_adapters(job.adapters)) return plain_weights(model, job);
  auto loaded = load_model(job.model, program_options(job, ProgramDevice::Cpu));
  if (!loaded) return fail(loaded.error());
  const auto plain = std::make_shared<const Model>(std::move(*loaded));
  auto start = plain_weights(*plain, job);  // buffers keep their order
  if (!start) return start;
  start->params = [&model, plain, frozen = std::move(start->params),
                   seed = static_cast<std::uint64_t>(job.train.seed)](ParamId id) {
    const ParamInfo& param = model.params[model.storage_of(id).index()];
    if (is_low_rank(adapter_part(param.fqn))) return adapter_value(param, seed);
    return frozen(plain->find_param(plain_name(param.fqn)));
  };
  start->origin += ", adapters that add nothing yet";
  return start;
}

}  // namespace foreshard::exec
