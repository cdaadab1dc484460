#include "core/model/families/config_model.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/model/families/config_reader.h"
#include "core/model/families/family.h"
#include "core/model/json_input.h"

namespace foreshard {
namespace {

struct Family {
  std::string_view model_type;
  Result<Model> (*build)(const families::FamilyInput&, std::string_view model_type);
};

/// Adds the argument that only families of several types look at.
template <Result<Model> (*kBuild)(const families::FamilyInput&)>
Result<Model> only(const families::FamilyInput& input, std::string_view) {
  return kBuild(input);
}

constexpr Family kFamilies[] = {
    {"bert", only<families::build_bert>},
    {"gemma2", only<families::build_gemma2>},
    {"gpt2", only<families::build_gpt2>},
    {"gpt_neox", only<families::build_gpt_neox>},
    {"llama", families::build_llama_family},
    {"mistral", families::build_llama_family},
    {"mixtral", families::build_llama_family},
    {"opt", only<families::build_opt>},
    {"phi3", only<families::build_phi3>},
    {"qwen2", families::build_llama_family},
    {"qwen2_moe", families::build_llama_family},
    {"qwen3", families::build_llama_family},
    {"qwen3_moe", families::build_llama_family},
    {"t5", only<families::build_t5>},
    {"titan_llama", only<families::build_titan_llama>},
    {"vit", only<families::build_vit>},
    {"whisper", only<families::build_whisper>},
};

Result<Model> build(const nlohmann::json& object, const std::string& file, const ModelOptions& options,
                    const ProgramOptions& program) {
  if (!object.is_object()) {
    return fail({ErrorCode::WrongType,
                 "a config.json must hold an object",
                 file,
                 "line 1, column 1",
                 "an object",
                 describe_json(object),
                 {}});
  }
  ConfigReader config(object, file);
  std::string known;
  for (const Family& family : kFamilies) known += (known.empty() ? "" : ", ") + std::string(family.model_type);
  if (!config.has("model_type")) {
    return fail({ErrorCode::MissingKey, "the key \"model_type\" is missing: nothing says which family this is", file,
                 "model_type", "one of " + known, "nothing", "add \"model_type\""});
  }
  const std::string type = config.text_or("model_type", "");
  if (config.failed()) return fail(config.error());
  if (config.has("quantization_config")) {
    return fail({ErrorCode::Unsupported, "quantised weights are not built", file, "quantization_config",
                 "no such key, or null", describe_json(object.at("quantization_config")),
                 "use the configuration of the model that is not quantised"});
  }
  constexpr std::array<std::string_view, 5> kLosses{"auto", "cross_entropy", "cross_entropy_fp32", "cross_entropy_flat",
                                                    "none"};
  if (std::find(kLosses.begin(), kLosses.end(), options.loss) == kLosses.end()) {
    return fail({ErrorCode::OutOfRange,
                 "model.loss names no loss",
                 {},
                 "model.loss",
                 "auto, cross_entropy, cross_entropy_fp32 or none",
                 in_quotes(options.loss),
                 {}});
  }
  const families::FamilyInput input{options, program, config};
  for (const Family& family : kFamilies) {
    if (family.model_type == type) return family.build(input, type);
  }
  return fail({ErrorCode::Unsupported, "this model_type is not built", file, "model_type", "one of " + known,
               in_quotes(type),
               "`foreshard export-script` prints a script that exports it to a .pt2; or write it as model.json "
               "(docs/models.md)"});
}

}  // namespace

std::vector<std::string_view> known_model_types() {
  std::vector<std::string_view> types;
  for (const Family& family : kFamilies) types.push_back(family.model_type);
  return types;
}

Result<Model> model_from_config_json(const nlohmann::json& config, const std::string& file, const ModelOptions& options,
                                     const ProgramOptions& program) {
  return build(config, file, options, program);
}

Result<Model> model_from_config(const std::string& path, const ModelOptions& options, const ProgramOptions& program) {
  Result<nlohmann::json> config = read_json_file(path);
  if (!config) return fail(std::move(config.error()));
  return build(*config, path, options, program);
}

}  // namespace foreshard
