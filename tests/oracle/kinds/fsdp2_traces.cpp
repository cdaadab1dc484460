// Kind fsdp2-traces: plans of the fsdp2 runtime against the recorded host order of fully_shard, event by event.
//
// All recorded events are compared. One operator may be missing from a recording where we print it (kShapeOperator).
#include <algorithm>

#include "core/plan/build_plan.h"
#include "tests/oracle/fsdp2/fsdp2_trace.h"

namespace foreshard::oracle {
namespace {

/// Ours without the operators that the recording may show and does not at this place (kShapeOperator).
Json as_recorded(const Json& expected, const Json& ours) {
  Json out = Json::array();
  for (const Json& event : ours) {
    const bool optional = event.at(0) == "op" && event.at(2) == kShapeOperator;
    const bool shown = out.size() < expected.size() && expected[out.size()] == event;
    if (!optional || shown) out.push_back(event);
  }
  return out;
}

struct Difference {
  RowResult& result;
  void operator()(const std::string& place, const Json& expected, const Json& got, const std::string& more = {}) const {
    result.detail += place + ": expected " + expected.dump() + ", got " + got.dump() + "\n" + more;
    if (result.verdict == Verdict::Fail) return;
    result.verdict = Verdict::Fail;
    result.place = place;
    result.expected = expected.dump().substr(0, 200);
    result.got = got.dump().substr(0, 200);
  }
};

void compare_events(const Json& expected, const Json& got, const Difference& differ) {
  const std::size_t n = std::max(expected.size(), got.size());
  for (std::size_t i = 0; i < n; ++i) {
    const Json e = i < expected.size() ? expected[i] : Json(), g = i < got.size() ? got[i] : Json();
    if (e == g) continue;
    std::string more;
    for (std::size_t k = i < 6 ? 0 : i - 6; k < std::min(n, i + 14); ++k) {
      more += "  " + std::to_string(k) + "  " + (k < expected.size() ? expected[k].dump() : "-") + "   |   " +
              (k < got.size() ? got[k].dump() : "-") + "\n";
    }
    differ("events[" + std::to_string(i) + "]", e, g, more);
    return;
  }
}

Json layout_of(const TraceConfig& config, const Plan& plan) {
  Json layout = Json::object();
  for (std::size_t n = 0; n < config.unit_names.size(); ++n) {
    Json params = Json::array();
    const UnitId id = plan.find_unit(config.unit_modules[n]);
    for (const ShardedParam& p : plan.units[id.index()].sharded) {
      Json shared = Json::array();
      for (const SharedName& name : plan.units[id.index()].shared) {
        if (name.of == p.param) shared.push_back(plan.param_names[name.name.index()]);
      }
      params.push_back({{"param", plan.param_names[p.param.index()]},
                        {"shape", config.model.params[p.param.index()].shape},
                        {"local_shape", p.local_shape},
                        {"padded_local_shape", p.padded_local_shape},
                        {"shard_dim", p.shard_dim},
                        {"shared_with", std::move(shared)}});
    }
    layout[config.unit_names[n]] = std::move(params);
  }
  return layout;
}

/// Every registered name with its shard; checkpoint wrappers hide their own level.
Json state_dict_of(const TraceConfig& config, const Plan& plan, const UnitTable& table) {
  Json state = Json::object();
  for (std::size_t i = 0; i < config.model.params.size(); ++i) {
    std::string name = config.model.params[i].fqn;
    const std::string level = "_checkpoint_wrapped_module.";
    if (const std::size_t at = name.find(level); at != std::string::npos) name.erase(at, level.size());
    Json entry = {{"global_shape", config.model.params[i].shape},
                  {"local_shape", nullptr},
                  {"placements", nullptr},
                  {"dtype", dtype_short_name(config.model.params[i].dtype)}};
    const UnitId unit = table.unit_of_param[i];
    for (std::size_t k = 0; unit.valid() && k < plan.units[unit.index()].sharded.size(); ++k) {
      const ShardedParam& p = plan.units[unit.index()].sharded[k];
      if (config.model.storage_of(p.param) != config.model.storage_of(ParamId(i))) continue;
      entry["local_shape"] = p.local_shape;
      Json placements = Json::array();
      if (plan.units[unit.index()].strategy == Strategy::HybridShard) placements.push_back("R");
      placements.push_back("S(" + std::to_string(p.shard_dim) + ")");
      entry["placements"] = std::move(placements);
    }
    state[name] = std::move(entry);
  }
  return state;
}

Result<Plan> plan_of(const TraceConfig& config, UnitTable& table) {
  Result<UnitTable> units = build_units(config.model, config.job);
  if (!units) return tl::unexpected(units.error());
  table = std::move(*units);
  std::vector<bool> boundary(config.model.modules.size(), false);
  for (std::size_t m = 0; m < boundary.size(); ++m) boundary[m] = table.unit_of_module[m].valid();
  Result<ModuleGraph> graph = build_module_graph(config.model, boundary, {});
  if (!graph) return tl::unexpected(graph.error());
  return build_fsdp2_plan({config.model, config.job, table, *graph, config.script});
}

RowResult compare(const Json& row) {
  RowResult result;
  const Difference differ{result};
  const TraceConfig config = read_trace_config(row);
  UnitTable table;
  const Result<Plan> plan = plan_of(config, table);
  if (row.contains("error")) {
    if (plan)
      differ("error", row.at("error"), "a plan");
    else
      result.detail = "refused: " + to_text(plan.error());
    return result;
  }
  if (!plan) {
    differ("error", "a plan", to_text(plan.error()));
    return result;
  }
  const Json events = as_recorded(row.at("events"), print_events(config, *plan));
  compare_events(row.at("events"), events, differ);
  const Json layout = layout_of(config, *plan);
  if (layout != row.at("layout")) differ("layout", row.at("layout"), layout);
  const Json counts = count_events(events);
  if (nlohmann::json(counts) != nlohmann::json(row.at("counts"))) differ("counts", row.at("counts"), counts);
  if (row.contains("state_dict")) {
    const nlohmann::json a = nlohmann::json::parse(state_dict_of(config, *plan, table).dump());
    const nlohmann::json b = nlohmann::json::parse(row.at("state_dict").dump());
    if (a != b) differ("state_dict", row.at("state_dict"), state_dict_of(config, *plan, table));
  }
  return result;
}

Report fsdp2_traces(const std::vector<std::string>& files, const Options& options) {
  return for_each_row(files, options, compare);
}

ORACLE_KIND("fsdp2-traces", fsdp2_traces);

}  // namespace
}  // namespace foreshard::oracle
