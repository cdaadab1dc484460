// fsdp1-wrapping: which modules every wrap policy selects, in build order, with the elements per unit, overrides and
// errors. Rows `tree:NAME` define the trees that other rows name.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "core/plan/units/unit_params.h"
#include "core/plan/units/wrap_policy.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {
namespace {

/// A row's tree as a Model. Aliases follow the modules registered once, in the order in which they are listed.
class TreeBuilder {
 public:
  explicit TreeBuilder(const Json& row) {
    for (const auto& [name, bases] : row.at("base_classes").items())
      bases_[name] = bases.get<std::vector<std::string>>();
    for (const Json& module : row.at("modules")) add_module(module.at(0), module.at(1));
    for (const Json& pair : row.at("alias")) add_alias(pair.at(0), pair.at(1));
    for (const Json& module : row.at("modules")) add_params(module);
    for (const Json& pair : row.at("shared")) {
      model_.params[model_.find_param(pair.at(0).get<std::string>()).index()].shares =
          model_.find_param(pair.at(1).get<std::string>());
    }
  }
  Model take() { return std::move(model_); }

 private:
  ModuleId add_module(const std::string& path, const std::string& class_name) {
    const ModuleId id(model_.modules.size());
    ModuleInfo info;
    info.fqn = path;
    info.class_name = class_name;
    if (bases_.contains(class_name)) info.bases = bases_[class_name];
    if (!path.empty()) {
      const std::size_t dot = path.rfind('.');
      info.parent = model_.find_module(dot == std::string::npos ? "" : path.substr(0, dot));
      if (!info.parent.valid()) throw std::runtime_error("a module without its parent: " + path);
      model_.modules[info.parent.index()].children.push_back(id);
    }
    model_.modules.push_back(std::move(info));
    return id;
  }
  void add_alias(const std::string& path, const std::string& of) {
    const ModuleId object = model_.find_module(of);
    const ModuleId id = add_module(path, model_.modules.at(object.index()).class_name);
    model_.modules[id.index()].alias_of = object;
  }
  void add_params(const Json& module) {
    const std::string path = module.at(0);
    const ModuleId owner = model_.find_module(path);
    for (const Json& param : module.at(2)) {
      ParamInfo info;
      info.fqn = (path.empty() ? "" : path + ".") + param.at(0).get<std::string>();
      info.shape = param.at(1).get<Shape>();
      info.requires_grad = param.at(2);
      info.owner = owner;
      model_.modules[owner.index()].params.push_back(ParamId(model_.params.size()));
      model_.params.push_back(std::move(info));
    }
  }

  Model model_;
  std::map<std::string, std::vector<std::string>> bases_;
};

std::vector<std::string> strings(const Json& row, const char* key, std::vector<std::string> otherwise = {}) {
  return row.contains(key) ? row.at(key).get<std::vector<std::string>>() : std::move(otherwise);
}

FunctionPolicy function_policy(const Json& policy) {
  const std::string kind = policy.at("kind");
  if (kind == "size") {
    const SizePolicy usual;
    return {SizePolicy{policy.at("min"), strings(policy, "force_leaf", usual.force_leaf),
                       strings(policy, "exclude", usual.exclude)}};
  }
  if (kind == "always") return {AlwaysPolicy{}};
  if (kind == "transformer") return {ClassFunctionPolicy{strings(policy, "classes")}};
  if (kind == "lambda") {
    return {LambdaPolicy{[paths = strings(policy, "paths")](const ModuleInfo& module) {
      return std::find(paths.begin(), paths.end(), module.fqn) != paths.end();
    }}};
  }
  if (kind != "or") throw std::runtime_error("unknown policy " + kind);
  OrPolicy any;
  for (const Json& one : policy.at("of")) any.any_of.push_back(function_policy(one));
  return {std::move(any)};
}

/// A JSON value as Python's str() prints it.
std::string python_text(const Json& value) {
  if (value.is_null()) return "None";
  if (value.is_string()) return value.get<std::string>();
  return value.dump();
}

CustomAnswer custom_answer(const Json& value) {
  if (value.is_boolean()) return {value.get<bool>() ? CustomAnswer::Kind::Yes : CustomAnswer::Kind::No, {}, {}};
  if (!value.is_object()) return {CustomAnswer::Kind::Invalid, {}, python_text(value)};
  CustomAnswer answer{CustomAnswer::Kind::Overrides, {}, {}};
  for (const auto& [name, option] : value.items()) answer.overrides[name] = option.dump();
  return answer;
}

WrapPolicy wrap_policy(const Json& policy) {
  const std::string kind = policy.at("kind");
  if (kind == "module_class") return ModuleWrapPolicy{strings(policy, "classes")};
  if (kind != "custom") return function_policy(policy);
  return CustomPolicy{
      [map = policy.at("map"), otherwise = policy.value("default", Json(false))](const ModuleInfo& module) {
        return custom_answer(map.contains(module.fqn) ? map.at(module.fqn) : otherwise);
      }};
}

/// What the recorder leaves out of an override because it equals the arguments it wraps with.
bool is_recorders_default(const std::string& option, const std::string& value) {
  static const std::map<std::string, std::string> kDefaults{
      {"mixed_precision", "null"}, {"use_orig_params", "true"}, {"auto_wrap_policy", "null"}};
  const auto found = kDefaults.find(option);
  return found != kDefaults.end() && found->second == value;
}

/// The recorder counts a tensor at its first registration, in the unit nearest to it: what units hold when built from
/// inside.
Json unit_numel(const Model& model, const ModuleTree& tree, const WrapResult& wrapped) {
  std::vector<std::string> order{""};
  std::map<std::string, Numel> numel{{"", 0}};
  for (const WrappedModule& unit : wrapped.wrapped) {
    const std::string& fqn = model.modules[unit.module.index()].fqn;
    if (numel.emplace(fqn, 0).second) order.push_back(fqn);
  }
  for (ModuleId module : objects_below(tree, ModuleId(std::size_t{0}))) {
    ModuleId unit = module;
    while (!numel.contains(model.modules[unit.index()].fqn)) unit = model.modules[unit.index()].parent;
    for (ParamId param : model.modules[module.index()].params) {
      if (!model.params[param.index()].shares.valid())
        numel[model.modules[unit.index()].fqn] += numel_of(model.params[param.index()].shape);
    }
  }
  Json result = Json::object();
  for (const std::string& fqn : order) result[fqn] = numel[fqn];
  return result;
}

std::vector<bool> ignored_modules(const Model& model, const ModuleTree& tree, const std::vector<std::string>& paths) {
  std::vector<bool> ignored(model.modules.size());
  for (const std::string& path : paths) {
    for (ModuleId module : objects_below(tree, model.find_module(path))) ignored[module.index()] = true;
  }
  return ignored;
}

Json compute(const Model& model, const Json& row) {
  const auto tree = build_module_tree(model);
  if (!tree) throw std::runtime_error(to_text(tree.error()));
  const auto paths = strings(row, "ignored");
  WrapRequest request{model, *tree, ignored_modules(model, *tree, paths), {}, {}, false};
  request.ignored_params.resize(model.params.size());
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    if (!request.ignored_modules[m]) continue;
    for (ParamId param : model.modules[m].params) request.ignored_params[model.storage_of(param).index()] = true;
  }
  const auto wrapped = apply_wrap_policy(wrap_policy(row.at("policy")), request);
  if (!wrapped) {
    const bool value =
        wrapped.error().code == ErrorCode::WrongType;  // Python: ValueError; a wrapper met again is an assertion
    return {{"error", {value ? "ValueError" : "AssertionError", value ? wrapped.error().message.substr(0, 160) : ""}}};
  }
  Json result = {{"wrapped", Json::array()}};
  Json overrides = Json::object();
  for (const WrappedModule& unit : wrapped->wrapped) {
    const std::string& fqn = model.modules[unit.module.index()].fqn;
    result["wrapped"].push_back(fqn);
    for (const auto& [name, value] : unit.overrides) {
      if (!is_recorders_default(name, value)) overrides[fqn][name] = Json::parse(value);
    }
  }
  if (!overrides.empty()) result["overrides"] = std::move(overrides);
  const bool aliased =
      std::any_of(model.modules.begin(), model.modules.end(), [](const ModuleInfo& m) { return m.alias_of.valid(); });
  if (paths.empty() && !aliased) result["unit_numel"] = unit_numel(model, *tree, *wrapped);
  return result;
}

/// Compares as values: the order of an object's keys is not a fact.
RowResult compare(const Json& row, const Json& got) {
  RowResult result;
  const auto patch = nlohmann::json::diff(nlohmann::json(row.at("result")), nlohmann::json(got));
  if (patch.empty()) return result;
  const std::string at = patch[0].at("path");
  const auto pointer = nlohmann::json::json_pointer(at);
  const nlohmann::json expected = row.at("result"), ours = got;
  const bool ends = at.ends_with("/-");
  result.verdict = Verdict::Fail;
  result.place = "result" + at;
  result.expected = !ends && expected.contains(pointer) ? expected.at(pointer).dump() : "nothing";
  result.got =
      !ends && ours.contains(pointer) ? ours.at(pointer).dump() : patch[0].value("value", nlohmann::json()).dump();
  result.detail = fmt::format("expected {}\ngot      {}", expected.dump(), ours.dump());
  return result;
}

Report run(const std::vector<std::string>& files, const Options& options) {
  std::map<std::string, Model> trees;
  for (const std::string& file : files) {
    for (const Json& row : read_rows(file)) {
      const std::string id = row.at("id");
      if (id.starts_with("tree:")) trees[id.substr(5)] = TreeBuilder(row).take();
    }
  }
  return for_each_row(files, options, [&](const Json& row) -> RowResult {
    const std::string id = row.at("id");
    if (id.starts_with("tree:")) {
      const auto tree = build_module_tree(trees.at(id.substr(5)));
      return tree ? RowResult{} : RowResult{{}, Verdict::Fail, "tree", "a module tree", to_text(tree.error()), {}};
    }
    const auto tree = trees.find(row.at("tree").get<std::string>());
    if (tree == trees.end()) return {{}, Verdict::Skip, {}, {}, {}, "its tree is in none of the files"};
    return compare(row, compute(tree->second, row));
  });
}

ORACLE_KIND("fsdp1-wrapping", run);

}  // namespace
}  // namespace foreshard::oracle
