// fsdp1-errors: PyTorch's negative tests, each retold as a scenario for the planner: the same outcome, rule and facts;
// texts are ours. One long file on purpose: a list of scenarios, read beside the recorder's list of cases.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "core/plan/build_plan.h"
#include "core/plan/units/groups.h"
#include "core/plan/units/instances.h"
#include "core/plan/units/module_tree.h"
#include "core/plan/units/wrap_policy.h"
#include "tests/oracle/fsdp1_row.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {
namespace {

/// What the planner said. An error is one of build_units (ValueError in PyTorch's words) or the plan's failure.
struct Answer {
  std::string rule;
  bool error = false;
  std::string error_class = {};
  std::vector<std::string> warnings = {};
  Json value = {};           // facts, compared where the row states the same keys
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
  std::string rule;
  Json model = chain();
  Json units = {"B0", "B1", "B2"};
  Json options = Json::object();
  std::vector<std::vector<std::string>> iterations = {{"fwd"}};
  std::int64_t world_size = 4;
  std::function<void(Model&, Job&)> adjust = nullptr;
  std::function<Json(const UnitTable&)> table_facts = nullptr;
  std::function<Json(const Plan&)> plan_facts = nullptr;
  bool units_only = false;
};

Answer ask(const Case& c) {
  Answer answer;
  answer.rule = c.rule;
  Model model = model_of_row(c.model);
  const Json row = {{"W", c.world_size}, {"units", c.units}, {"options", c.options}, {"iterations", c.iterations}};
  Job job = job_of_row(row);
  if (c.adjust) c.adjust(model, job);
  const auto refuse = [&] {
    answer.error = true;
    answer.error_class = "ValueError";
    return answer;
  };
  const auto table = build_units(model, job);
  if (!table) return refuse();
  answer.warnings = table->warnings;
  if (c.table_facts) answer.value = c.table_facts(*table);
  if (c.units_only) return answer;
  const auto script = script_of(job);
  const auto graph = build_module_graph(model, {}, {});
  if (!script || !graph) return refuse();
  const auto plan = build_fsdp1_plan({model, job, *table, *graph, *script});
  if (!plan) return refuse();
  answer.warnings = plan->warnings;
  answer.error = plan->failure.has_value();
  if (plan->failure) answer.error_class = plan->failure->error_class;
  if (c.plan_facts) answer.value = c.plan_facts(*plan);
  return answer;
}

Answer scripted(const std::string& rule, std::vector<std::string> actions, Json options = Json::object()) {
  return ask({.rule = rule, .options = std::move(options), .iterations = {std::move(actions)}});
}

Answer flat(const std::string& rule, const Json& params, bool original = false,
            const std::function<void(Model&, Job&)>& adjust = nullptr) {
  return ask({.rule = rule,
              .model = parameters(params),
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
  return ask({.rule = "W7",
              .model = model,
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

Json eval_facts(const Plan& plan) {
  const auto names = [&](const std::vector<UnitId>& order) {
    Json list = Json::array();
    for (const UnitId id : order)
      list.push_back(plan.units[id.index()].name.empty() ? "R" : plan.units[id.index()].name);
    return list;
  };
  return {{"pre", names(plan.iterations[0].pre_order)}, {"post", names(plan.iterations[0].post_order)}};
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

Answer ignoring(const std::string& rule, std::vector<std::string> patterns, Json units) {
  return ask({.rule = rule,
              .units = std::move(units),
              .adjust = [&](Model&, Job& job) { job.fsdp.ignored = std::move(patterns); },
              .table_facts = [](const UnitTable& table) -> Json {
                return {{"numel", table.units.front().flat_numel}};
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
  return ask({.rule = "W6",
              .model = model_json({step("a", "0", "x"), step("b", "1", "a"), step("y", "2", "b")}, "y",
                                  {layer("0", "Conv2d", 4), layer("1", "BatchNorm2d", 2), layer("2", "Conv2d", 4)}),
              .units = Json::array(),
              .options = {{"mixed_precision", {{"param_dtype", "bf16"}}}},
              .adjust =
                  [](Model&, Job& job) {
                    job.fsdp.wrap.policy = WrapPolicyKind::ModuleClass;
                    job.fsdp.wrap.classes = {"Conv2d"};
                  },
              .table_facts =
                  [](const UnitTable& table) {
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
      {.rule = "W5",
       .model = model_json({}, "x", {{{"path", "list"}, {"class", container}}, linear("list.0", weight(2, 2))}, "Leaf"),
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
Answer called(const std::string& rule, const std::vector<Called>& calls,
              const std::function<void(std::vector<Instance>&)>& adjust = nullptr) {
  std::vector<Instance> list{{.name = ""}};
  for (const char* name : {"B0", "B1", "B2"}) list.push_back({.name = name, .parent = 0});
  if (adjust) adjust(list);
  Instances instances(std::move(list));
  Answer answer;
  answer.rule = rule;
  for (const Called& one : calls) {
    if (const auto refused = instances.begin(one.call, one.instance)) {
      answer.error = true;
      answer.error_class = refused->error_class;
      return answer;
    }
    const bool lasts =
        one.call == InstanceCall::Forward || one.call == InstanceCall::NoSync || one.call == InstanceCall::Summon;
    if (lasts && !one.inside) instances.end();
  }
  return answer;
}

template <class T>
Answer refused(const std::string& rule, const Result<T>& result, const char* error_class = "ValueError") {
  Answer answer;
  answer.rule = rule;
  answer.error = !result;
  answer.error_class = error_class;
  return answer;
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

Answer wrapped(const std::string& rule, const WrapPolicy& policy, const std::vector<std::string>& units = {}) {
  Wrapped w;
  w.request.already_units = w.flags(units);
  return refused(rule, apply_wrap_policy(policy, w.request));
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

constexpr const char* kStateDict = "state dicts are not planned yet";
constexpr const char* kTensors = "about tensors that a user replaces at run time";

Scenarios scenarios() {
  const Json f3 = {"p0", {3}, true};
  return {
      {"backward_twice",
       [] {
         return scripted("T2", {"fwd", "bwd_keep", "bwd"});
       }},
      {"two_backwards",
       [] {
         return scripted("T2", {"fwd", "fwd", "bwd", "bwd"});
       }},
      {"two_backwards_no_shard",
       [] {
         return scripted("T2", {"fwd", "fwd", "bwd", "bwd"}, {{"strategy", "NO_SHARD"}});
       }},
      {"one_backward",
       [] {
         return scripted("T2", {"fwd", "fwd", "bwd_all"});
       }},
      {"summon_nested",
       [] {
         return scripted("T1", {"summon{", "summon{", "}", "}"});
       }},
      {"forward_in_summon",
       [] {
         return scripted("T1", {"summon{", "fwd", "}"});
       }},
      {"clip_none",
       [] {
         return scripted("G9", {"fwd", "clip"});
       }},
      {"u_grads_flat",
       [] {
         return scripted("U2", {"summon{:{\"with_grads\":true}", "}"});
       }},
      {"u_grads_offload",
       [] {
         return scripted("U2", {"summon{:{\"with_grads\":true,\"offload_to_cpu\":true}", "}"},
                         {{"use_orig_params", true}});
       }},
      {"u_offload_noshard",
       [] {
         return scripted("U2", {"summon{:{\"offload_to_cpu\":true,\"rank0_only\":true,\"writeback\":false}", "}"},
                         {{"strategy", "NO_SHARD"}});
       }},
      {"u_writeback_rank0",
       [] {
         return scripted("U2", {"summon{:{\"writeback\":true,\"rank0_only\":true}", "}"});
       }},
      {"u_offload_all",
       [] {
         return scripted("U2", {"summon{:{\"offload_to_cpu\":true}", "}"});
       }},
      {"eval_iter",
       [] {
         return ask({.rule = "O2", .iterations = {{"nograd_fwd", "nograd_fwd"}}, .plan_facts = eval_facts});
       }},
      {"grad_shard",
       [] {
         return ask({.rule = "H15", .iterations = {{"fwd", "bwd", "fwd", "bwd"}}, .plan_facts = gradient_facts});
       }},
      {"grad_unsharded",
       [] {
         return ask({.rule = "H15",
                     .iterations = {{"no_sync{", "fwd", "bwd", "}", "fwd", "bwd"}},
                     .plan_facts = gradient_facts});
       }},
      {"world_one",
       [] {
         return ask({.rule = "S3", .world_size = 1, .table_facts = [](const UnitTable& t) -> Json {
                       return {{"strategy", strategy_name(t.units.front().strategy)},
                               {"handle", strategy_name(t.units.front().strategy)}};
                     }});
       }},
      {"world_one_sgo",
       [] {
         return ask({.rule = "S3",
                     .options = {{"strategy", "SHARD_GRAD_OP"}},
                     .world_size = 1,
                     .table_facts = [](const UnitTable& t) -> Json {
                       return {{"strategy", strategy_name(t.units.front().strategy)}};
                     }});
       }},
      {"no_shard_warns",
       [] {
         return ask({.rule = "S4", .options = {{"strategy", "NO_SHARD"}}});
       }},
      {"mixed_strategy",
       [] {
         return ask({.rule = "S5", .adjust = [](Model&, Job& job) {
                       job.fsdp.overrides.push_back({.units = {"B1"}, .strategy = Strategy::ShardGradOp});
                     }});
       }},
      {"mp_reduce_only",
       [] {
         return ask({.rule = "M1",
                     .options = {{"mixed_precision", {{"reduce_dtype", "bf16"}}}},
                     .table_facts = [](const UnitTable& t) -> Json {
                       return {{"e_c", dtype_short_name(t.units.front().param_dtype)},
                               {"e_r", dtype_short_name(t.units.front().reduce_dtype)}};
                     }});
       }},
      {"mp_param_only",
       [] {
         return ask({.rule = "M1",
                     .options = {{"mixed_precision", {{"param_dtype", "bf16"}}}},
                     .table_facts = [](const UnitTable& t) -> Json {
                       return {{"e_c", dtype_short_name(t.units.front().param_dtype)},
                               {"e_r", dtype_short_name(t.units.front().reduce_dtype)}};
                     }});
       }},
      {"hybrid_auto",
       [] {
         return ask({.rule = "HS1",
                     .options = {{"strategy", "HYBRID_SHARD"}},
                     .adjust = [](Model&, Job& job) { job.cluster.ranks_per_node = 2; },
                     .table_facts = [](const UnitTable& t) -> Json {
                       return {{"shard", t.groups.shard}, {"replicate", t.groups.replicate}};
                     }});
       }},
      {"scalar",
       [=] {
         return flat("H2", params_of({f3, {"p1", Json::array(), true}}));
       }},
      {"mixed_grad",
       [=] {
         return flat("H2", params_of({f3, {"p1", {3}, false}}));
       }},
      {"mixed_grad_orig",
       [=] {
         return flat("H2", params_of({f3, {"p1", {3}, false}}), true);
       }},
      {"integer_first",
       [] {
         return flat("H2", params_of({{"p0", {3}, false}}), false,
                     [](Model& m, Job&) { m.params[0].dtype = DType::Int32; });
       }},
      {"integer_second",
       [] {
         return flat("H2", params_of({{"p0", {3}, false}, {"p1", {3}, false}}), false,
                     [](Model& m, Job&) { m.params[1].dtype = DType::Int32; });
       }},
      {"two_dtypes",
       [=] {
         return flat("H2", params_of({f3, {"p1", {3}, true}}), false,
                     [](Model& m, Job&) { m.params[1].dtype = DType::BFloat16; });
       }},
      {"frozen_policy", [] { return frozen_mixture(true, false); }},
      {"frozen_policy_orig", [] { return frozen_mixture(true, true); }},
      {"frozen_function_orig", [] { return frozen_mixture(false, true); }},
      {"bare_list", [] { return bare("ModuleList"); }},
      {"bare_dict", [] { return bare("ModuleDict"); }},
      {"ignored_ok",
       [] {
         return ignoring("N1", {"B0", "B2"}, Json::array());
       }},
      {"ignored_self", [] { return ignoring("N1", {""}, Json::array()); }},
      {"ignored_fsdp",
       [] {
         Wrapped w;
         w.request.already_units = w.request.ignored_modules = w.flags({"B0"});
         return refused("N1", check_ignored_modules(w.request));
       }},
      {"empty_handle", [] { return refused("H2", check_flat_parameter("", {}, false)); }},
      {"flat_in_flat",
       [] {
         const FlatCandidate flat_one{.name = "_flat_param", .is_flat = true};
         return refused("H2", check_flat_parameter("", {&flat_one, 1}, false));
       }},
      {"two_devices",
       [] {
         const FlatCandidate two[] = {{.name = "p0", .device = "cpu"}, {.name = "p1", .device = "meta"}};
         return refused("H2", check_flat_parameter("", two, false));
       }},
      {"custom_none", [] { return wrapped("W4", custom("None")); }},
      {"custom_int", [] { return wrapped("W4", custom("1")); }},
      {"nested_enable_wrap",
       [] {
         WrapContext context;
         (void)context.enter();
         return refused("W3", context.enter(), "NotImplementedError");
       }},
      {"wrap_outside",
       [] {
         Answer answer;
         answer.rule = "W3";
         answer.error = WrapContext().wraps();  // outside a context nothing becomes a unit
         return answer;
       }},
      {"nested_wrap_object", [] { return wrapped("W5", ModuleWrapPolicy{{"Linear"}}, {"B0"}); }},
      {"nested_wrap_function", [] { return wrapped("W5", FunctionPolicy{AlwaysPolicy{}}, {"B0"}); }},
      {"hybrid_manual", [] { return refused("HS1", check_hybrid_groups(GivenGroups::None, false)); }},
      {"hybrid_one_group", [] { return refused("HS1", check_hybrid_groups(GivenGroups::One, false)); }},
      {"mixed_use_orig",
       [] { return called("S5", {{InstanceCall::Forward}}, [](auto& list) { list[2].use_orig_params = true; }); }},
      {"mixed_limit",
       [] { return called("S5", {{InstanceCall::Forward}}, [](auto& list) { list[2].limit_all_gathers = false; }); }},
      {"mixed_prefetch",
       [] { return called("S5", {{InstanceCall::Forward}}, [](auto& list) { list[2].forward_prefetch = true; }); }},
      {"summon_in_forward",
       [] {
         return called("T1", {{InstanceCall::Forward, 0, true}, {InstanceCall::Summon}});
       }},
      {"nosync_in_forward",
       [] {
         return called("T1", {{InstanceCall::Forward, 0, true}, {InstanceCall::NoSync}});
       }},
      {"clip_in_forward",
       [] {
         return called("T1", {{InstanceCall::Forward, 0, true}, {InstanceCall::ClipGradNorm}});
       }},
      {"hook_inner",
       [] {
         return called("G5", {{InstanceCall::Forward}, {InstanceCall::RegisterCommHook, 1}});
       }},
      {"hook_inner_early",
       [] {
         return called("G5", {{InstanceCall::RegisterCommHook, 1}});
       }},
      {"hook_twice",
       [] {
         return called("G5", {{InstanceCall::RegisterCommHook}, {InstanceCall::RegisterCommHook}});
       }},
      {"inner_state_first",
       [] {
         return called("R1", {{InstanceCall::StateDict, 1}, {InstanceCall::Forward}});
       }},
      {"inner_first",
       [] {
         return called("R1", {{InstanceCall::Forward, 1}, {InstanceCall::Forward}});
       }},
      {"nosync_inner",
       [] {
         return called("G1", {{InstanceCall::Forward}, {InstanceCall::NoSync, 1}});
       }},
      {"clip_inner",
       [] {
         return called("G9", {{InstanceCall::Forward}, {InstanceCall::ClipGradNorm, 1}});
       }},
      {"hook_hybrid",
       [] {
         return called("G5", {{InstanceCall::RegisterCommHook}},
                       [](auto& list) { list[0].strategy = Strategy::HybridShard; });
       }},
      {"empty_unit",
       [] {
         const Json none = {{"path", "B0"}, {"class", "ReLU"}};
         return ask({.rule = "H2",
                     .model = model_json({step("y", "B0", "x")}, "y", {none, linear("head", weight(2, 2))}),
                     .units = {"B0"}});
       }},
      {"batchnorm", [] { return batch_norm_between_convolutions(); }},
      {"buffers", [] { return not_told(kStateDict); }},
      {"meta_no_reset", [] { return not_told("initialisation from meta is not planned yet"); }},
      {"sync_cpu", [] { return not_told("initialisation is not planned yet"); }},
      {"double_backward", [] { return not_told("a script has no create_graph"); }},
      {"grad_wrong", [] { return not_told(kTensors); }},
      {"writeback_bad", [] { return not_told(kTensors); }},
  };
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
  check("rule", row.at("rule"), answer.rule);
  check("outcome", expected.at("outcome"), answer.error ? "error" : "ok");
  if (answer.error) {
    check("class", expected.at("class"), answer.error_class);
  } else {
    check("warned", !expected.at("warnings").empty(), !answer.warnings.empty());
  }
  if (answer.value.is_object() && expected.contains("value")) {
    for (const auto& [key, value] : answer.value.items()) {
      if (expected.at("value").contains(key)) check("value." + key, expected.at("value").at(key), value);
    }
  }
  return result;
}

Report run(const std::vector<std::string>& files, const Options& options) {
  const Scenarios all = scenarios();
  return for_each_row(files, options, [&](const Json& row) { return compare(row, all); });
}

ORACLE_KIND("fsdp1-errors", run);

}  // namespace
}  // namespace foreshard::oracle
