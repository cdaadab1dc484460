// The facts of a model.json beside its dataflow: lifetimes, arguments of calls, checkpointed regions, opaque operators.
// Private to the reader.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/model/json_fields.h"
#include "core/model/model.h"
#include "core/model/model_json_calls.h"

namespace foreshard {

using ValueNames = std::unordered_map<std::string, ValueId>;

class FactsReader {
 public:
  /// All must outlive the reader; modules are complete before the first row, values grow as they are read.
  FactsReader(Model& model, const ModuleNames& modules, const ValueNames& values, JsonProblem& problem)
      : m_(model), module_ids_(modules), value_ids_(values), problem_(problem) {}

  /// strides, held_until, held_by of an input or a result, alias_of of an input.
  bool value(JsonFields& f, ValueInfo& value);
  /// A row of "mesh", and what a parameter is of one.
  bool dimension(const nlohmann::json& row, const std::string& place);
  bool part(JsonFields& f, ParamInfo& info);
  /// region and opaque of an operator whose results are read.
  bool op(JsonFields& f, Op& op);
  /// loss_begin, lifetimes, job, parallel, optimizers of the document.
  bool top(JsonFields& f);
  bool module_call(const nlohmann::json& row, const std::string& place);
  bool region(const nlohmann::json& row, const std::string& place);

  /// Numbers of operators and regions are those of the document. After all rows.
  bool check();

 private:
  bool module_of(const std::string& fqn, const std::string& place, ModuleId& id);
  bool value_of(const std::string& name, const std::string& place, ValueId& id);
  bool values_of(JsonFields& f, std::string_view key, std::vector<ValueId>& ids);
  bool held(JsonFields& f, Hold& hold);
  bool lifetimes(JsonFields& f);
  bool collectives(const JsonFields& f, const Op& op);
  bool releases(const JsonFields& f, const Op& op);
  bool saved(const nlohmann::json& row, const std::string& place, OpaqueOp& opaque);
  bool gradient(const nlohmann::json& row, const std::string& place, OpaqueOp& opaque);
  bool job(JsonFields& f);
  bool parallel(JsonFields& f);
  bool optimizers(JsonFields& f);
  bool step(JsonFields& f, std::string_view key, WatchedStep& step);

  Model& m_;
  const ModuleNames& module_ids_;
  const ValueNames& value_ids_;
  JsonProblem& problem_;
};

}  // namespace foreshard
