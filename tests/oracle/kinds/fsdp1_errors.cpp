// fsdp1-errors: PyTorch's negative tests, each retold as a scenario for the planner: the same outcome, rule and facts;
// texts are ours. One long file on purpose: a list of scenarios, read beside the recorder's list of cases.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "core/plan/actions/build_actions.h"
#include "core/plan/actions/state_dict.h"
#include "core/plan/build_plan.h"
#include "core/plan/units/groups.h"
#include "core/plan/units/instances.h"
#include "core/plan/units/module_tree.h"
#include "core/plan/units/unit_options.h"
#include "core/plan/units/wrap_policy.h"
#include "tests/oracle/fsdp1/fsdp1_row.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {
namespace {

/// What the planner said. An error is one of build_units (ValueError in PyTorch's words) or the plan's failure.
struct Answer {
  bool error = false;
  std::string error_class = {};
  std::string text = {};  // of the refusal; names its rule, as warnings do
  std::vector<std::string> warnings = {};
  Json value = {};           // all the facts that the row states
  std::string skipped = {};  // why there is no scenario
};

Json linear(const std::string& path, const Json& params) {
  return {{"path", path}, {"class", "Linear"}, {"params", params}};
}

Json step(const std::string& out, const std::string& name, const std::string& in) {
  return Json::array({out, "call:" + name, Json::array({in})});
}

Json model_json(const std::vector<Json>& steps, const std::string& output, std::vector<Json> modules,
                const std::string& root_class = "Graph") {
  Json root = {{"path", ""}, {"class", root_class}};
  if (root_class == "Graph") {
    root["inputs"] = {"x"};
    root["steps"] = steps;
    root["outputs"] = {output};
  }
  modules.insert(modules.begin(), root);
  Json args = Json::array();
  args.push_back({"x", {2, 2}, "fp32", false});
  return {{"name", "case"}, {"dtype", "fp32"}, {"args", args}, {"modules", modules}};
}

Json weight(std::int64_t out, std::int64_t in, bool trainable = true) {
  Json params = Json::array();
  params.push_back({"weight", {out, in}, trainable});
  return params;
}

/// embed, B0, B1, B2, head: the recorder's usual model.
Json chain() {
  return model_json({step("a", "embed", "x"), step("b", "B0", "a"), step("c", "B1", "b"), step("d", "B2", "c"),
                     step("y", "head", "d")},
                    "y",
                    {linear("embed", weight(10, 2)), linear("B0", weight(10, 10)), linear("B1", weight(10, 10)),
                     linear("B2", weight(10, 10)), linear("head", weight(2, 10))});
}

/// One module whose own parameters are these.
Json parameters(const Json& params) {
  Json model = model_json({}, "x", {}, "Leaf");
  model["modules"][0]["params"] = params;
  return model;
}

struct Case {
  Json model = chain();
  Json units = {"B0", "B1", "B2"};
  Json options = Json::object();
  std::vector<std::vector<std::string>> iterations = {{"fwd"}};
  std::int64_t world_size = 4;
  std::function<void(Model&, Job&)> adjust = nullptr;
  std::function<Json(const Model&, const UnitTable&)> table_facts = nullptr;
  std::function<Json(const Plan&)> plan_facts = nullptr;
  bool units_only = false;
};

Answer ask(const Case& c) {
  Answer answer;
  Model model = model_of_row(c.model);
  const Json row = {{"W", c.world_size}, {"units", c.units}, {"options", c.options}, {"iterations", c.iterations}};
  Job job = job_of_row(row);
  if (c.adjust) c.adjust(model, job);
  const auto refuse = [&](const Error& error) {
    answer.error = true;
    answer.error_class = "ValueError";
    answer.text = to_text(error);
    return answer;
  };
  const auto table = build_units(model, job);
  if (!table) return refuse(table.error());
  answer.warnings = table->warnings;
  if (c.table_facts) answer.value = c.table_facts(model, *table);
  if (c.units_only) return answer;
  const auto script = script_of(job);
  const auto graph = build_module_graph(model, {}, {});
  if (!script || !graph) return refuse(script ? graph.error() : script.error());
  const auto plan = build_fsdp1_plan({model, job, *table, *graph, *script});
  if (!plan) return refuse(plan.error());
  answer.warnings = plan->warnings;
  answer.error = plan->failure.has_value();
  if (plan->failure) answer.error_class = plan->failure->error_class;
  if (plan->failure) answer.text = plan->failure->text;
  if (c.plan_facts) answer.value = c.plan_facts(*plan);
  return answer;
}

Answer scripted(std::vector<std::string> actions, Json options = Json::object()) {
  return ask({.options = std::move(options), .iterations = {std::move(actions)}});
}

Answer flat(const Json& params, bool original = false, const std::function<void(Model&, Job&)>& adjust = nullptr) {
  return ask({.model = parameters(params),
              .units = Json::array(),
              .options = {{"use_orig_params", original}},
              .adjust = adjust,
              .units_only = true});
}

Json params_of(std::initializer_list<Json> list) {
  Json out = Json::array();
  for (const Json& p : list) out.push_back(p);
  return out;
}

/// Two linear layers of which the first is frozen, inside one wrapped module, beside a third.
Answer frozen_mixture(bool policy_object, bool original) {
  Json inner = {{"path", "0"}, {"class", "Sequential"}};
  Json model = model_json({}, "x",
                          {inner, linear("0.0", params_of({{"weight", {2, 2}, false}, {"bias", {2}, false}})),
                           linear("0.1", params_of({{"weight", {2, 2}, true}, {"bias", {2}, true}})),
                           linear("1", params_of({{"weight", {2, 2}, true}, {"bias", {2}, true}}))},
                          "Sequential");
  return ask({.model = model,
              .units = Json::array(),
              .options = {{"use_orig_params", original}},
              .adjust =
                  [&](Model&, Job& job) {
                    job.fsdp.wrap.policy = policy_object ? WrapPolicyKind::ModuleClass : WrapPolicyKind::Size;
                    job.fsdp.wrap.classes = {"Sequential"};
                    job.fsdp.wrap.min_num_params = 10;
                  },
              .units_only = true});
}

/// O3: the index of a unit's first run, but 0 counts as none.
Json eval_facts(const Plan& plan) {
  const auto names = [&](const std::vector<UnitId>& order) {
    Json list = Json::array();
    for (const UnitId id : order)
      list.push_back(plan.units[id.index()].name.empty() ? "R" : plan.units[id.index()].name);
    return list;
  };
  const PlanIteration& only = plan.iterations.front();
  const Json post = names(only.post_order);
  Json index = Json::object();
  for (std::size_t n = 0; n < post.size(); ++n) {
    const std::string name = post[n];
    if (index.value(name, std::size_t{0}) == 0) index[name] = n;
  }
  // An iteration of FSDP's ends with its final callback.
  const auto ended = std::count_if(only.instructions.begin(), only.instructions.end(), [&](const Instruction& i) {
    return i.kind == InstructionKind::Mark && i.phase == Phase::Final && plan.name_of(i.name) == "enter";
  });
  return {{"iter", ended}, {"pre", names(only.pre_order)}, {"post", post}, {"post_index", index}};
}

/// H15 by what a second backward finds.
Json gradient_facts(const Plan& plan) {
  bool saved = false, held = false;
  for (const Instruction& i : plan.iterations[0].instructions) {
    if (i.kind != InstructionKind::Mark) continue;
    saved = saved || plan.name_of(i.name) == "saved_gradient";
    held = held || plan.name_of(i.name) == "held_gradient";
  }
  return {{"grad_left", held}, {"saved", saved}};
}

/// What a clip without gradients returns.
Json clip_facts(const Plan& plan) {
  Json facts = Json::object();
  for (const Instruction& i : plan.iterations[0].instructions) {
    if (i.kind != InstructionKind::Clip) continue;
    facts["dtype"] = "torch." + std::string(dtype_name(i.dtype));
    if (i.numel == 0) facts["value"] = 0.0;
  }
  return facts;
}

Answer ignoring(std::vector<std::string> patterns, Json units) {
  return ask({.units = std::move(units),
              .adjust = [&](Model&, Job& job) { job.fsdp.ignored = std::move(patterns); },
              .table_facts = [](const Model& model, const UnitTable& table) -> Json {
                Json params = Json::array();
                for (const ParamId param : table.units.front().params)
                  params.push_back(model.params[param.index()].fqn);
                return {{"params", params}, {"numel", table.units.front().flat_numel}};
              },
              .units_only = true});
}

/// Convolution, batch norm, convolution, wrapped by class under mixed precision: the norm is a unit in full precision.
Answer batch_norm_between_convolutions() {
  const auto layer = [](const std::string& path, const std::string& type, std::int64_t elements) {
    Json module = linear(path, params_of({{"weight", {elements}, true}, {"bias", {2}, true}}));
    module["class"] = type;
    return module;
  };
  return ask({.model = model_json({step("a", "0", "x"), step("b", "1", "a"), step("y", "2", "b")}, "y",
                                  {layer("0", "Conv2d", 4), layer("1", "BatchNorm2d", 2), layer("2", "Conv2d", 4)}),
              .units = Json::array(),
              .options = {{"mixed_precision", {{"param_dtype", "bf16"}}}},
              .adjust =
                  [](Model&, Job& job) {
                    job.fsdp.wrap.policy = WrapPolicyKind::ModuleClass;
                    job.fsdp.wrap.classes = {"Conv2d"};
                  },
              .table_facts =
                  [](const Model&, const UnitTable& table) {
                    Json units = Json::object();
                    for (std::size_t u = 0; u < table.units.size(); ++u) {
                      const std::string& name = table.units[u].name;
                      Json dtype = nullptr;
                      if (table.units[u].flat_numel > 0) {
                        dtype = table.units[u].param_dtype == DType::BFloat16 ? "torch.bfloat16" : "torch.float32";
                      }
                      units[name.empty() ? "R" : name] = Json::array({dtype});
                    }
                    return Json{{"units", units}};
                  },
              .units_only = true});
}

Answer bare(const char* container) {
  return ask(
      {.model = model_json({}, "x", {{{"path", "list"}, {"class", container}}, linear("list.0", weight(2, 2))}, "Leaf"),
       .units = {"list"},
       .units_only = true});
}

/// Calls on the instances of the recorder's model (root, B0, B1, B2), in order, until one is refused. "inside" leaves
/// the call open for those that follow.
struct Called {
  InstanceCall call;
  std::size_t instance = 0;
  bool inside = false;
};
Answer called(const std::vector<Called>& calls, const std::function<void(std::vector<Instance>&)>& adjust = nullptr) {
  std::vector<Instance> list{{.name = ""}};
  for (const char* name : {"B0", "B1", "B2"}) list.push_back({.name = name, .parent = 0});
  if (adjust) adjust(list);
  Instances instances(std::move(list));
  Answer answer;
  for (const Called& one : calls) {
    if (const auto refused = instances.begin(one.call, one.instance)) {
      answer.error = true;
      answer.error_class = refused->error_class;
      answer.text = refused->text;
      return answer;
    }
    const bool lasts =
        one.call == InstanceCall::Forward || one.call == InstanceCall::NoSync || one.call == InstanceCall::Summon;
    if (lasts && !one.inside) instances.end();
  }
  return answer;
}

template <class T>
Answer refused(const Result<T>& result, const char* error_class = "ValueError") {
  Answer answer;
  answer.error = !result;
  answer.error_class = error_class;
  if (!result) answer.text = to_text(result.error());
  return answer;
}

std::string torch_dtype(DType dtype) { return "torch." + std::string(dtype_name(dtype)); }

/// A floating buffer in the child and a whole one in the grandchild, under a buffer dtype.
Answer cast_buffers() {
  const auto layer = [](const std::string& path) {
    return linear(path, params_of({{"weight", {3, 3}, true}, {"bias", {3}, true}}));
  };
  Model model = model_of_row(model_json({}, "x", {layer("a"), layer("a.sub")}, "Module"));
  model.buffers.push_back({"a.b1", {3}, DType::Float32, model.find_module("a"), true});
  model.buffers.push_back({"a.sub.b2", {3}, DType::Int64, model.find_module("a.sub"), true});
  Job job = job_of_row({{"W", 4},
                        {"units", Json::array()},
                        {"options", {{"mixed_precision", {{"param_dtype", "fp16"}, {"buffer_dtype", "fp16"}}}}},
                        {"iterations", Json::array()}});
  Answer answer;
  const auto table = build_units(model, job);
  if (!table) return refused(table);
  ActionRequest request;
  request.action = PlanAction::Save;
  request.kind = StateKind::Full;
  Json saved = Json::object(), trained = Json::object();
  for (const StateEntry& entry : model_state({model, job, *table}, request))
    saved[entry.key] = torch_dtype(entry.dtype);
  for (const BufferInfo& buffer : model.buffers)
    trained[buffer.fqn] = torch_dtype(trained_buffer_dtype(job, buffer.dtype));
  answer.value = {{"training", trained}, {"full_state_dict", saved}, {"after", trained}};
  return answer;
}

/// I5: parameters on the host, nobody says to which device they shall go.
Answer synchronised_on_host() {
  const Model model = model_of_row(parameters(params_of({{"weight", {3, 3}, true}, {"bias", {3}, true}})));
  Job job =
      job_of_row({{"W", 4}, {"units", Json::array()}, {"options", Json::object()}, {"iterations", Json::array()}});
  job.cluster.init = "host";
  const auto table = build_units(model, job);
  if (!table) return refused(table);
  ActionRequest request;
  request.action = PlanAction::Init;
  request.sync_module_states = true;
  request.device_id = false;
  return refused(build_action_plan(model, job, *table, {request}));
}

/// A wrap policy on the chain, before which these modules are units and ignored.
struct Wrapped {
  Model model = model_of_row(chain());
  ModuleTree tree = build_module_tree(model).value();
  WrapRequest request{model, tree, flags({}), {}, flags({}), false};

  std::vector<bool> flags(const std::vector<std::string>& names) const {
    std::vector<bool> set(model.modules.size(), false);
    for (const std::string& name : names) set[model.find_module(name).index()] = true;
    return set;
  }
};

Answer wrapped(const WrapPolicy& policy, const std::vector<std::string>& units = {}) {
  Wrapped w;
  w.request.already_units = w.flags(units);
  return refused(apply_wrap_policy(policy, w.request));
}

WrapPolicy custom(const char* returned) {
  return CustomPolicy{[=](const ModuleInfo&) { return CustomAnswer{CustomAnswer::Kind::Invalid, {}, returned}; }};
}

Answer not_told(const char* why) {
  Answer answer;
  answer.skipped = why;
  return answer;
}

using Scenarios = std::map<std::string, std::function<Answer()>>;

constexpr const char* kTensors = "about tensors that a user replaces at run time";

Scenarios scenarios() {
  const Json f3 = {"p0", {3}, true};
  return {
      {"backward_twice",
       [] {
         return scripted({"fwd", "bwd_keep", "bwd"});
       }},
      {"two_backwards",
       [] {
         return scripted({"fwd", "fwd", "bwd", "bwd"});
       }},
      {"two_backwards_no_shard",
       [] {
         return scripted({"fwd", "fwd", "bwd", "bwd"}, {{"strategy", "NO_SHARD"}});
       }},
      {"one_backward",
       [] {
         return scripted({"fwd", "fwd", "bwd_all"});
       }},
      {"summon_nested",
       [] {
         return scripted({"summon{", "summon{", "}", "}"});
       }},
      {"forward_in_summon",
       [] {
         return scripted({"summon{", "fwd", "}"});
       }},
      {"clip_none",
       [] {
         return ask({.iterations = {{"fwd", "clip"}}, .plan_facts = clip_facts});
       }},
      {"u_grads_flat",
       [] {
         return scripted({"summon{:{\"with_grads\":true}", "}"});
       }},
      {"u_grads_offload",
       [] {
         return scripted({"summon{:{\"with_grads\":true,\"offload_to_cpu\":true}", "}"}, {{"use_orig_params", true}});
       }},
      {"u_offload_noshard",
       [] {
         return scripted({"summon{:{\"offload_to_cpu\":true,\"rank0_only\":true,\"writeback\":false}", "}"},
                         {{"strategy", "NO_SHARD"}});
       }},
      {"u_writeback_rank0",
       [] {
         return scripted({"summon{:{\"writeback\":true,\"rank0_only\":true}", "}"});
       }},
      {"u_offload_all",
       [] {
         return scripted({"summon{:{\"offload_to_cpu\":true}", "}"});
       }},
      {"eval_iter",
       [] {
         return ask({.iterations = {{"nograd_fwd", "nograd_fwd"}}, .plan_facts = eval_facts});
       }},
      {"grad_shard",
       [] {
         return ask({.iterations = {{"fwd", "bwd", "fwd", "bwd"}}, .plan_facts = gradient_facts});
       }},
      {"grad_unsharded",
       [] {
         return ask({.iterations = {{"no_sync{", "fwd", "bwd", "}", "fwd", "bwd"}}, .plan_facts = gradient_facts});
       }},
      {"world_one",
       [] {
         return ask({.world_size = 1, .table_facts = [](const Model&, const UnitTable& t) -> Json {
                       return {{"strategy", strategy_name(t.units.front().strategy)},
                               {"handle", strategy_name(t.units.front().strategy)}};
                     }});
       }},
      {"world_one_sgo",
       [] {
         return ask({.options = {{"strategy", "SHARD_GRAD_OP"}},
                     .world_size = 1,
                     .table_facts = [](const Model&, const UnitTable& t) -> Json {
                       return {{"strategy", strategy_name(t.units.front().strategy)}};
                     }});
       }},
      {"no_shard_warns",
       [] {
         return ask({.options = {{"strategy", "NO_SHARD"}}});
       }},
      {"mixed_strategy",
       [] {
         return ask({.adjust = [](Model&, Job& job) {
           job.fsdp.overrides.push_back({.units = {"B1"}, .strategy = Strategy::ShardGradOp});
         }});
       }},
      {"mp_reduce_only",
       [] {
         return ask({.options = {{"mixed_precision", {{"reduce_dtype", "bf16"}}}},
                     .table_facts = [](const Model&, const UnitTable& t) -> Json {
                       return {{"e_c", dtype_short_name(t.units.front().param_dtype)},
                               {"e_r", dtype_short_name(t.units.front().reduce_dtype)}};
                     }});
       }},
      {"mp_param_only",
       [] {
         return ask({.options = {{"mixed_precision", {{"param_dtype", "bf16"}}}},
                     .table_facts = [](const Model&, const UnitTable& t) -> Json {
                       return {{"e_c", dtype_short_name(t.units.front().param_dtype)},
                               {"e_r", dtype_short_name(t.units.front().reduce_dtype)}};
                     }});
       }},
      {"hybrid_auto",
       [] {
         return ask({.options = {{"strategy", "HYBRID_SHARD"}},
                     .adjust = [](Model&, Job& job) { job.cluster.ranks_per_node = 2; },
                     .table_facts = [](const Model&, const UnitTable& t) -> Json {
                       return {{"shard", t.groups.shard}, {"replicate", t.groups.replicate}};
                     }});
       }},
      {"scalar",
       [=] {
         return flat(params_of({f3, {"p1", Json::array(), true}}));
       }},
      {"mixed_grad",
       [=] {
         return flat(params_of({f3, {"p1", {3}, false}}));
       }},
      {"mixed_grad_orig",
       [=] {
         return flat(params_of({f3, {"p1", {3}, false}}), true);
       }},
      {"integer_first",
       [] {
         return flat(params_of({{"p0", {3}, false}}), false, [](Model& m, Job&) { m.params[0].dtype = DType::Int32; });
       }},
      {"integer_second",
       [] {
         return flat(params_of({{"p0", {3}, false}, {"p1", {3}, false}}), false,
                     [](Model& m, Job&) { m.params[1].dtype = DType::Int32; });
       }},
      {"two_dtypes",
       [=] {
         return flat(params_of({f3, {"p1", {3}, true}}), false,
                     [](Model& m, Job&) { m.params[1].dtype = DType::BFloat16; });
       }},
      {"frozen_policy", [] { return frozen_mixture(true, false); }},
      {"frozen_policy_orig", [] { return frozen_mixture(true, true); }},
      {"frozen_function_orig", [] { return frozen_mixture(false, true); }},
      {"bare_list", [] { return bare("ModuleList"); }},
      {"bare_dict", [] { return bare("ModuleDict"); }},
      {"ignored_ok",
       [] {
         return ignoring({"B0", "B2"}, Json::array());
       }},
      {"ignored_self", [] { return ignoring({""}, Json::array()); }},
      {"ignored_fsdp",
       [] {
         Wrapped w;
         w.request.already_units = w.request.ignored_modules = w.flags({"B0"});
         return refused(check_ignored_modules(w.request));
       }},
      {"empty_handle", [] { return refused(check_flat_parameter("", {}, false)); }},
      {"flat_in_flat",
       [] {
         const FlatCandidate flat_one{.name = "_flat_param", .is_flat = true};
         return refused(check_flat_parameter("", {&flat_one, 1}, false));
       }},
      {"two_devices",
       [] {
         const FlatCandidate two[] = {{.name = "p0", .device = "cpu"}, {.name = "p1", .device = "meta"}};
         return refused(check_flat_parameter("", two, false));
       }},
      {"custom_none", [] { return wrapped(custom("None")); }},
      {"custom_int", [] { return wrapped(custom("1")); }},
      {"nested_enable_wrap",
       [] {
         WrapContext context;
         (void)context.enter();
         return refused(context.enter(), "NotImplementedError");
       }},
      {"wrap_outside",
       [] {
         Answer answer;
         answer.error = WrapContext().wraps();  // outside a context nothing becomes a unit
         return answer;
       }},
      {"nested_wrap_object", [] { return wrapped(ModuleWrapPolicy{{"Linear"}}, {"B0"}); }},
      {"nested_wrap_function", [] { return wrapped(FunctionPolicy{AlwaysPolicy{}}, {"B0"}); }},
      {"hybrid_manual", [] { return refused(check_hybrid_groups(GivenGroups::None, false)); }},
      {"hybrid_one_group", [] { return refused(check_hybrid_groups(GivenGroups::One, false)); }},
      {"mixed_use_orig",
       [] { return called({{InstanceCall::Forward}}, [](auto& list) { list[2].use_orig_params = true; }); }},
      {"mixed_limit",
       [] { return called({{InstanceCall::Forward}}, [](auto& list) { list[2].limit_all_gathers = false; }); }},
      {"mixed_prefetch",
       [] { return called({{InstanceCall::Forward}}, [](auto& list) { list[2].forward_prefetch = true; }); }},
      {"summon_in_forward",
       [] {
         return called({{InstanceCall::Forward, 0, true}, {InstanceCall::Summon}});
       }},
      {"nosync_in_forward",
       [] {
         return called({{InstanceCall::Forward, 0, true}, {InstanceCall::NoSync}});
       }},
      {"clip_in_forward",
       [] {
         return called({{InstanceCall::Forward, 0, true}, {InstanceCall::ClipGradNorm}});
       }},
      {"hook_inner",
       [] {
         return called({{InstanceCall::Forward}, {InstanceCall::RegisterCommHook, 1}});
       }},
      {"hook_inner_early",
       [] {
         return called({{InstanceCall::RegisterCommHook, 1}});
       }},
      {"hook_twice",
       [] {
         return called({{InstanceCall::RegisterCommHook}, {InstanceCall::RegisterCommHook}});
       }},
      {"inner_state_first",
       [] {
         return called({{InstanceCall::StateDict, 1}, {InstanceCall::Forward}});
       }},
      {"inner_first",
       [] {
         return called({{InstanceCall::Forward, 1}, {InstanceCall::Forward}});
       }},
      {"nosync_inner",
       [] {
         return called({{InstanceCall::Forward}, {InstanceCall::NoSync, 1}});
       }},
      {"clip_inner",
       [] {
         return called({{InstanceCall::Forward}, {InstanceCall::ClipGradNorm, 1}});
       }},
      {"hook_hybrid",
       [] {
         return called({{InstanceCall::RegisterCommHook}},
                       [](auto& list) { list[0].strategy = Strategy::HybridShard; });
       }},
      {"empty_unit",
       [] {
         const Json none = {{"path", "B0"}, {"class", "ReLU"}};
         return ask(
             {.model = model_json({step("y", "B0", "x")}, "y", {none, linear("head", weight(2, 2))}), .units = {"B0"}});
       }},
      {"batchnorm", [] { return batch_norm_between_convolutions(); }},
      {"buffers", cast_buffers},
      {"meta_no_reset", [] { return not_told("a Model does not say which classes can initialise themselves"); }},
      {"sync_cpu", synchronised_on_host},
      {"double_backward", [] { return not_told("a script has no create_graph"); }},
      {"grad_wrong", [] { return not_told(kTensors); }},
      {"writeback_bad", [] { return not_told(kTensors); }},
  };
}

/// The rule that our text of a refusal names, or the text.
std::string rule_in(const std::string& text, const std::string& rule) {
  return text.find("(" + rule + ")") == std::string::npos ? text : rule;
}

/// Warnings that PyTorch prints once per unit or call, counted once. Deprecations say nothing about sharding.
std::size_t distinct(const Json& warnings) {
  std::set<std::string> texts;
  for (const Json& warning : warnings) {
    if (warning.get<std::string>().find("set_state_dict_type() are being deprecated") == std::string::npos)
      texts.insert(warning);
  }
  return texts.size();
}

RowResult compare(const Json& row, const Scenarios& all) {
  RowResult result;
  const std::string id = row.at("id");
  const auto found = all.find(id);
  const Answer answer = found == all.end() ? not_told("no scenario is written for this id") : found->second();
  if (!answer.skipped.empty()) {
    result.verdict = Verdict::Skip;
    result.detail = answer.skipped;
    return result;
  }
  const Json& expected = row.at("result");
  const auto check = [&](const std::string& place, const Json& want, const Json& got) {
    if (result.verdict == Verdict::Fail || nlohmann::json(want) == nlohmann::json(got)) return;
    result.verdict = Verdict::Fail;
    result.place = place;
    result.expected = want.dump();
    result.got = got.dump();
  };
  for (const auto& [key, value] : expected.items()) {
    static const std::set<std::string> kRead{"outcome", "class", "message", "warnings", "value"};
    if (!kRead.contains(key)) check(key, value, "nothing");
  }
  check("outcome", expected.at("outcome"), answer.error ? "error" : "ok");
  if (answer.error) {
    check("class", expected.at("class"), answer.error_class);
    check("rule of the refusal", row.at("rule"), rule_in(answer.text, row.at("rule")));
  }
  check("warnings", distinct(expected.at("warnings")), answer.warnings.size());
  const Json facts = expected.value("value", Json::object());
  for (const auto& [key, fact] : facts.items())
    check("value." + key, fact, answer.value.is_object() ? answer.value.value(key, Json()) : Json());
  return result;
}

Report run(const std::vector<std::string>& files, const Options& options) {
  const Scenarios all = scenarios();
  return for_each_row(files, options, [&](const Json& row) { return compare(row, all); });
}

ORACLE_KIND("fsdp1-errors", run);

}  // namespace
}  // namespace foreshard::oracle
