#include "core/model/model_json_calls.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/model/json_input.h"
#include "core/model/module_kind.h"

namespace foreshard {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kHintWords = 2000;  // names compared for a hint

std::optional<CallStep::Kind> operator_kind(std::string_view word) {
  if (word == "add") return CallStep::Kind::Add;
  if (word == "relu") return CallStep::Kind::Relu;
  if (word == "detach") return CallStep::Kind::Detach;
  if (word == "identity") return CallStep::Kind::Identity;
  return std::nullopt;
}

}  // namespace

std::string nearest_module_hint(const Model& model, std::string_view name) {
  std::vector<std::string_view> known;
  for (std::size_t i = 0; i < std::min(model.modules.size(), kHintWords); ++i) known.push_back(model.modules[i].fqn);
  const std::string nearest = nearest_word(name, known);
  return nearest.empty() ? std::string() : "did you mean " + in_quotes(nearest) + "?";
}

CallGraph* CallsReader::root() {
  const auto it =
      std::find_if(m_.calls.begin(), m_.calls.end(), [](const CallGraph& graph) { return graph.module.index() == 0; });
  return it == m_.calls.end() ? nullptr : &*it;
}

bool CallsReader::set_outputs(const std::vector<std::string>& names, bool must_be_made) {
  CallGraph* graph = root();
  if (graph == nullptr) return true;
  if (!container_order_.contains(0)) graph->outputs = names;
  return !must_be_made || values_in_order(*graph, true);
}

bool CallsReader::call(const Json& row, const std::string& place) {
  JsonFields f(row, place, problem_, {"in_module", "out", "call", "op", "in", "checkpoint", "iterations", "autograd"});
  if (!f.good()) return false;
  CallStep step;
  const std::string container = f.text_or("in_module", "");
  const std::string callee = f.text_or("call", "");
  const std::string word = f.text_or("op", "");
  step.in = f.text_or_texts("in");
  step.out = f.text_or_texts("out");
  if (!f.good()) return false;
  CallGraph* graph = nullptr;
  if (!graph_of(container, f.place("in_module"), graph)) return false;
  if (f.has("call") == f.has("op")) {
    return problem_.set(ErrorCode::Inconsistent, place, "a step either calls a module or is a plain operator",
                        "\"call\" or \"op\"", f.has("call") ? "both" : "neither");
  }
  if (step.out.empty())
    return problem_.set(ErrorCode::MissingKey, f.place("out"), "a step makes at least one value", "a name", "none");
  const bool known =
      f.has("op") ? plain_operator(word, step, f.place("op")) : called_module(container, callee, step, f.place("call"));
  if (!known || !checkpoint(f, step) || !iterations(f, step) || !autograd(f, step)) return false;
  graph->steps.push_back(std::move(step));
  return true;
}

bool CallsReader::graph_of(const std::string& fqn, const std::string& place, CallGraph*& graph) {
  const auto it = module_ids_.find(fqn);
  if (it == module_ids_.end()) {
    return problem_.set(ErrorCode::Inconsistent, place, "no module " + in_quotes(fqn) + " is listed", "a listed module",
                        in_quotes(fqn), nearest_module_hint(m_, fqn));
  }
  const auto [slot, fresh] = graph_ids_.emplace(it->second.value, m_.calls.size());
  if (fresh) m_.calls.push_back({it->second, {}, {}, {}});
  graph = &m_.calls[slot->second];
  return true;
}

bool CallsReader::plain_operator(const std::string& word, CallStep& step, const std::string& place) {
  const auto kind = operator_kind(word);
  if (!kind)
    return problem_.set(ErrorCode::OutOfRange, place, "this is no plain operator", "add, relu, detach or identity",
                        in_quotes(word));
  step.kind = *kind;
  const std::size_t least = word == "add" ? 2 : 1;
  if (step.in.size() < least || (word != "add" && step.in.size() != 1)) {
    return problem_.set(ErrorCode::Inconsistent, place, in_quotes(word) + " takes another number of values",
                        std::to_string(least), std::to_string(step.in.size()));
  }
  return true;
}

/// The fully qualified name, or the name inside the container; a plain operator's word where no module has it.
bool CallsReader::called_module(const std::string& container, const std::string& callee, CallStep& step,
                                const std::string& place) {
  const auto whole = module_ids_.find(callee);
  const auto inside = container.empty() ? module_ids_.end() : module_ids_.find(container + "." + callee);
  if (whole == module_ids_.end() && inside == module_ids_.end()) {
    if (operator_kind(callee)) return plain_operator(callee, step, place);
    return problem_.set(ErrorCode::Inconsistent, place, "no module " + in_quotes(callee) + " is listed",
                        "a listed module, or add, relu, detach, identity", in_quotes(callee),
                        nearest_module_hint(m_, callee));
  }
  if (whole != module_ids_.end() && inside != module_ids_.end() && !callee.starts_with(container + ".")) {
    return problem_.set(ErrorCode::Inconsistent, place,
                        "two modules could be meant: " + in_quotes(callee) + " and " + in_quotes(inside->first),
                        "the fully qualified name of one inside the container", in_quotes(callee),
                        "write " + in_quotes(inside->first));
  }
  step.kind = CallStep::Kind::Call;
  step.module = whole != module_ids_.end() ? whole->second : inside->second;
  return true;
}

bool CallsReader::checkpoint(JsonFields& f, CallStep& step) {
  const std::string word = f.text_or("checkpoint", "none");
  if (word == "non_reentrant") step.checkpoint = CheckpointKind::NonReentrant;
  if (word == "reentrant") step.checkpoint = CheckpointKind::Reentrant;
  if (f.good() && step.checkpoint == CheckpointKind::None && word != "none") {
    return f.problem().set(ErrorCode::OutOfRange, f.place("checkpoint"), "this is no kind of checkpointing",
                           "none, non_reentrant or reentrant", in_quotes(word));
  }
  return f.good();
}

bool CallsReader::iterations(JsonFields& f, CallStep& step) {
  const Json* list = f.array("iterations");
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const Json& number = (*list)[i];
    if (!number.is_number_integer() || number < 0 || number > kMaxCount) {
      return f.problem().set(ErrorCode::OutOfRange, f.place("iterations"), "an iteration is out of range",
                             "integers of 0 or more", describe_json(number));
    }
    step.iterations.push_back(number.get<std::int32_t>());
  }
  return f.good();
}

bool CallsReader::autograd(JsonFields& f, CallStep& step) {
  static constexpr std::pair<std::string_view, LeafAutograd> kWords[] = {
      {"opaque", LeafAutograd::Opaque},        {"linear", LeafAutograd::Linear},
      {"scale", LeafAutograd::Scale},          {"embedding", LeafAutograd::Embedding},
      {"layer_norm", LeafAutograd::LayerNorm}, {"linear_times", LeafAutograd::LinearTimes}};
  const std::string word = f.text_or("autograd", "");
  if (!f.good()) return false;
  if (!f.has("autograd")) {
    if (!step.module.valid()) return true;
    const ModuleInfo& called = m_.modules[step.module.index()];
    const ModuleInfo& module = called.alias_of.valid() ? m_.modules[called.alias_of.index()] : called;
    step.autograd = autograd_of(module);
    if (told_by_class && module.class_name == "Scale") step.autograd = LeafAutograd::Scale;
    if (told_by_class && module.class_name == "Cross") step.autograd = LeafAutograd::LinearTimes;
    return true;
  }
  for (const auto& [known, value] : kWords) {
    if (word != known) continue;
    step.autograd = value;
    return true;
  }
  return f.problem().set(ErrorCode::OutOfRange, f.place("autograd"), "a leaf does not do that to autograd",
                         "opaque, linear, scale, embedding, layer_norm or linear_times", in_quotes(word));
}

bool CallsReader::container(const Json& row, const std::string& place) {
  JsonFields f(row, place, problem_, {"fqn", "inputs", "outputs"});
  if (!f.good()) return false;
  const std::string fqn = f.text("fqn");
  CallGraph* graph = nullptr;
  if (!f.good() || !graph_of(fqn, f.place("fqn"), graph)) return false;
  if (!container_order_.emplace(graph->module.value, container_order_.size()).second) {
    return problem_.set(ErrorCode::Inconsistent, f.place("fqn"), "the container " + in_quotes(fqn) + " is listed twice",
                        "one entry", in_quotes(fqn));
  }
  graph->inputs = f.texts("inputs");
  graph->outputs = f.texts("outputs");
  return f.good();
}

bool CallsReader::check() {
  if (m_.calls.empty()) return true;
  std::stable_sort(m_.calls.begin(), m_.calls.end(),
                   [&](const CallGraph& a, const CallGraph& b) { return order_of(a) < order_of(b); });
  for (CallGraph& graph : m_.calls) {
    const bool listed = container_order_.contains(graph.module.value);
    const bool root = graph.module.index() == 0;
    if (root && !listed) {
      for (const ValueId id : m_.inputs) graph.inputs.push_back(m_.values[id.index()].name);
    }
    if (!values_in_order(graph, root || listed)) return false;
    if (!listed && !root) graph.outputs = graph.steps.back().out;
  }
  return no_recursion();
}

std::size_t CallsReader::order_of(const CallGraph& graph) const {
  const auto it = container_order_.find(graph.module.value);
  return it == container_order_.end() ? container_order_.size() : it->second;
}

/// `closed`: its inputs are given. Otherwise names that no step makes are its inputs, in order of use.
bool CallsReader::values_in_order(CallGraph& graph, bool closed) {
  std::unordered_map<std::string, int> made;  // 1 = made by now, 0 = by a later step
  const std::string& name = m_.modules[graph.module.index()].fqn;
  for (const CallStep& step : graph.steps) {
    for (const std::string& value : step.out) made.emplace(value, 0);
  }
  for (const std::string& value : graph.inputs) made[value] = 1;
  const auto use = [&](const std::string& value, const std::string& where) {
    const auto it = made.find(value);
    if (it != made.end() && it->second == 1) return true;
    if (it == made.end() && !closed) {
      graph.inputs.push_back(value);
      made[value] = 1;
      return true;
    }
    return problem_.set(ErrorCode::Inconsistent, "calls",
                        "the value " + in_quotes(value) + " is used " + where + " before it is made",
                        "an input of " + in_quotes(name) + ", or the result of an earlier step",
                        it == made.end() ? "a name nobody makes" : "a name made later");
  };
  for (const CallStep& step : graph.steps) {
    for (const std::string& value : step.in) {
      if (!use(value, step.module.valid() ? "by the call of " + in_quotes(m_.modules[step.module.index()].fqn)
                                          : std::string("by an operator")))
        return false;
    }
    for (const std::string& value : step.out) made[value] = 1;
  }
  for (const std::string& value : graph.outputs) {
    if (!use(value, "as a result of " + in_quotes(name))) return false;
  }
  return true;
}

bool CallsReader::no_recursion() {
  std::vector<int> state(m_.modules.size(), 0);             // 1 = being walked, 2 = done
  std::vector<std::pair<std::int32_t, std::size_t>> stack;  // module, next step
  const auto enter = [&](ModuleId id) {
    const ModuleId alias = m_.modules[id.index()].alias_of;
    const std::int32_t module = alias.valid() ? alias.value : id.value;
    if (state[static_cast<std::size_t>(module)] == 1) {
      return problem_.set(ErrorCode::Inconsistent, "calls",
                          "the module " + in_quotes(m_.modules[static_cast<std::size_t>(module)].fqn) + " calls itself",
                          "calls that lead downwards", "a circle of calls");
    }
    if (state[static_cast<std::size_t>(module)] == 0) {
      state[static_cast<std::size_t>(module)] = 1;
      stack.emplace_back(module, 0);
    }
    return true;
  };
  std::unordered_map<std::int32_t, const CallGraph*> graph_of_module;  // sorting has moved them
  for (const CallGraph& graph : m_.calls) graph_of_module[graph.module.value] = &graph;
  for (const CallGraph& graph : m_.calls) {
    if (state[graph.module.index()] == 0 && !enter(graph.module)) return false;
    while (!stack.empty()) {
      const std::int32_t module = stack.back().first;
      const auto it = graph_of_module.find(module);
      if (it == graph_of_module.end() || stack.back().second >= it->second->steps.size()) {
        state[static_cast<std::size_t>(module)] = 2;
        stack.pop_back();
        continue;
      }
      const CallStep& step = it->second->steps[stack.back().second++];
      if (step.module.valid() && !enter(step.module)) return false;
    }
  }
  return true;
}

}  // namespace foreshard
