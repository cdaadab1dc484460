// train.optimizer.parts: parameters that have another optimizer in the same step, or none; and the words of optimizers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "core/job.h"
#include "core/job/job_values.h"

namespace foreshard::job_values {

const Words<OptimizerKind>& optimizer_kinds() {
  static const Words<OptimizerKind> kWords{{{"adamw", OptimizerKind::AdamW},
                                            {"sgd", OptimizerKind::Sgd},
                                            {"adafactor", OptimizerKind::Adafactor},
                                            {"muon", OptimizerKind::Muon},
                                            {"adamw8bit", OptimizerKind::AdamW8bit},
                                            {"adagrad", OptimizerKind::Adagrad},
                                            {"rmsprop", OptimizerKind::RMSprop},
                                            {"nadam", OptimizerKind::NAdam},
                                            {"radam", OptimizerKind::RAdam},
                                            {"adamax", OptimizerKind::Adamax},
                                            {"watched", OptimizerKind::Watched}}};
  return kWords;
}

const Words<OptimizerImpl>& optimizer_impls() {
  static const Words<OptimizerImpl> kWords{{{"for_loop", OptimizerImpl::ForLoop},
                                            {"foreach", OptimizerImpl::Foreach},
                                            {"fused", OptimizerImpl::Fused},
                                            {"in_backward", OptimizerImpl::InBackward},
                                            {"in_backward_foreach", OptimizerImpl::InBackwardForeach}}};
  return kWords;
}

const Words<OptimizerLibrary>& optimizer_libraries() {
  static const Words<OptimizerLibrary> kWords{{{"auto", OptimizerLibrary::Auto},
                                               {"torch", OptimizerLibrary::Torch},
                                               {"transformers", OptimizerLibrary::Transformers}}};
  return kWords;
}

namespace {

constexpr const char* kNobody = "none";  // steps them

/// Of a part nothing but what its memory hangs on is said. `known`: whether the name is one of these.
Failure read_field(const Spot& field, const std::string& name, OptimizerPart& part, bool& known) {
  OptimizerOptions& options = part.options;
  known = true;
  if (name == "params") return read_texts(field, part.params);
  if (name == "impl") return read_enum(field, optimizer_impls(), options.impl);
  if (name == "library") return read_enum(field, optimizer_libraries(), options.library);
  if (name == "weight_decay") return read_number(field, 0.0, 1e6, options.weight_decay);
  if (name == "momentum") return read_number(field, 0.0, 1.0, options.momentum);
  if (name == "watched") return read_text(field, options.class_name);
  if (name == "centered") return read_bool(field, options.centered);
  if (name == "amsgrad") return read_bool(field, options.amsgrad);
  if (name == "decoupled_weight_decay") return read_bool(field, options.decoupled_weight_decay);
  if (name == "name") {
    part.steps = field.value.kind != JobValue::Kind::Text || field.value.text != kNobody;
    return part.steps ? read_enum(field, optimizer_kinds(), options.name) : Failure();
  }
  known = false;
  return {};
}

}  // namespace

Failure read_optimizer_parts(const Spot& spot, std::vector<OptimizerPart>& out) {
  static const std::vector<std::string> fields{
      "params",       "name",     "watched",  "impl",    "library",
      "weight_decay", "momentum", "centered", "amsgrad", "decoupled_weight_decay"};
  if (spot.value.kind != JobValue::Kind::Array) return spot.wrong_type("a list of tables");
  std::vector<OptimizerPart> parts;
  for (std::size_t i = 0; i < spot.value.items.size(); ++i) {
    const Spot at = spot.item(i);
    if (at.value.kind != JobValue::Kind::Table) return at.wrong_type("a table {params = [...], name = \"sgd\"}");
    OptimizerPart& part = parts.emplace_back();
    for (std::size_t k = 0; k < at.value.entries.size(); ++k) {
      bool known = false;
      if (Failure failure = read_field(at.entry(k), at.value.entries[k].name, part, known)) return failure;
      if (!known) return unknown_field(at, k, fields);
    }
    if (part.params.empty()) {
      return at.error(ErrorCode::MissingKey, "a part names the parameters that it is of", "params = [\"pattern\", ...]",
                      "as in params = [\"embedding.*\"]");
    }
  }
  out = std::move(parts);
  return {};
}

std::string optimizer_parts_text(const std::vector<OptimizerPart>& parts) {
  const OptimizerOptions usual;
  std::vector<std::string> tables;
  for (const OptimizerPart& part : parts) {
    const OptimizerOptions& of = part.options;
    std::string text = "{params = " + texts_text(part.params) + ", name = ";
    text += part.steps ? enum_text(optimizer_kinds(), of.name) : quoted_text(kNobody);
    if (!of.class_name.empty()) text += ", watched = " + quoted_text(of.class_name);
    if (of.impl != usual.impl) text += ", impl = " + enum_text(optimizer_impls(), of.impl);
    if (of.library != usual.library) text += ", library = " + enum_text(optimizer_libraries(), of.library);
    if (of.weight_decay != usual.weight_decay) text += ", weight_decay = " + number_text(of.weight_decay);
    if (of.momentum != usual.momentum) text += ", momentum = " + number_text(of.momentum);
    if (of.centered) text += ", centered = true";
    if (of.amsgrad) text += ", amsgrad = true";
    if (of.decoupled_weight_decay) text += ", decoupled_weight_decay = true";
    tables.push_back(text + "}");
  }
  return fmt::format("[{}]", fmt::join(tables, ", "));
}

}  // namespace foreshard::job_values
