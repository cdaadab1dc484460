#include "tests/oracle/fsdp1/fsdp1_row.h"

#include <stdexcept>

#include "core/model/module_kind.h"

namespace foreshard::oracle {
namespace {

DType dtype_of(const Json& name) {
  const auto dtype = parse_dtype(name.get<std::string>());
  if (!dtype) throw std::runtime_error("unknown dtype " + name.dump());
  return *dtype;
}

/// Registration order of `modules`; aliases and sharing are applied after all modules exist.
class RowModel {
 public:
  explicit RowModel(const Json& spec) : dtype_(dtype_of(spec.value("dtype", Json("fp32")))) {
    model_.name = spec.value("name", std::string());
    for (const Json& module : spec.at("modules")) add_module(module);
    for (const Json& pair : spec.value("alias", Json::array())) add_alias(pair.at(0), pair.at(1));
    for (const Json& pair : spec.value("shared", Json::array())) share(pair.at(0), pair.at(1));
    for (const Json& arg : spec.value("args", Json::array())) {
      model_.inputs.push_back(ValueId(model_.values.size()));
      model_.values.push_back({arg.at(0), arg.at(1).get<Shape>(), dtype_of(arg.at(2)), arg.at(3)});
    }
    for (const Json& module : spec.at("modules")) {
      if (module.at("class") == "Graph") add_calls(module);
    }
  }
  Model take() { return std::move(model_); }

 private:
  ModuleId register_module(const std::string& path, const std::string& class_name) {
    const ModuleId id(model_.modules.size());
    ModuleInfo info;
    info.fqn = path;
    info.class_name = class_name;
    if (!path.empty()) {
      const std::size_t dot = path.rfind('.');
      info.parent = model_.find_module(dot == std::string::npos ? "" : path.substr(0, dot));
      if (!info.parent.valid()) throw std::runtime_error("a module without its parent: " + path);
      model_.modules[info.parent.index()].children.push_back(id);
    }
    model_.modules.push_back(std::move(info));
    return id;
  }
  void register_param(ModuleId owner, ParamInfo info) {
    model_.modules[owner.index()].params.push_back(ParamId(model_.params.size()));
    info.owner = owner;
    model_.params.push_back(std::move(info));
  }
  void add_module(const Json& module) {
    const std::string path = module.at("path");
    const ModuleId id = register_module(path, module.at("class"));
    const DType dtype = module.contains("dtype") ? dtype_of(module.at("dtype")) : dtype_;
    for (const Json& param : module.value("params", Json::array())) {
      const std::string fqn = (path.empty() ? "" : path + ".") + param.at(0).get<std::string>();
      register_param(id, {fqn, param.at(1).get<Shape>(), dtype, param.at(2), {}, {}});
    }
  }
  void add_alias(const std::string& path, const std::string& of) {
    const ModuleId object = model_.find_module(of);
    const ModuleId id = register_module(path, model_.modules.at(object.index()).class_name);
    model_.modules[id.index()].alias_of = object;
    for (ParamId param : std::vector<ParamId>(model_.modules[object.index()].params)) {
      ParamInfo info = model_.params[param.index()];
      info.fqn = path + info.fqn.substr(of.size());
      info.shares = model_.storage_of(param);
      register_param(id, std::move(info));
    }
    for (ModuleId child : std::vector<ModuleId>(model_.modules[object.index()].children)) {
      const std::string below = model_.modules[child.index()].fqn;
      add_alias(path + below.substr(of.size()), below);
    }
  }
  void share(const std::string& later, const std::string& first) {
    const ParamId a = model_.find_param(later), b = model_.find_param(first);
    if (!a.valid() || !b.valid()) throw std::runtime_error("shared names that do not exist: " + later + ", " + first);
    model_.params[a.index()].shares = model_.storage_of(b);
  }
  void add_calls(const Json& module) {
    const std::string path = module.at("path");
    CallGraph graph;
    graph.module = model_.find_module(path);
    graph.inputs = module.at("inputs").get<std::vector<std::string>>();
    graph.outputs = module.at("outputs").get<std::vector<std::string>>();
    for (const Json& step : module.at("steps")) graph.steps.push_back(step_of(path, step));
    model_.calls.push_back(std::move(graph));
  }
  CallStep step_of(const std::string& path, const Json& json) {
    CallStep step;
    step.out = {json.at(0).get<std::string>()};
    step.in = json.at(2).get<std::vector<std::string>>();
    if (json.size() > 3) step.iterations = json.at(3).get<std::vector<std::int32_t>>();
    const std::string op = json.at(1);
    const std::size_t colon = op.find(':');
    const std::string kind = op.substr(0, colon);
    if (colon != std::string::npos) {
      step.module = model_.find_module((path.empty() ? "" : path + ".") + op.substr(colon + 1));
      if (!step.module.valid()) throw std::runtime_error("a step calls an unknown module: " + op);
      const ModuleInfo& module = model_.modules[step.module.index()];
      step.autograd = autograd_of(module);  // and the recorder's own layers:
      if (module.class_name == "Scale") step.autograd = LeafAutograd::Scale;
      if (module.class_name == "Cross") step.autograd = LeafAutograd::LinearTimes;
    }
    if (kind == "ckpt_nr") step.checkpoint = CheckpointKind::NonReentrant;
    if (kind == "ckpt_r") step.checkpoint = CheckpointKind::Reentrant;
    if (kind == "add") step.kind = CallStep::Kind::Add;
    if (kind == "relu") step.kind = CallStep::Kind::Relu;
    if (kind == "detach") step.kind = CallStep::Kind::Detach;
    if (kind == "id") step.kind = CallStep::Kind::Identity;
    return step;
  }

  DType dtype_;
  Model model_;
};

MixedPrecision precision_of(const Json& json) {
  MixedPrecision precision = MixedPrecision::none();
  if (!json.is_object()) return precision;
  const auto dtype = [&](const char* key) {
    return json.contains(key) && json.at(key).is_string() ? std::optional(dtype_of(json.at(key))) : std::nullopt;
  };
  precision.param = dtype("param_dtype");
  precision.reduce = dtype("reduce_dtype");
  precision.buffer = dtype("buffer_dtype");
  precision.keep_low_precision_grads = json.value("keep_low_precision_grads", false);
  return precision;
}

BackwardPrefetch prefetch_of(const std::string& text) {
  return text == "PRE" ? BackwardPrefetch::Pre : text == "POST" ? BackwardPrefetch::Post : BackwardPrefetch::None;
}

UnitOverride override_of(const std::string& unit, const Json& json) {
  UnitOverride change;
  change.units = {unit == "R" ? "" : unit};
  if (json.contains("strategy")) change.strategy = parse_strategy(json.at("strategy").get<std::string>());
  if (json.contains("mixed_precision")) change.mixed_precision = precision_of(json.at("mixed_precision"));
  if (json.contains("backward_prefetch")) change.backward_prefetch = prefetch_of(json.at("backward_prefetch"));
  return change;
}

}  // namespace

Model model_of_row(const Json& spec) { return RowModel(spec).take(); }

Job job_of_row(const Json& row) {
  const Json& options = row.at("options");
  Job job;
  FsdpOptions& fsdp = job.fsdp;
  fsdp.runtime = Runtime::Fsdp1;
  fsdp.strategy = parse_strategy(options.value("strategy", std::string("FULL_SHARD"))).value();
  fsdp.backward_prefetch = prefetch_of(options.value("backward_prefetch", std::string("PRE")));
  fsdp.forward_prefetch = options.value("forward_prefetch", false);
  fsdp.limit_all_gathers = options.value("limit_all_gathers", true);
  fsdp.use_orig_params = options.value("use_orig_params", false);
  fsdp.cpu_offload = options.value("cpu_offload", false);
  fsdp.mixed_precision = precision_of(options.value("mixed_precision", Json()));
  fsdp.wrap.policy = row.at("units").empty() ? WrapPolicyKind::None : WrapPolicyKind::Units;
  for (const Json& unit : row.at("units")) fsdp.wrap.units.push_back({unit.get<std::string>()});
  const Json per_unit = row.value("per_unit", Json::object());
  for (const auto& [unit, json] : per_unit.items()) fsdp.overrides.push_back(override_of(unit, json));
  // The other toggles of the environment change no instruction (H16).
  fsdp.full_precision_in_eval =
      row.value("env", Json::object()).value("FSDP_USE_FULL_PREC_IN_EVAL", std::string("0")) == "1";
  job.cluster.world_size = row.at("W");
  job.cluster.ranks_per_node = row.at("W");
  job.cluster.rank = row.value("rank", 0);
  job.cluster.shard_group = options.value("shard_group_size", std::int64_t{0});
  for (const Json& actions : row.at("iterations")) {
    std::vector<std::string> texts;
    for (const Json& action : actions) {
      const std::string text = action;
      texts.push_back(text == "unshard:R" ? "unshard:" : text);
    }
    job.train.script.push_back(std::move(texts));
  }
  return job;
}

}  // namespace foreshard::oracle
