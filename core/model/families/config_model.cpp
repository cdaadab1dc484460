#include "core/model/families/config_model.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/model/families/config_reader.h"
#include "core/model/families/family.h"
#include "core/model/families/losses.h"
#include "core/model/json_input.h"

namespace foreshard {
namespace {

/// What of a training script's own ways is written for a family.
struct Scripts {
  bool labels = false;   // of its own, masked; counted over micro-batches
  bool chunked = false;  // head and loss over pieces of the sequence
  bool padding = false;  // a mask of the tokens that are there, or positions of packed sequences
};
constexpr Scripts kNone{}, kOwnMask{true, true, false}, kCapped{true, false, true}, kAll{true, true, true};

struct Family {
  std::string_view model_type;
  Result<Model> (*build)(const families::FamilyInput&, std::string_view model_type);
  Scripts scripts;
};

/// Adds the argument that only families of several types look at.
template <Result<Model> (*kBuild)(const families::FamilyInput&)>
Result<Model> only(const families::FamilyInput& input, std::string_view) {
  return kBuild(input);
}

constexpr Family kFamilies[] = {
    {"bert", only<families::build_bert>, kNone},
    {"deepseek_v2", families::build_deepseek, kAll},
    {"deepseek_v3", families::build_deepseek, kAll},
    {"gemma", families::build_llama_family, kAll},
    {"gemma2", only<families::build_gemma2>, kCapped},
    {"gpt2", only<families::build_gpt2>, kAll},
    {"gpt_neox", only<families::build_gpt_neox>, kAll},
    {"llama", families::build_llama_family, kAll},
    {"mistral", families::build_llama_family, kAll},
    {"mixtral", families::build_llama_family, kAll},
    {"opt", only<families::build_opt>, kOwnMask},
    {"phi3", only<families::build_phi3>, kAll},
    {"qwen2", families::build_llama_family, kAll},
    {"qwen2_moe", families::build_llama_family, kAll},
    {"qwen3", families::build_llama_family, kAll},
    {"qwen3_moe", families::build_llama_family, kAll},
    {"t5", only<families::build_t5>, kNone},
    {"titan_llama", only<families::build_titan_llama>, kOwnMask},
    {"vit", only<families::build_vit>, kNone},
    {"whisper", only<families::build_whisper>, kNone},
};

/// Routing to experts gathers and scatters rows of several types: what autocast makes of it is written for none.
Result<void> check_autocast(const Model& model, const families::FamilyInput& input) {
  if (!input.program.autocast) return {};
  const auto routed = std::find_if(model.ops.begin(), model.ops.end(), [](const Op& op) {
    return op.name == "aten.topk.default" || op.name == "aten._grouped_mm.default";
  });
  if (routed == model.ops.end()) return {};
  return fail({ErrorCode::Unsupported, "a model that routes tokens to experts is not planned under autocast",
               input.config.file(), "model.autocast", "none", std::string(dtype_name(*input.program.autocast)),
               "cast its parameters instead, by fsdp.mixed_precision.param, or capture the module with its script: "
               "foreshard.capture_step (docs/models.md)"});
}

Result<void> check_loss(const ModelOptions& options) {
  constexpr std::array<std::string_view, 9> kLosses{"auto",
                                                    "per_token",
                                                    "cross_entropy",
                                                    "cross_entropy_fp32",
                                                    "cross_entropy_flat",
                                                    "chunked_cross_entropy",
                                                    "chunked_logits_cross_entropy",
                                                    "fused_linear_cross_entropy",
                                                    "none"};
  if (std::find(kLosses.begin(), kLosses.end(), options.loss) == kLosses.end()) {
    return fail({ErrorCode::OutOfRange,
                 "model.loss names no loss",
                 {},
                 "model.loss",
                 "auto, per_token, cross_entropy, cross_entropy_fp32, cross_entropy_flat, "
                 "chunked_cross_entropy, chunked_logits_cross_entropy, fused_linear_cross_entropy or none",
                 in_quotes(options.loss),
                 {}});
  }
  return {};
}

/// torch._scaled_mm's rates are a card's; a host has no product in 8 bits that trains.
Result<void> check_float8(const families::FamilyInput& input) {
  if (input.options.float8 == "none" || input.program.device != ProgramDevice::Cpu) return {};
  return fail({ErrorCode::Unsupported,
               "linear layers in float8 are planned for GPUs alone: torchao has no such product on a CPU",
               input.config.file(), "model.float8", "none", in_quotes(input.options.float8),
               "name a profile of a GPU, or set model.float8 = \"none\""});
}

/// What a job asks of the training script must be written for the family.
Result<void> check_scripts(const Family& family, const families::FamilyInput& input) {
  const ModelOptions& options = input.options;
  const struct {
    bool asked, can;
    const char* key;
    const char* works;
    std::string got;
  } asked[] = {
      {families::is_own_loss(options) && options.loss != "auto", family.scripts.labels, "model.loss", "auto",
       options.loss},
      {families::wraps_for_loss(options), family.scripts.chunked, "model.loss", "auto or cross_entropy", options.loss},
      {families::fuses_head_with_loss(options), family.scripts.chunked, "model.loss", "auto or cross_entropy",
       options.loss},
      {options.attention_mask, family.scripts.padding, "model.attention_mask", "false", "true"},
      {options.packed, family.scripts.padding, "model.packed", "false", "true"},
  };
  for (const auto& one : asked) {
    if (!one.asked || one.can) continue;
    return fail({ErrorCode::Unsupported, "this is not built for models of type " + std::string(family.model_type),
                 input.config.file(), one.key, one.works, one.got,
                 "capture the module with its script: foreshard.capture_step (docs/models.md)"});
  }
  if (options.packed && options.attention_mask) {
    return fail({ErrorCode::Inconsistent, "the library does not look for packed sequences where it is handed a mask",
                 input.config.file(), "model.packed", "model.packed or model.attention_mask", "both",
                 "set one of them to false"});
  }
  return {};
}

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
  if (auto known_loss = check_loss(options); !known_loss) return fail(std::move(known_loss.error()));
  const families::FamilyInput input{options, program, config};
  for (const Family& family : kFamilies) {
    if (family.model_type != type) continue;
    if (auto can = check_float8(input); !can) return fail(std::move(can.error()));
    if (auto can = check_scripts(family, input); !can) return fail(std::move(can.error()));
    Result<Model> model = family.build(input, type);
    if (!model) return model;
    if (auto can = check_autocast(*model, input); !can) return fail(std::move(can.error()));
    if (families::wraps_for_loss(options))
      for (ParallelStyle& row : model->parallel)
        row.modules = "model." + row.modules;  // the script's wrapper is the root
    return model;
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
