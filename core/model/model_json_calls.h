// The dataflow of module calls in a model.json: rows of "calls" and "containers". Private to the reader.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/model/json_fields.h"
#include "core/model/model.h"

namespace foreshard {

using ModuleNames = std::unordered_map<std::string, ModuleId>;

/// A hint that names the module whose name is nearest; empty if none is.
std::string nearest_module_hint(const Model& model, std::string_view name);

class CallsReader {
 public:
  /// All three must outlive the reader; `names` and the model's modules are complete before the first row.
  CallsReader(Model& model, const ModuleNames& names, JsonProblem& problem)
      : m_(model), module_ids_(names), problem_(problem) {}

  bool call(const nlohmann::json& row, const std::string& place);
  bool container(const nlohmann::json& row, const std::string& place);

  /// Fills in what was left out, checks that values are made before they are used, and that no module calls itself.
  bool check();

  /// The model's outputs by name: the root's results, unless its container is listed with its own.
  bool set_outputs(const std::vector<std::string>& names, bool must_be_made);

  CallGraph* root();

  /// Version 1 has no word for what a leaf does to autograd: its classes say it.
  bool told_by_class = false;

 private:
  bool graph_of(const std::string& fqn, const std::string& place, CallGraph*& graph);
  bool plain_operator(const std::string& word, CallStep& step, const std::string& place);
  bool called_module(const std::string& container, const std::string& callee, CallStep& step, const std::string& place);
  static bool checkpoint(JsonFields& f, CallStep& step);
  static bool iterations(JsonFields& f, CallStep& step);
  bool autograd(JsonFields& f, CallStep& step);
  std::size_t order_of(const CallGraph& graph) const;
  bool values_in_order(CallGraph& graph, bool closed);
  bool no_recursion();

  Model& m_;
  const ModuleNames& module_ids_;
  JsonProblem& problem_;
  std::unordered_map<std::int32_t, std::size_t> graph_ids_;  // by module: index in Model::calls while rows are read
  std::unordered_map<std::int32_t, std::size_t> container_order_;  // by module: place among the listed containers
};

}  // namespace foreshard
