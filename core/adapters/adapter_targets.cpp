#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "core/adapters/adapted_model.h"
#include "core/model/module_kind.h"
#include "core/text/edit_distance.h"

namespace foreshard {
namespace {

constexpr std::string_view kAllLinear = "all-linear";

std::string_view leaf_of(std::string_view fqn) {
  const auto dot = fqn.rfind('.');
  return dot == std::string_view::npos ? fqn : fqn.substr(dot + 1);
}

bool matches(std::string_view word, std::string_view fqn) {
  if (fqn.empty()) return false;
  if (word.find_first_of("*?") != std::string_view::npos) return matches_pattern(word, fqn);
  if (fqn == word) return true;
  return fqn.size() > word.size() && fqn.ends_with(word) && fqn[fqn.size() - word.size() - 1] == '.';
}

bool is_linear(const ModuleInfo& module) { return kind_of(module) == ModuleKind::Linear; }

/// The layer that makes the logits of a language model: its rows are those of an embedding table, and what it makes
/// becomes the second output through views alone. Invalid if there is none.
ModuleId output_layer(const Model& model) {
  if (model.outputs.size() < 2 || !model.outputs[1].valid()) return {};
  std::set<std::int64_t> vocabularies;
  for (const ModuleInfo& module : model.modules) {
    if (kind_of(module) != ModuleKind::Embedding) continue;
    for (const ParamId param : module.params) vocabularies.insert(model.params[param.index()].shape.front());
  }
  const ValueInfo& logits = model.values[model.outputs[1].index()];
  if (logits.shape.empty() || !vocabularies.contains(logits.shape.back())) return {};
  ValueId at = model.outputs[1];
  for (auto op = model.ops.rbegin(); op != model.ops.rend(); ++op) {
    if (std::find(op->out.begin(), op->out.end(), at) == op->out.end()) continue;
    if (is_linear(model.modules[op->module.index()])) return op->module;
    const auto* from = op->args.empty() ? nullptr : std::get_if<ValueRef>(&op->args.front().value);
    if (from == nullptr) return {};
    at = from->id;
  }
  return {};
}

/// The head of a model whose script calls it piece by piece: the linear layer that runs last.
ModuleId last_called(const Model& model) {
  for (auto op = model.ops.rbegin(); op != model.ops.rend(); ++op)
    if (is_linear(model.modules[op->module.index()])) return op->module;
  return {};
}

/// The script's wrapper around a model for its loss, whose child the model is.
bool is_wrapped(const Model& model) {
  const std::vector<std::string>& bases = model.modules.front().bases;
  return model.outputs.size() == 1 && bases.size() == 1 && model.modules.front().children.size() == 1;
}

/// A language model whose head and loss are one function: the loss alone comes out.
bool hides_logits(const Model& model) { return model.outputs.size() == 1 && model.tokens_per_batch > 0; }

/// PEFT leaves a Transformers model's output layer out of "all-linear"; of a plain module it adapts that too.
ModuleId left_out(const Model& base) {
  const bool wrapped = is_wrapped(base);
  const std::vector<std::string>& bases = base.modules[wrapped ? 1 : 0].bases;
  const bool library = std::find(bases.begin(), bases.end(), "PreTrainedModel") != bases.end();
  if (!library) return {};
  return wrapped || hides_logits(base) ? last_called(base) : output_layer(base);
}

Error target_error(ErrorCode code, std::string message, std::string expected, std::string got, std::string hint) {
  return {code, std::move(message), {}, "adapters.targets", std::move(expected), std::move(got), std::move(hint)};
}

std::string nearest_of(const std::set<std::string_view>& names, const std::vector<std::string>& words) {
  std::string nearest;
  std::size_t best = static_cast<std::size_t>(-1);
  for (const std::string_view name : names) {
    for (const std::string& word : words) {
      const std::size_t distance = edit_distance(leaf_of(word), name);
      if (distance < best) nearest = name;
      best = std::min(best, distance);
    }
  }
  return nearest;
}

Error nothing_matches(const Model& base, const AdapterOptions& adapters) {
  std::set<std::string_view> names;
  for (const ModuleInfo& module : base.modules)
    if (is_linear(module)) names.insert(leaf_of(module.fqn));
  const std::string nearest = nearest_of(names, adapters.targets);
  return target_error(ErrorCode::NotFound, "no layer has a name that adapters.targets asks for",
                      fmt::format("layers of this model: {}", fmt::join(names, ", ")),
                      fmt::format("{}", fmt::join(adapters.targets, ", ")),
                      nearest.empty() ? "" : fmt::format("the nearest is \"{}\"", nearest));
}

/// PEFT goes by the ends of names, dot or not (peft, utils/other.py, _set_trainable).
bool is_named(const ModuleInfo& module, const std::string& word) {
  return !module.fqn.empty() && module.fqn.ends_with(word);
}

}  // namespace

Result<std::vector<bool>> adapter_targets(const Model& base, const AdapterOptions& adapters) {
  std::vector<bool> chosen(base.modules.size(), false);
  const ModuleId kept = left_out(base);
  auto copied = copied_modules(base, adapters);
  if (!copied) return copied;
  bool any = false;
  for (std::size_t m = 0; m < base.modules.size(); ++m) {
    const ModuleInfo& module = base.modules[m];
    if (module.parent.valid() && (*copied)[module.parent.index()]) (*copied)[m] = true;  // all that lies in it
    if (module.alias_of.valid() || (*copied)[m]) continue;
    const bool wanted = std::any_of(adapters.targets.begin(), adapters.targets.end(), [&](const std::string& word) {
      if (word == kAllLinear) return is_linear(module) && ModuleId(m) != kept;
      return matches(word, module.fqn);
    });
    if (!wanted) continue;
    if (!is_linear(module)) {
      return fail(target_error(ErrorCode::Unsupported,
                               fmt::format("adapters stand beside linear layers alone, {} is none", module.fqn),
                               "modules of class Linear or Conv1D", module.class_name, "name the linear layers in it"));
    }
    chosen[m] = any = true;
  }
  if (!any) return fail(nothing_matches(base, adapters));
  return chosen;
}

Result<std::vector<bool>> copied_modules(const Model& base, const AdapterOptions& adapters) {
  std::vector<bool> copied(base.modules.size(), false), within(base.modules.size(), false);
  for (const std::string& word : adapters.modules_to_save) {
    bool any = false;
    for (const ModuleInfo& module : base.modules) any = any || is_named(module, word);
    if (any) continue;
    std::set<std::string_view> names;
    for (const ModuleInfo& module : base.modules)
      if (!module.fqn.empty()) names.insert(leaf_of(module.fqn));
    Error error = target_error(ErrorCode::NotFound, "no module has a name that adapters.modules_to_save asks for",
                               "the ends of modules' names", word,
                               fmt::format("the nearest is \"{}\"", nearest_of(names, {word})));
    error.place = "adapters.modules_to_save";
    return fail(std::move(error));
  }
  for (std::size_t m = 0; m < base.modules.size(); ++m) {
    const ModuleInfo& module = base.modules[m];
    const std::size_t parent = module.parent.valid() ? module.parent.index() : m;
    within[m] = within[parent] || copied[parent];
    copied[m] = !within[m] && !module.alias_of.valid() &&
                std::any_of(adapters.modules_to_save.begin(), adapters.modules_to_save.end(),
                            [&](const std::string& word) { return is_named(module, word); });
  }
  return copied;
}

std::vector<bool> packed_layers(const Model& base, const AdapterOptions& adapters) {
  std::vector<bool> packed(base.modules.size(), false);
  if (adapters.base == "model.dtype") return packed;
  const ModuleId head = is_wrapped(base) || hides_logits(base) ? last_called(base) : output_layer(base);
  for (std::size_t m = 0; m < base.modules.size(); ++m) {
    const ModuleInfo& module = base.modules[m];
    packed[m] = is_linear(module) && ModuleId(m) != head && !module.alias_of.valid() && !module.params.empty();
  }
  return packed;
}

}  // namespace foreshard
