#include "core/adapters/adapter_names.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

namespace foreshard {
namespace {

constexpr std::string_view kModel = "base_model.model";
constexpr std::string_view kFrozen = ".base_layer";
constexpr std::string_view kDown = ".lora_A.", kUp = ".lora_B.";
constexpr std::string_view kOriginal = ".original_module", kCopy = ".modules_to_save.default";

/// The names that PEFT finds exactly the adapted layers by: the job's words where PEFT reads them alike, else each
/// layer's own.
std::vector<std::string> target_modules(const Model& adapted, const AdapterOptions& options) {
  const bool words = std::none_of(options.targets.begin(), options.targets.end(), [](const std::string& word) {
    return word == "all-linear" || word.find_first_of("*?") != std::string::npos;
  });
  if (words) return options.targets;
  std::set<std::string> layers;
  for (const ParamInfo& param : adapted.params) {
    if (adapter_part(param.fqn) != AdapterPart::Down) continue;
    const std::string plain = plain_name(param.fqn);
    layers.insert(plain.substr(0, plain.find(kDown)));
  }
  return {layers.begin(), layers.end()};
}

}  // namespace

AdapterPart adapter_part(std::string_view fqn) {
  if (fqn.find(kDown) != std::string_view::npos) return AdapterPart::Down;
  if (fqn.find(kUp) != std::string_view::npos) return AdapterPart::Up;
  return fqn.find(kCopy) != std::string_view::npos ? AdapterPart::Copy : AdapterPart::None;
}

std::string plain_name(std::string_view fqn) {
  if (fqn.starts_with(kModel)) fqn.remove_prefix(std::min(kModel.size() + 1, fqn.size()));
  std::string name(fqn);
  for (const std::string_view part : {kFrozen, kOriginal, kCopy})
    if (const auto at = name.find(part); at != std::string::npos) name.erase(at, part.size());
  return name;
}

std::string peft_name(std::string_view fqn) {
  std::string name(fqn);
  if (adapter_part(fqn) == AdapterPart::Copy) return name.erase(name.find(kCopy), kCopy.size());
  const std::string_view list = adapter_part(fqn) == AdapterPart::Down ? kDown : kUp;
  const auto begin = name.find(list) + list.size();
  const auto end = name.find('.', begin);
  if (end != std::string::npos) name.erase(begin, end + 1 - begin);
  return name;
}

std::string peft_config(const Model& adapted, const Job& job) {
  const bool turned = std::any_of(adapted.modules.begin(), adapted.modules.end(), [](const ModuleInfo& module) {
    return module.class_name == "Conv1D" && module.fqn.ends_with(kFrozen);
  });
  const bool causal = adapted.modules.front().class_name == "PeftModelForCausalLM";
  nlohmann::ordered_json config = {{"peft_type", "LORA"},
                                   {"task_type", nullptr},
                                   {"base_model_name_or_path", job.model.source},
                                   {"inference_mode", true},
                                   {"r", job.adapters.rank},
                                   {"lora_alpha", job.adapters.alpha},
                                   {"lora_dropout", job.adapters.dropout},
                                   {"target_modules", target_modules(adapted, job.adapters)},
                                   {"bias", "none"},
                                   {"fan_in_fan_out", turned},
                                   {"init_lora_weights", true},
                                   {"modules_to_save", nullptr},
                                   {"use_dora", false},
                                   {"use_rslora", false}};
  if (!job.adapters.modules_to_save.empty()) config["modules_to_save"] = job.adapters.modules_to_save;
  if (causal) config["task_type"] = "CAUSAL_LM";
  return config.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace foreshard
