// Names in a model with adapters: what they are called in the plain model, and in PEFT's own files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/job.h"
#include "core/model/model.h"

namespace foreshard {

/// Which of an adapter's two matrices a parameter is, or that of a module's trained copy. An adapter begins as nothing:
/// `Up` is zero, `Down` drawn as a linear layer's weight (peft, tuners/lora/layer.py, reset_lora_parameters); a copy
/// begins as what it was made of.
enum class AdapterPart : std::uint8_t { None, Down, Up, Copy };
AdapterPart adapter_part(std::string_view fqn);
constexpr bool is_low_rank(AdapterPart part) { return part == AdapterPart::Down || part == AdapterPart::Up; }

/// What a frozen or copied parameter, or a buffer, of an adapted model is called in the plain one.
std::string plain_name(std::string_view fqn);

/// What PEFT's adapter_model.safetensors calls an adapter's parameter: without the adapter's own name (peft,
/// utils/save_and_load.py, get_peft_model_state_dict). REQUIRES adapter_part(fqn) != None.
std::string peft_name(std::string_view fqn);

inline constexpr std::string_view kPeftConfigFile = "adapter_config.json";
inline constexpr std::string_view kPeftWeightsFile = "adapter_model.safetensors";

/// The text of PEFT's adapter_config.json for `adapted`, a model that adapted_model has made for the job.
std::string peft_config(const Model& adapted, const Job& job);

}  // namespace foreshard
