#include <algorithm>

#include "tests/oracle/fsdp2/fsdp2_trace.h"

namespace foreshard::oracle {
namespace {

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

std::optional<DType> dtype_at(const Json& object, const char* key) {
  return object.contains(key) && object.at(key).is_string() ? parse_dtype(object.at(key).get<std::string>())
                                                            : std::nullopt;
}

/// The recorded model, module by module, with the calls between them.
class ChainModel {
 public:
  ChainModel(const Json& config, Model& model) : config_(config), shape_(config.at("model")), model_(model) {}

  void build() {
    model_.name = "Chain";
    add_module("", "Chain", {});
    dtype_ = dtype_at(shape_, "dtype").value_or(DType::Float32);
    const std::int64_t d = shape_.at("d"), vocab = shape_.at("vocab");
    blocks_ = shape_.at("n_blocks");
    const ModuleId embed = add_module("embed", "Embedding", ModuleId(0));
    add_param(embed, "weight", {vocab, d});
    const ModuleId list = add_module("blocks", "ModuleList", ModuleId(0));
    for (int i = 0; i < blocks_; ++i) add_block(list, i, d);
    add_leaf("norm", d, d);
    add_leaf("head", d, vocab);
    if (shape_.value("tie", false))
      model_.params[model_.find_param("head.lin.weight").index()].shares = model_.find_param("embed.weight");
    model_.values.push_back({"ids", {2, 3}, DType::Int64, false});
    model_.inputs = {ValueId(0)};
    freeze();
    add_root_calls();
  }

 private:
  ModuleId add_module(const std::string& fqn, const std::string& cls, ModuleId parent) {
    const ModuleId id(model_.modules.size());
    ModuleInfo info;
    info.fqn = fqn;
    info.class_name = cls;
    info.parent = parent;
    model_.modules.push_back(info);
    if (parent.valid()) model_.modules[parent.index()].children.push_back(id);
    return id;
  }

  void add_param(ModuleId owner, const std::string& name, Shape shape) {
    const ParamId id(model_.params.size());
    ParamInfo info;
    info.fqn = join(model_.modules[owner.index()].fqn, name);
    info.shape = std::move(shape);
    info.dtype = dtype_;
    info.owner = owner;
    model_.params.push_back(info);
    model_.modules[owner.index()].params.push_back(id);
  }

  void add_linear(ModuleId parent, const std::string& name, std::int64_t in, std::int64_t out) {
    const ModuleId id = add_module(join(model_.modules[parent.index()].fqn, name), "Linear", parent);
    add_param(id, "weight", {out, in});
    if (shape_.value("bias", true)) add_param(id, "bias", {out});
  }

  void add_leaf(const std::string& name, std::int64_t in, std::int64_t out) {
    add_linear(add_module(name, "Leaf", ModuleId(0)), "lin", in, out);
  }

  bool wrapped(int block) const {
    const Json list = config_.value("checkpoint_wrap", Json::array());
    return std::find(list.begin(), list.end(), Json(block)) != list.end();
  }

  void add_block(ModuleId list, int index, std::int64_t d) {
    const Json& h = shape_.at("h");
    const std::int64_t hidden =
        h.is_array() ? h.at(static_cast<std::size_t>(index)).get<std::int64_t>() : h.get<std::int64_t>();
    const std::string fqn = "blocks." + std::to_string(index);
    ModuleId block = add_module(fqn, wrapped(index) ? "CheckpointWrapper" : "Block", list);
    if (wrapped(index)) {
      const ModuleId inner = add_module(fqn + "._checkpoint_wrapped_module", "Block", block);
      CallGraph graph{block, {"x"}, {}, {"y"}};
      graph.steps.push_back({CallStep::Kind::Call, inner, {"x"}, {"y"}, CheckpointKind::NonReentrant, {}});
      model_.calls.push_back(graph);
      block = inner;
    }
    add_linear(block, "lin1", d, hidden);
    add_linear(block, "lin2", hidden, d);
    if (has_inner_units(model_.modules[block.index()].fqn)) add_block_calls(block);
  }

  bool has_inner_units(const std::string& fqn) const {
    for (const Json& unit : config_.at("units")) {
      for (const Json& module : unit.at("modules")) {
        if (module.get<std::string>().starts_with(fqn + ".lin")) return true;
      }
    }
    return false;
  }

  // Only where a unit lies inside: the marks at both ends are operators of their own, as in the recorder.
  void add_block_calls(ModuleId block) {
    const std::vector<ModuleId>& children = model_.modules[block.index()].children;
    CallGraph graph{block, {"x"}, {}, {"z"}};
    graph.steps.push_back({CallStep::Kind::Add, {}, {"x"}, {"a"}, CheckpointKind::None, {}});
    graph.steps.push_back({CallStep::Kind::Call, children[0], {"a"}, {"h"}, CheckpointKind::None, {}});
    graph.steps.push_back({CallStep::Kind::Relu, {}, {"h"}, {"t"}, CheckpointKind::None, {}});
    graph.steps.push_back({CallStep::Kind::Call, children[1], {"t"}, {"y"}, CheckpointKind::None, {}});
    graph.steps.push_back({CallStep::Kind::Add, {}, {"y", "a"}, {"s"}, CheckpointKind::None, {}});
    graph.steps.push_back({CallStep::Kind::Add, {}, {"s"}, {"z"}, CheckpointKind::None, {}});
    model_.calls.push_back(graph);
  }

  /// Modules and parameters are named as before checkpoint wrappers were put in.
  bool names(const std::string& name, std::string fqn) const {
    const std::string inner = "._checkpoint_wrapped_module";
    const std::size_t at = fqn.find(inner);
    if (at != std::string::npos) fqn.erase(at, inner.size());
    return fqn == name || fqn.starts_with(name + ".");
  }

  void freeze() {
    for (const Json& name : config_.value("frozen", Json::array())) {
      for (ParamInfo& param : model_.params) {
        if (names(name.get<std::string>(), param.fqn)) param.requires_grad = false;
      }
    }
    const Json casts = config_.value("cast_params", Json::object());
    for (const auto& [name, dtype] : casts.items()) {
      for (ParamInfo& param : model_.params) {
        const std::string owner = name.substr(0, name.rfind('.'));
        if (names(name, param.fqn)) param.dtype = *parse_dtype(dtype.get<std::string>());
        if (names(owner + ".bias", param.fqn)) {
          param.dtype = *parse_dtype(dtype.get<std::string>());
          param.requires_grad = false;
        }
      }
    }
    if (shape_.value("tie", false)) {
      ParamInfo& head = model_.params[model_.find_param("head.lin.weight").index()];
      ParamInfo& embed = model_.params[model_.find_param("embed.weight").index()];
      head.requires_grad = embed.requires_grad = head.requires_grad && embed.requires_grad;
    }
  }

  void call(CallGraph& graph, const std::string& module, const char* in, const char* out,
            std::vector<std::int32_t> iterations, CheckpointKind checkpoint = CheckpointKind::None) {
    graph.steps.push_back(
        {CallStep::Kind::Call, model_.find_module(module), {in}, {out}, checkpoint, std::move(iterations)});
  }

  // One pass of each order of blocks, for the micro-batches that ask for it.
  void add_root_calls() {
    std::vector<std::pair<std::vector<int>, std::vector<std::int32_t>>> orders;
    std::int32_t micro = 0;
    std::vector<int> usual(static_cast<std::size_t>(blocks_));
    for (int i = 0; i < blocks_; ++i) usual[static_cast<std::size_t>(i)] = i;
    if (shape_.contains("order")) usual = shape_.at("order").get<std::vector<int>>();
    for (const Json& step : config_.at("steps")) {
      for (const Json& m : step.at("micro")) {
        const std::vector<int> order = m.contains("order") ? m.at("order").get<std::vector<int>>() : usual;
        auto found = std::find_if(orders.begin(), orders.end(), [&](const auto& o) { return o.first == order; });
        if (found == orders.end()) found = orders.insert(orders.end(), {order, {}});
        found->second.push_back(micro++);
      }
    }
    const Json checkpointed = shape_.value("checkpoint_call", Json::array());
    CallGraph graph{ModuleId(0), {"ids"}, {}, {"out"}};
    call(graph, "embed", "ids", "x", {});
    graph.steps.push_back(
        {CallStep::Kind::Add, {}, {"x"}, {"x"}, CheckpointKind::None, {}});  // the recorder's mark behind embed
    for (const auto& [order, micros] : orders) {
      for (int block : order) {
        const bool checkpoint = std::find(checkpointed.begin(), checkpointed.end(), Json(block)) != checkpointed.end();
        call(graph, "blocks." + std::to_string(block), "x", "x",
             orders.size() > 1 ? micros : std::vector<std::int32_t>{},
             checkpoint ? CheckpointKind::NonReentrant : CheckpointKind::None);
      }
    }
    call(graph, "norm", "x", "x", {});
    call(graph, "head", "x", "out", {});
    model_.calls.push_back(graph);
  }

  const Json& config_;
  const Json& shape_;
  Model& model_;
  DType dtype_ = DType::Float32;
  int blocks_ = 0;
};

MixedPrecision precision_of(const Json& mp) {
  MixedPrecision precision = MixedPrecision::none();
  if (!mp.is_object()) return precision;
  precision.param = dtype_at(mp, "param_dtype");
  precision.reduce = dtype_at(mp, "reduce_dtype");
  precision.output = dtype_at(mp, "output_dtype");
  if (mp.contains("cast_forward_inputs")) precision.cast_forward_inputs = mp.at("cast_forward_inputs").get<bool>();
  return precision;
}

/// What a checkpoint wrapper puts between a block and the names of its parameters.
std::string inside_wrapper(const Json& config, const std::string& module) {
  const auto wrapped = config.value("checkpoint_wrap", std::vector<int>());
  const bool any = std::any_of(wrapped.begin(), wrapped.end(),
                               [&](int block) { return module == "blocks." + std::to_string(block); });
  return any ? "_checkpoint_wrapped_module." : "";
}

void read_units(const Json& config, TraceConfig& out) {
  Job& job = out.job;
  job.fsdp.wrap.policy = WrapPolicyKind::Units;
  for (const Json& unit : config.at("units")) {
    const std::vector<std::string> modules = unit.at("modules");
    for (const std::string& module : modules) out.alias[module] = unit.at("name");
    out.unit_modules.push_back(modules.front());
    out.unit_names.push_back(unit.at("name"));
    if (!modules.front().empty()) job.fsdp.wrap.units.push_back(modules);
    UnitOverride over;
    over.units = {modules.front()};
    if (unit.contains("reshard_after_forward")) {
      const Json& value = unit.at("reshard_after_forward");
      ReshardAfterForward reshard;
      using Kind = ReshardAfterForward::Kind;
      reshard.kind = value.is_boolean() ? (value.get<bool>() ? Kind::True : Kind::False) : Kind::GroupSize;
      if (value.is_number_integer()) reshard.group_size = value;
      over.reshard_after_forward = reshard;
    }
    if (unit.contains("mp")) over.mixed_precision = precision_of(unit.at("mp"));
    const auto shard_dims = unit.value("shard_dim", std::map<std::string, std::int64_t>());
    for (const auto& [name, dim] : shard_dims) over.shard_dim[inside_wrapper(config, modules.front()) + name] = dim;
    if (over.reshard_after_forward || over.mixed_precision || !over.shard_dim.empty())
      job.fsdp.overrides.push_back(over);
  }
}

void read_job(const Json& config, TraceConfig& out) {
  Job& job = out.job;
  job.fsdp.runtime = Runtime::Fsdp2;
  job.cluster.rank = config.value("rank", 0);
  if (config.contains("mesh")) {
    const auto mesh = config.at("mesh").get<std::vector<std::int64_t>>();
    job.fsdp.strategy = Strategy::HybridShard;
    job.cluster.world_size = mesh[0] * mesh[1];
    job.cluster.shard_group = mesh[1];
  } else {
    job.cluster.world_size = config.value("world", 4);
  }
  job.fsdp.mixed_precision = precision_of(config.value("mp", Json()));
  if (config.contains("offload") && config.at("offload").is_object()) {
    job.fsdp.cpu_offload = true;
    job.fsdp.offload_pin_memory = config.at("offload").at("pin_memory");
  }
  for (const Json& name : config.value("ignored", Json::array())) job.fsdp.ignored.push_back(name);
  read_units(config, out);
  if (job.fsdp.wrap.units.empty()) job.fsdp.wrap.policy = WrapPolicyKind::None;
  const auto module_of = [&](const std::string& unit) {
    const auto found = std::find(out.unit_names.begin(), out.unit_names.end(), unit);
    return out.unit_modules.at(static_cast<std::size_t>(found - out.unit_names.begin()));
  };
  for (const char* pass : {"forward", "backward"}) {
    auto& lists = pass[0] == 'f' ? job.fsdp.prefetch.forward : job.fsdp.prefetch.backward;
    const Json named = config.value(std::string(pass) + "_prefetch", Json::object());
    for (const auto& [unit, targets] : named.items()) {
      for (const Json& target : targets) lists[module_of(unit)].push_back(module_of(target));
    }
  }
}

/// A call of the configuration as actions of a script.
void add_call(const TraceConfig& config, const Json& call, IterationScript& actions) {
  const auto found = std::find(config.unit_names.begin(), config.unit_names.end(), call.at(0).get<std::string>());
  const std::string module = config.unit_modules.at(static_cast<std::size_t>(found - config.unit_names.begin()));
  std::string method = call.at(1), args;
  for (std::size_t i = 2; i < call.size(); ++i) args += (i > 2 ? "," : "") + call.at(i).dump();
  std::vector<std::string> modules{module};
  if (method == "all_reduce_hook") {  // the recorder sets it on every unit
    method = "set_all_reduce_hook";
    modules = config.unit_modules;
  }
  for (const std::string& one : modules) {
    Action action;
    action.kind = Action::Kind::Call;
    action.unit = one;
    action.method = method;
    action.args = args;
    action.call = unit_call(method, args);
    action.text = "call:" + one + ":" + method + (args.empty() ? "" : ":" + args);
    actions.push_back(action);
  }
}

Action simple(Action::Kind kind, const char* text) {
  Action action;
  action.kind = kind;
  action.text = text;
  return action;
}

void read_micro(const TraceConfig& config, const Json& micro, IterationScript& actions) {
  for (const Json& call : micro.value("calls", Json::array())) add_call(config, call, actions);
  const bool grad = micro.value("grad", true), twice = micro.value("forward_twice", false);
  for (int i = 0; i < (twice ? 2 : 1); ++i) {
    actions.push_back(grad ? simple(Action::Kind::Forward, "fwd") : simple(Action::Kind::NoGradForward, "nograd_fwd"));
  }
  if (grad && micro.value("backward", true)) {
    actions.push_back(twice ? simple(Action::Kind::BackwardAll, "bwd_all") : simple(Action::Kind::Backward, "bwd"));
  }
  for (const Json& call : micro.value("after", Json::array())) add_call(config, call, actions);
}

}  // namespace

// Every micro-batch is an iteration of the plan, so that the steps of the graph can follow its order of blocks.
TraceConfig read_trace_config(const Json& row) {
  const Json& config = row.at("config");
  TraceConfig out;
  ChainModel(config, out.model).build();
  read_job(config, out);
  out.script.repeat = false;
  bool first = true;
  int step_number = 0;
  for (const Json& step : config.at("steps")) {
    int micro_number = 0;
    for (const Json& micro : step.at("micro")) {
      out.micro_batches.emplace_back(step_number, micro_number++);
      IterationScript actions;
      if (first) {
        for (const Json& call : config.value("calls", Json::array())) add_call(out, call, actions);
        out.setup_calls = actions.size();
        if (config.contains("inner_first"))
          add_call(out, Json::array({out.alias.at(config.at("inner_first")), "forward"}), actions);
        first = false;
      }
      read_micro(out, micro, actions);
      out.script.iterations.push_back(std::move(actions));
    }
    ++step_number;
    IterationScript& last = out.script.iterations.back();
    if (step.contains("clip") && step.at("clip").is_number()) {
      out.job.train.clip_grad_norm = step.at("clip");
      Action clip = simple(Action::Kind::Clip, "clip");
      const Json norm = step.value("clip_args", Json::object()).value("norm_type", Json(2.0));
      if (!norm.is_number() || norm.get<double>() > 1e300) clip.infinity = true;
      last.push_back(clip);
    }
    if (step.value("state_dict", false)) add_call(out, Json::array({out.unit_names.back(), "state_dict"}), last);
    if (step.value("optimizer", true)) {
      last.push_back(simple(Action::Kind::Step, "step"));
      last.push_back(simple(Action::Kind::Zero, "zero"));
    }
  }
  return out;
}

}  // namespace foreshard::oracle
